"""docs/time.md shows what the program prints: its run is trained and its commands are run in order."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer.cli import main
from test_sight import close

PAGE = (Path(__file__).parents[1] / "docs/time.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```\n\$ (glassformer [^\n]*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SETUP = re.search(r"((?:^    .*\n)+)", PAGE, re.MULTILINE)[1].replace("\\\n", " ").splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, (text, training) = tmp_path_factory.mktemp("time"), SETUP
    with (folder / "squares.txt").open("w") as out:
        subprocess.run([sys.executable, *shlex.split(text)[1:3]], stdout=out, check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(shlex.split(training)[1:]) == 0
    return folder


def run(blocks, capsys):
    for command, output in blocks:
        if "out/" not in command:
            assert main(shlex.split(command)[1:]) == 0
            printed = capsys.readouterr()
            close((printed.err if "--at" in command else "") + printed.out, output)


def test_the_page(folder, monkeypatch, capsys):
    """In order: what is replayed once is a line of later tables."""
    monkeypatch.chdir(folder)
    run((block for block in BLOCKS if "--influence" not in block[0]), capsys)


@pytest.mark.slow
def test_influence(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    run((block for block in BLOCKS if "--influence" in block[0]), capsys)


def test_the_page_has_its_commands():
    assert [block[0].split()[1] for block in BLOCKS] == [
        "train",
        "why",
        "why",
        "heads",
        "heads",
        "why",
    ]
