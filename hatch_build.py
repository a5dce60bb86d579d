"""Compiles the kernels of ``fast/kernels`` when the package is built, and in a clone: python
hatch_build.py

The compiler is ziglang from PyPI, which needs nothing else, or cc, gcc or clang. Where there is
none, or none works, the package is built without them, for any platform: it computes with torch's
operators, as `glassformer doctor` says. A library that the same compiler made of the same sources
is taken as it lies. ziglang compiles for other machines as well: GLASSFORMER_TARGET=macos-arm64
python -m hatchling build -t wheel makes their wheel here.
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
from typing import Any, NamedTuple

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # a clone whose environment has no hatchling
    BuildHookInterface = object  # type: ignore[assignment,misc]

FOLDER = Path(__file__).parent / "src" / "glassformer" / "fast" / "kernels"
CROSS = Path(__file__).parent / "out" / "kernels"  # libraries for other machines
VNNI = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c"
X86 = {
    "avx2": "-mavx2 -mfma -mf16c",
    "avx512-vnni": VNNI,
    "avx512-vnni-bf16": f"{VNNI} -mavx512bf16",
}
ARM = {
    "neon": "-mcpu=generic",
    "neon-dotprod": "-mcpu=generic+dotprod",
    "neon-i8mm-bf16": "-mcpu=generic+dotprod+i8mm+bf16",
}
KERNELS = ("int8", "int4", "bf16", "fp32", "paged", "stack")
COMMON = ("pool", "processor")
FLAGS = "-O3 -std=gnu11 -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -Wall"
GLIBC = "2.17"  # the oldest Linux that a wheel compiled by zig runs on
MACOS = "11.0"  # the first that runs on ARM64
PURE = "GLASSFORMER_PURE_WHEEL"  # set: a wheel without kernels, for any platform
TARGET = "GLASSFORMER_TARGET"  # set: a wheel for this machine of TARGETS


class Target(NamedTuple):
    """A kind of machine: its name for zig, its builds with their flags, the tags of a wheel that
    zig compiled and of one that the system's compiler did."""

    zig: str
    builds: dict[str, str]
    tag: str
    own_tag: str
    library: str = "libkernels.so"


_MANYLINUX = f"manylinux_{GLIBC.replace('.', '_')}"
TARGETS = {
    "linux-x86_64": Target(
        f"x86_64-linux-gnu.{GLIBC}", X86, f"{_MANYLINUX}_x86_64", "linux_x86_64"
    ),
    "linux-aarch64": Target(
        f"aarch64-linux-gnu.{GLIBC}", ARM, f"{_MANYLINUX}_aarch64", "linux_aarch64"
    ),
    "macos-arm64": Target(
        f"aarch64-macos.{MACOS}", ARM, "macosx_11_0_arm64", "macosx_11_0_arm64", "libkernels.dylib"
    ),
}


class Kernels(BuildHookInterface):  # type: ignore[misc]
    """Hatchling's hook: the wheel gets the library, and the platform's tag; the sdist the sources
    alone."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel is put together; an editable one finds the library in
        ``src``."""
        if self.target_name != "wheel" or os.environ.get(PURE):
            return
        target = os.environ.get(TARGET, "") or machine()
        compiler = build(target)
        if compiler is None:
            if os.environ.get(TARGET):
                raise SystemExit(f"No kernels for {target}: pip install ziglang")
            self.app.display_warning(
                "Glassformer is built without compiled kernels; it computes with torch's operators."
            )
        elif version != "editable":
            library = library_of(target)
            inside = FOLDER.relative_to(Path(self.root) / "src") / library.name
            build_data["force_include"][str(library)] = str(inside)
            build_data["pure_python"] = False
            made = TARGETS[target]
            build_data["tag"] = f"py3-none-{made.tag if 'ziglang' in compiler else made.own_tag}"


def machine() -> str:
    """The name of this machine in TARGETS, or one that is not there."""
    system = {"linux": "linux", "darwin": "macos"}.get(sys.platform, sys.platform)
    return f"{system}-{platform.machine()}"


def library_of(target: str) -> Path:
    """Where the library for a machine lies; for this one, beside its sources. A stamp of what it
    was compiled from lies beside it."""
    folder = FOLDER if target == machine() else CROSS / target
    return folder / TARGETS[target].library


def compilers(target: str) -> list[list[str]]:
    """Commands that compile C for a machine, the first choice first."""
    zig = [[sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[target].zig]]
    return zig * (importlib.util.find_spec("ziglang") is not None) + [
        [name] for name in ("cc", "gcc", "clang") if target == machine() and shutil.which(name)
    ]


def build(target: str | None = None) -> list[str] | None:
    """Compile the library for a machine, or this one, with the first compiler that can; its
    command, or None where none did."""
    target = target or machine()
    if target not in TARGETS:
        return None
    library = library_of(target)
    library.parent.mkdir(parents=True, exist_ok=True)
    stamp = library.with_suffix(".stamp")
    for compiler in compilers(target):
        try:
            if (
                library.exists()
                and stamp.exists()
                and stamp.read_text() == _stamp(compiler, library)
            ):
                return compiler
            _compile(compiler, TARGETS[target].builds, library)
            stamp.write_text(_stamp(compiler, library))
            return compiler
        except (OSError, subprocess.CalledProcessError) as error:
            told = getattr(error, "stderr", "") or str(error)
            print(
                f"{' '.join(compiler)} could not compile the kernels: {told.strip()[-600:]}",
                file=sys.stderr,
            )
    return None


def _stamp(compiler: list[str], library: Path) -> str:
    """The digest of sources, flags, compiler and library. A path in pip's isolation has other
    folders each time, so the compiler counts by what it prints as its version."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout
    digest = hashlib.sha256(version.partition(b"InstalledDir")[0])
    sources = sorted([*FOLDER.glob("*.[ch]"), Path(__file__)])
    for path in [*sources, *([library] if library.exists() else [])]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest() + "\n"


def _compile(compiler: list[str], builds: dict[str, str], library: Path) -> None:
    """The library, whole or not at all."""
    with tempfile.TemporaryDirectory() as folder:
        made = f"{folder}/{library.name}"
        _run([*compiler, "-shared", "-s", *objects(compiler, builds, folder), "-o", made])
        beside = library.with_suffix(".new")
        shutil.copy(made, beside)
        beside.replace(library)


def objects(compiler: list[str], builds: dict[str, str], folder: str) -> list[str]:
    """Compiles every source for every build into a folder; the paths of what was made."""
    units = [(name, "", FLAGS) for name in COMMON]
    units += [
        (kernel, build, f"{FLAGS} {flags}") for build, flags in builds.items() for kernel in KERNELS
    ]
    paths = [f"{folder}/{name}.{build}.o" for name, build, _ in units]
    commands = []
    for (name, build, flags), made in zip(units, paths, strict=True):
        define = [f"-DBUILD={build.replace('-', '_')}"] if build else []
        commands.append(
            [*compiler, *flags.split(), *define, "-c", str(FOLDER / f"{name}.c"), "-o", made]
        )
    with ThreadPoolExecutor() as several:
        list(several.map(_run, commands))
    return paths


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    target = sys.argv[1] if sys.argv[1:] else machine()
    compiler = build(target)
    print(
        f"{library_of(target)}, by {' '.join(compiler)}"
        if compiler
        else f"No kernels: no compiler for {target}; pip install ziglang"
    )
    sys.exit(compiler is None)
