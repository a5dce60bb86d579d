"""The runs of docs/chat-in-an-hour.md and benchmarks/chat.py: the sums are parted, the page has every
command, and the runs go one from another at a tiny size."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from folders import read_rows

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "chat-in-an-hour.md").read_text(encoding="utf-8")
STORY = (
    "Once upon a time there was a dog named Tim. Tim said 12 words and was happy. {} dogs ran.\n"
)


@pytest.fixture(scope="module")
def chat():
    """benchmarks/chat.py as a module."""
    spec = importlib.util.spec_from_file_location("chat_benchmark", ROOT / "benchmarks" / "chat.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_part_of_the_sums_has_a_pair_of_another_in_any_order(chat):
    pairs = [{frozenset(q.split("+")) for q in split} for split in chat.sums()]
    assert not (pairs[0] & pairs[1] or pairs[0] & pairs[2] or pairs[1] & pairs[2])
    questions = [q for split in chat.sums() for q in split]
    assert len(questions) == len({*questions}) == 90 * 90
    assert all(eval(q) == int(chat.answer(q)) for q in questions)


def test_the_page_has_every_command(chat):
    for command in chat.COMMANDS.values():
        words = command.replace("RUNS/", "runs/").split()
        line = " ".join(f"'{word}'" if "<" in word else word for word in words)
        assert f"\nglassformer {line}\n" in PAGE.replace(" \\\n    ", " ")


def test_a_dialogue_is_of_two_people_in_turns(chat, shared_data, monkeypatch):
    monkeypatch.setenv("GLASSFORMER_DATA", str(shared_data))
    dialogues = [*chat.dialogues()]
    assert len(dialogues) == 2 * 494  # of 1,000, as counted by another program
    assert dialogues[0][0] == "Hello, how are you doing today?"


def test_the_runs_go_one_from_another(chat, tmp_path, monkeypatch, terminal):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(chat, "dialogues", lambda: [["Hi Tim.", "Hello dog.", "Bye."]])
    monkeypatch.setattr(chat, "stories", lambda: iter([("Tell me a story.", STORY.format(3))] * 4))
    chat.write_data()
    Path("stories.txt").write_text("".join(map(STORY.format, range(10, 300))), encoding="utf-8")
    small = "--steps 2 --batch 2 --train.context 64 --evaluate_every 2 --evaluate_batches 1"
    sizes = {"base": "--recipe glass/200k --data.train stories.txt", "sums": "--objective.group 2"}
    for name, command in chat.COMMANDS.items():
        words = command.replace("RUNS", str(chat.RUNS)).replace("tinystories", "stories.txt")
        words = words.replace("4096", "330").replace("<", "'<").replace(">", ">'")
        options = f"{small} {sizes.get(name, '')}" if name != "tokenizer" else ""
        terminal(f"{words} {options}")
    assert 0 <= chat.accuracy("sums", "test") <= 1
    log = read_rows(Path("out/chat/sums/log.jsonl"))
    assert {"reward", "length", "clipped"} <= log[-1].keys()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_benchmark_goes_to_its_tables(tmp_path, shared_data):
    environment = {**os.environ, "GLASSFORMER_DATA": str(shared_data)}
    command = [sys.executable, str(ROOT / "benchmarks" / "chat.py"), "--steps", "3"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    for row in ("| base | 3 |", "| talk | 3 |", "| sums | 3 |", "| test | 0.0% | 0.0% |"):
        assert row in ended.stdout
