"""The repository speaks of the project, not of those who worked on it or when."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Words of the work, and dates of it. Digits are a class so that this file does not speak of itself.
WORK = re.compile(
    r"\b(lab book|stranger's list|architect\b(?!ure)|helpers? beside|issues? \d+|session "
    r"\d+|2026-\d\d-\d\d|\d\d:\d\d:\d\d by the|on (this|that) day|what issues|readers "
    r"found)\b",
    re.I,
)


def test_no_page_speaks_of_the_work():
    listed = subprocess.run(
        [
            "git",
            "ls-files",
            "*.md",
            "*.py",
            "*.c",
            "*.h",
            "*.toml",
            "Makefile",
            "*.ipynb",
            "*.ts",
            "*.tsx",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("needs a checkout: git lists its files")
    for name in set(listed.stdout.split()) - {"tests/test_words.py"}:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not (results := WORK.search(text)), (
            f"{name} speaks of the work: {results and results[0]}"
        )
