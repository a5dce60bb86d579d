"""Tokenising in threads, stopped anywhere and gone on with, leaves the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from data.test_corpus import Bytes, jsonl, write
from glassformer.formats.data import tokenise, tokenising
from glassformer.formats.data.catalog import find
from glassformer.formats.tokenizer_files import open as open_tokenizer
from mistakes import mistake


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(tokenising, "BATCH", 2000)
    monkeypatch.setattr(tokenising, "JOURNAL_EVERY", 0.0)


def corpus(folder):
    """Three files of three kinds, with a long document and empty ones."""
    words = [f"{n} wörds of document {n * n}" for n in range(40)]
    jsonl(folder / "a.jsonl", [" ".join(words[: n % 40]) for n in range(200)])
    write(folder / "b.txt", "\n".join(words * 200))
    jsonl(folder / "c.jsonl", ["", "end", "", " ".join(words * 3)])
    return find(folder)


BATCHES = 44  # of this corpus


def cache_files(cache):
    """Files of the only entry of a cache."""
    (folder,) = cache.glob("[!.]*")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def full_files(tmp_path):
    record = tmp_path / "all calls"
    tokenise(corpus(tmp_path / "text"), Bytes(bos=257, record=record), cache=tmp_path / "whole")
    assert len(record.read_text().split()) == BATCHES
    return cache_files(tmp_path / "whole")


class Stopped(Bytes):
    """Ends the work at the n-th batch it is asked for."""

    def __init__(self, after, error):
        super().__init__(bos=257)
        self.left, self.error = after, error

    def encode_batch(self, texts):
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().encode_batch(texts)


@pytest.mark.parametrize("after", [0, 1, 2, 5, 20, 40, BATCHES - 1])
def test_stopped_anywhere_it_goes_on_to_the_same_bytes(tmp_path, full_files, after, capsys):
    source = find(tmp_path / "text")
    cache = tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        tokenise(source, Stopped(after, KeyboardInterrupt), cache=cache, workers=1)
    assert list(cache.glob("[!.]*")) == []
    assert ("The next start continues from here" in capsys.readouterr().err) == (after > 0)
    record = tmp_path / "calls"
    tokenise(source, Bytes(bos=257, record=record), cache=cache, workers=1)
    assert cache_files(cache) == full_files
    assert len(record.read_text().split()) == BATCHES - after  # nothing is tokenised twice
    assert [path.name for path in cache.iterdir() if path.name.endswith(".work")] == []


def test_what_lies_behind_the_journal_is_cut_off_and_a_journal_ahead_of_the_files_is_not_believed(
    tmp_path, full_files
):
    source = find(tmp_path / "text")
    for number, (name, change) in enumerate(
        [
            ("tokens.bin", lambda raw: raw + b"more that was not journalled"),
            ("starts.bin", lambda raw: raw + b"12345678"),
            ("tokens.bin", lambda raw: raw[:-1]),
            ("marks.bin", lambda raw: b""),
            ("journal.json", lambda raw: raw[:-5]),
            ("journal.json", lambda raw: b'{"file_index": 1, "other": 2}'),
        ]
    ):
        cache = tmp_path / f"cache{number}"
        with pytest.raises(KeyboardInterrupt):
            tokenise(source, Stopped(30, KeyboardInterrupt), cache=cache, workers=1)
        (work,) = cache.glob(".*.work")
        (work / name).write_bytes(change((work / name).read_bytes()))
        (work / ".journal.json.x.part").touch()  # killed while it wrote one
        tokenise(source, Bytes(bos=257), cache=cache)
        assert cache_files(cache) == full_files, (name, number)


def test_what_was_done_of_a_broken_corpus_is_removed(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "some words"}\n' * 3000 + "{\n")
    with mistake("line 3001"):
        tokenise(find(path), Bytes(), cache=tmp_path / "cache", workers=1)
    assert [
        entry.name for entry in (tmp_path / "cache").iterdir() if not entry.name.endswith(".lock")
    ] == []


CHILD = """
import sys
from pathlib import Path
from glassformer.formats.data import find, tokenise, tokenising
from glassformer.formats.tokenizer_files import open
tokenising.BATCH, tokenising.JOURNAL_EVERY = 2000, 0.0
tokenise(find(Path(sys.argv[1])), open(sys.argv[2]), cache=Path(sys.argv[3]), workers=2)
"""


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on(tmp_path, shared_data):
    source = corpus(tmp_path / "text")
    gpt2 = shared_data / "tok-gpt2"
    tokenise(source, open_tokenizer(gpt2), cache=tmp_path / "whole")
    cache = tmp_path / "cache"
    for journals in (3, 9):
        args = [sys.executable, "-c", CHILD, str(tmp_path / "text"), str(gpt2), str(cache)]
        child = subprocess.Popen(args, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        until = time.monotonic() + 120
        observed = set[str]()
        while len(observed) < journals and child.poll() is None and time.monotonic() < until:
            observed |= {path.read_text() for path in cache.glob(".*.work/journal.json")}
        child.kill()
        assert child.wait() == -signal.SIGKILL
    tokenise(source, open_tokenizer(gpt2), cache=cache)
    assert cache_files(cache) == cache_files(tmp_path / "whole")
    assert np.frombuffer(cache_files(cache)["tokens.bin"], np.uint16).size > 10_000
