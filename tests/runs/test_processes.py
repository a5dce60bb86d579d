"""Processes that were started by hand, without torchrun's agent: a mistake of the first one is one
sentence of each."""

from __future__ import annotations

import subprocess
import sys

import pytest

from folders import write_json
from many import environment, free_port

START = """
import sys
from glassformer.scale import mesh
mesh.START = float(sys.argv.pop(1))
from glassformer.cli import main
sys.exit(main(sys.argv[1:]))
"""
SETTINGS = ["--decoder.depth", "2", "--context", "24", "--data.tokenizer", "char"]


def stderr_of_both(folder, *settings, first=(), patience=60):
    """Standard error of two processes, each of which has to end with 2."""
    words = [
        "train",
        "--recipe",
        "glass/200k",
        "--data.train",
        "text.txt",
        "--out",
        "out",
        *SETTINGS,
        *settings,
    ]
    port = free_port()
    started = []
    for rank in range(2):
        env = environment(rank, 2, port)
        env.pop("TORCHELASTIC_RUN_ID", None)
        command = [sys.executable, "-c", START, str(patience)]
        command += [*words, *(first if rank == 0 else ())]
        started.append(
            subprocess.Popen(command, env=env, cwd=folder, stderr=subprocess.PIPE, text=True)
        )
    written = [process.communicate(timeout=100)[1] for process in started]
    assert [process.returncode for process in started] == [2, 2], written
    return written


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "text.txt").write_text("abc")  # too short for one context
    return tmp_path


def sentences(written):
    """The lines that speak of a mistake; nothing may look like a traceback."""
    assert "Traceback" not in written and "frame #" not in written and "File " not in written, (
        written
    )
    return [
        line.removeprefix("glassformer: ")
        for line in written.splitlines()
        if line.startswith("glassformer: ")
    ]


@pytest.mark.parametrize(
    "settings, mistake",
    [
        # before they look for each other
        (["--parallel.tensor", "3"], "2 processes cannot be divided by tensor 3"),
        # which both hear of
        (["--parallel.pipeline", "2", "--parallel.data", "1"], "holds a run already"),
        # in the first one's turn, while the other waits
        (["--out", "new"], "text.txt holds 3 tokens, too few"),
    ],
)
def test_a_mistake_of_the_first_is_a_sentence_of_each(folder, settings, mistake):
    (folder / "out").mkdir()
    write_json(folder / "out" / "run.json", {})
    item, second = (sentences(written) for written in stderr_of_both(folder, *settings))
    assert len(item) == 1
    assert mistake in item[0]
    assert second == item


def test_a_first_process_that_ends_before_it_listens_is_a_sentence_of_the_other(folder):
    item, second = (
        sentences(written)
        for written in stderr_of_both(
            folder, "--parallel.timeout", "3", first=["--steps", "0"], patience=3
        )
    )
    assert item == ["train.steps is 0; give a number above 0."]
    assert len(second) == 1
    assert "did not find each other" in second[0]
    assert "its own message says why" in second[0]
