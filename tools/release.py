"""Builds what is released, checks it in clean environments, and writes the notes.

    python tools/release.py --out dist

An sdist and a wheel are built. Each is installed in an environment of its own, where the command
line prints its version and the small model generates, and where kernels must be as the wheel's tag
says. The notes are the part of CHANGELOG.md about this version. A wheel is for the machine that
builds it: run this on Linux x86-64 and aarch64 and on macOS arm64 (.github/workflows/test.yml).
Needs hatchling, and ziglang on Linux x86-64.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


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

        run("pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), *pip_args, str(package))
        assert run("glassformer", "--version").strip() == f"glassformer {version}"
        assert run("glassformer", "generate", "tiny", "O Romeo,", "--max-new", "4").strip()
        doctor = run("glassformer", "doctor")
        print(f"{package.name}: installed and used; {re.search('kernels .*', doctor)[0]}")


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
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", out], cwd=ROOT, check=True)
    for package in sorted(out.glob("glassformer-*")):
        check(package, version, shlex.split(args.pip_args))
    (out / "NOTES.md").write_text(text, encoding="utf-8")
    print(f"{out} holds what is released, and NOTES.md.")


if __name__ == "__main__":
    main()
