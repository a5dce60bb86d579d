"""Plants the bugs of ``mutants.md`` one at a time in a copy of the tree, and tells which ones live.

    python tests/mutate.py [WORD ...] [--check]

WORDs choose the rows that contain one of them; ``--check`` only looks whether every old text is still there. A row of a
table there is ``| file: function | what is wrong | `old` => `new` | tests |``: the first ``old`` after the line that
defines the function (``def name`` or ``class name``; none: from the top) becomes ``new``; the tests are pytest's words,
quoted as in a shell. Rows without ``=>`` are sentences. Exit 1 when a bug lives or cannot be planted any more.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
import torch  # noqa: F401  for all that follow

ROOT = Path(__file__).parents[1]
SOURCE = Path("src/glassformer")


class Mutant(NamedTuple):
    """One planted bug: where, what is wrong, the texts, and the tests that must fail."""

    file: Path
    function: str
    bug: str
    old: str
    new: str
    tests: list[str]


def mutants(text: str) -> list[Mutant]:
    """The rows of the tables that can be planted; ``\\|`` stands for ``|``."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        change = re.fullmatch(r"`(.+)` => (?:`(.*)`|nothing)", cells[2]) if len(cells) == 4 else None
        if change is not None:
            file, _, function = cells[0].strip("`").partition(": ")
            found.append(
                Mutant(SOURCE / file, function, cells[1], change[1], change[2] or "", shlex.split(cells[3].strip("`")))
            )
    return found


def planted(mutant: Mutant, text: str) -> str | None:
    """The file with the bug in it; None where the old text is not there."""
    start = 0
    for name in filter(None, mutant.function.split(".")):
        where = re.compile(rf"^\s*(?:def|class) {name}\b", re.MULTILINE).search(text, start)
        if where is None:
            return None
        start = where.end()
    place = text.find(mutant.old, start)
    return None if place < 0 else text[:place] + mutant.new + text[place + len(mutant.old) :]


def lives(mutant: Mutant, tree: Path) -> bool:
    """Whether all of its tests pass with it; in a process of its own, which finds torch imported already."""
    paths = [f"tests/{part}" if part.endswith(".py") else part for part in mutant.tests]
    child = os.fork()
    if child == 0:
        told = os.open(tree / "told", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(told, 1)
        os.dup2(told, 2)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree / "src")
        sys.path[:0] = [str(tree / "src")]
        os._exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *paths]))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, 1):
        print((tree / "told").read_text()[-1500:])
    return code != 1


def main(words: list[str]) -> int:
    check, words = "--check" in words, [word for word in words if word != "--check"]
    chosen = [
        one
        for one in mutants((ROOT / "tests/mutants.md").read_text())
        if not words or any(w in str(one) for w in words)
    ]
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in ("src", "tests", "runs", "docs", "benchmarks"):
            shutil.copytree(ROOT / name, tree / name)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, tree / name)
        for mutant in chosen:
            text = (ROOT / mutant.file).read_text()
            changed = planted(mutant, text)
            if changed is not None and not check:
                (tree / mutant.file).write_text(changed)
            told = "is not there" if changed is None else "" if check else "LIVES" if lives(mutant, tree) else "caught"
            (tree / mutant.file).write_text(text)
            bad += told in ("is not there", "LIVES")
            if told:
                print(f"{told:13} {mutant.file.name}: {mutant.function}: {mutant.bug}", flush=True)
    print(f"{len(chosen)} bugs, {bad} to look at")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
