"""Builds what is released, checks it in clean environments, and writes the notes.

    python tools/release.py --out dist

An sdist and four wheels are built: for Linux x86-64, Linux aarch64 and macOS arm64 with compiled
kernels, by zig on any of them, and one for any other platform, which computes with torch's
operators. pip takes the first that fits. Each package that this machine can run is installed in an
environment of its own, where the command line prints its version, the small model generates, and
kernels are as the wheel's tag says. The notes are the part of CHANGELOG.md about this version.
Needs hatchling and ziglang.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from hatch_build import PURE, TARGET, TARGETS, machine  # noqa: E402


def notes(version: str) -> str:
    """The part of CHANGELOG.md about a version."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    match = re.search(rf"^## {re.escape(version)}\n(.*?)(?=^## |\Z)", text, re.S | re.M)
    if match is None:
        sys.exit(f"CHANGELOG.md has no part about {version}; write one.")
    return match[1].strip() + "\n"


def check(package: Path, version: str, pip_args: list[str]) -> None:
    """Installs a package in a new environment and uses it, away from the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        programs = Path(folder) / "bin"

        def run(*words: str) -> str:
            command = [str(programs / words[0]), *words[1:]]
            return subprocess.run(
                command, cwd=folder, check=True, text=True, stdout=subprocess.PIPE
            ).stdout

        # an sdist is built by what is pinned, not by what pip would fetch for it
        build = ["--no-deps", "--require-hashes", "-r", str(ROOT / "requirements/build.txt")]
        run("pip", "install", "-q", *pip_args, *build)
        pinned = ["--no-build-isolation", "-c", str(ROOT / "constraints.txt")]
        run("pip", "install", "-q", *pip_args, *pinned, str(package))
        assert run("glassformer", "--version").strip() == f"glassformer {version}"
        assert run("glassformer", "generate", "tiny", "O Romeo,", "--max-new", "4").strip()
        doctor = run("glassformer", "doctor")
        kernels = re.search(r"kernels\s+(\S+)", doctor)[1]
        assert "none-any" not in package.name or kernels == "torch", kernels
        print(f"{package.name}: installed and used; kernels: {kernels}")


def main() -> None:
    """Builds, checks, and writes dist/NOTES.md."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--pip-args", default="", help="for pip, such as an index of CPU wheels")
    args = parser.parse_args()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    text = notes(version)
    out = args.out.resolve()
    for old in out.glob("glassformer-*"):
        old.unlink()
    hatchling = [sys.executable, "-m", "hatchling", "build", "-d", out]
    subprocess.run([*hatchling, "-t", "sdist"], cwd=ROOT, check=True)
    for variable, value in ((PURE, "1"), *((TARGET, name) for name in TARGETS)):
        environment = {**os.environ, variable: value}
        subprocess.run([*hatchling, "-t", "wheel"], cwd=ROOT, check=True, env=environment)
    foreign = [target.tag for name, target in TARGETS.items() if name != machine()]
    for package in sorted(out.glob("glassformer-*")):
        if not any(tag in package.name for tag in foreign):
            check(package, version, shlex.split(args.pip_args))
    (out / "NOTES.md").write_text(text, encoding="utf-8")
    print(f"{out} holds what is released, and NOTES.md.")


if __name__ == "__main__":
    main()
