"""Compiles the kernels of ``fast/kernels`` when the package is built, and in a clone: python
hatch_build.py

The compiler is ziglang from PyPI, which needs nothing else, or cc, gcc or clang. Where there is
none, or none works, the package is built without them, for any platform: it computes with torch's
operators, as `glassformer doctor` says. A library that the same compiler made of the same sources
is taken as it lies.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # a clone whose environment has no hatchling
    BuildHookInterface = object  # type: ignore[assignment,misc]

FOLDER = Path(__file__).parent / "src" / "glassformer" / "fast" / "kernels"
LIBRARY = FOLDER / "libkernels.so"
STAMP = FOLDER / "libkernels.stamp"  # of what the library was compiled from
VNNI = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c"
BUILDS = {
    "avx2": "-mavx2 -mfma -mf16c",
    "avx512-vnni": VNNI,
    "avx512-vnni-bf16": f"{VNNI} -mavx512bf16",
}
KERNELS = ("int8", "int4", "bf16", "fp32", "paged", "stack")
FLAGS = "-O3 -std=gnu11 -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -Wall"
GLIBC = "2.17"  # the oldest Linux that a wheel compiled by zig runs on
PURE = "GLASSFORMER_PURE_WHEEL"  # set: a wheel without kernels, for any platform
TAG = f"py3-none-manylinux_{GLIBC.replace('.', '_')}_x86_64"


class Kernels(BuildHookInterface):  # type: ignore[misc]
    """Hatchling's hook: the wheel gets the library, and the platform's tag; the sdist the sources
    alone."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel is put together; an editable one finds the library in
        ``src``."""
        if self.target_name != "wheel" or os.environ.get(PURE):
            return
        used = build()
        if used is None:
            self.app.display_warning(
                "Glassformer is built without compiled kernels; it computes with torch's operators."
            )
        elif version != "editable":
            build_data["artifacts"].append(str(LIBRARY.relative_to(self.root)))
            build_data["pure_python"] = False
            build_data["tag"] = TAG if "ziglang" in used else "py3-none-linux_x86_64"


def compilers() -> list[list[str]]:
    """Commands that compile C, the first choice first."""
    zig = [[sys.executable, "-m", "ziglang", "cc", "-target", f"x86_64-linux-gnu.{GLIBC}"]]
    return zig * (importlib.util.find_spec("ziglang") is not None) + [
        [name] for name in ("cc", "gcc", "clang") if shutil.which(name)
    ]


def build() -> list[str] | None:
    """Compile the library with the first compiler that can; its command, or None where none did."""
    if platform.machine() not in ("x86_64", "AMD64") or not sys.platform.startswith("linux"):
        return None
    for compiler in compilers():
        try:
            if LIBRARY.exists() and STAMP.exists() and STAMP.read_text() == _stamp(compiler):
                return compiler
            _compile(compiler)
            STAMP.write_text(_stamp(compiler))
            return compiler
        except (OSError, subprocess.CalledProcessError) as error:
            told = getattr(error, "stderr", "") or str(error)
            print(
                f"{' '.join(compiler)} could not compile the kernels: {told.strip()[-600:]}",
                file=sys.stderr,
            )
    return None


def _stamp(compiler: list[str]) -> str:
    """The digest of sources, flags, compiler and library. A path in pip's isolation has other
    folders each time, so the compiler counts by what it prints as its version."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout
    digest = hashlib.sha256(version.partition(b"InstalledDir")[0])
    sources = sorted([*FOLDER.glob("*.[ch]"), Path(__file__)])
    for path in [*sources, *([LIBRARY] if LIBRARY.exists() else [])]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest() + "\n"


def _compile(compiler: list[str]) -> None:
    """The library, whole or not at all."""
    with tempfile.TemporaryDirectory() as folder:
        units = [("pool", "", FLAGS)]
        units += [
            (kernel, build, f"{FLAGS} {flags}")
            for build, flags in BUILDS.items()
            for kernel in KERNELS
        ]
        objects = [f"{folder}/{name}.{build}.o" for name, build, _ in units]
        commands = []
        for (name, build, flags), made in zip(units, objects, strict=True):
            define = [f"-DBUILD={build.replace('-', '_')}"] if build else []
            commands.append(
                [*compiler, *flags.split(), *define, "-c", str(FOLDER / f"{name}.c"), "-o", made]
            )
        with ThreadPoolExecutor() as several:
            list(several.map(_run, commands))
        made = f"{folder}/{LIBRARY.name}"
        _run([*compiler, "-shared", "-s", *objects, "-o", made])
        beside = LIBRARY.with_suffix(".new")
        shutil.copy(made, beside)
        beside.replace(LIBRARY)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    used = build()
    print(
        f"{LIBRARY}, by {' '.join(used)}"
        if used
        else "No kernels: there is no compiler; pip install ziglang"
    )
    sys.exit(used is None)
