"""Tokenising in threads or processes, stopped anywhere and gone on with, leaves the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.test_corpus import Bytes, jsonl, write
from glassformer.core.data import tokenise, tokenising, workers
from glassformer.core.data.corpus import Source
from glassformer.core.data.registry import find
from glassformer.core.data.workers import WorkerLost
from glassformer.core.errors import UserError
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats.tokenizer_files import open as open_tokenizer


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenising, "BATCH", 2000)
    monkeypatch.setattr(tokenising, "JOURNAL_EVERY", 0.0)


def corpus(folder: Path) -> Source:
    """Three files of three kinds, with a long document and empty ones."""
    words = [f"{n} wörds of document {n * n}" for n in range(40)]
    jsonl(folder / "a.jsonl", [" ".join(words[: n % 40]) for n in range(200)])
    write(folder / "b.txt", "\n".join(words * 200))
    jsonl(folder / "c.jsonl", ["", "end", "", " ".join(words * 3)])
    return find(folder)


BATCHES = 44  # of this corpus


def cache_files(cache: Path) -> dict[str, bytes]:
    """Files of the only entry of a cache."""
    (folder,) = cache.glob("[!.]*")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def full_files(tmp_path: Path) -> dict[str, bytes]:
    record = tmp_path / "all calls"
    tokenise(corpus(tmp_path / "text"), Bytes(bos=257, record=record), cache=tmp_path / "whole")
    assert len(record.read_text().split()) == BATCHES
    return cache_files(tmp_path / "whole")


class Stopped(Bytes):
    """Ends the work at the n-th batch it is asked for."""

    def __init__(self, after: int, error: type[BaseException]) -> None:
        super().__init__(bos=257)
        self.left, self.error = after, error

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().encode_batch(texts)


@pytest.mark.parametrize("after", [0, 1, 2, 5, 20, 40, BATCHES - 1])
def test_stopped_anywhere_it_goes_on_to_the_same_bytes(
    tmp_path: Path, full_files: dict[str, bytes], after: int, capsys: pytest.CaptureFixture[str]
) -> None:
    source, cache = find(tmp_path / "text"), tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        tokenise(source, Stopped(after, KeyboardInterrupt), cache=cache, workers=1)
    assert list(cache.glob("[!.]*")) == []
    assert ("asked for again, it goes on" in capsys.readouterr().err) == (after > 0)
    record = tmp_path / "calls"
    tokenise(source, Bytes(bos=257, record=record), cache=cache, workers=1)
    assert cache_files(cache) == full_files
    assert len(record.read_text().split()) == BATCHES - after  # nothing is tokenised twice
    assert [path.name for path in cache.iterdir() if path.name.endswith(".work")] == []


def test_what_lies_behind_the_journal_is_cut_off_and_a_journal_ahead_of_the_files_is_not_believed(
    tmp_path: Path, full_files: dict[str, bytes]
) -> None:
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


def test_what_was_done_of_a_broken_corpus_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "some words"}\n' * 3000 + "{\n")
    with pytest.raises(UserError, match="line 3001"):
        tokenise(find(path), Bytes(), cache=tmp_path / "cache", workers=1)
    assert [
        entry.name for entry in (tmp_path / "cache").iterdir() if not entry.name.endswith(".lock")
    ] == []


# ---------------------------------------------------------------------------------- processes

KINDS = ["tok-gpt2", "tok-llama2/tokenizer.model", "tok-t5", "tok-bert-uncased"]


@pytest.mark.parametrize("kind", KINDS)
def test_processes_write_what_threads_write(tmp_path: Path, shared_data: Path, kind: str) -> None:
    tokenizer, source = open_tokenizer(shared_data / kind), corpus(tmp_path / "text")
    tokenise(source, tokenizer, cache=tmp_path / "threads", workers=2, processes=0)
    tokenise(source, tokenizer, cache=tmp_path / "processes", processes=2)
    assert cache_files(tmp_path / "threads") == cache_files(tmp_path / "processes")


def test_the_number_of_processes_may_stand_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, totals = find(write(tmp_path / "a.txt", "some text")), list[int]()

    def noted(tokenizer: Any, characters: int, count: int) -> Any:
        totals.append(count)
        return contextlib.nullcontext(workers.encoder_of(tokenizer, characters))

    monkeypatch.setattr(tokenising, "encoder_by_processes", noted)
    tokenise(source, Bytes(), cache=tmp_path / "0")
    monkeypatch.setenv("GLASSFORMER_PROCESSES", "3")
    tokenise(source, Bytes(), cache=tmp_path / "3")
    assert totals == [3]
    monkeypatch.setenv("GLASSFORMER_PROCESSES", "many")
    with pytest.raises(UserError, match="GLASSFORMER_PROCESSES is many"):
        tokenise(source, Bytes(), cache=tmp_path / "many")


def test_what_a_tokenizer_refuses_in_a_process_is_told(tmp_path: Path) -> None:

    tokenizer = train_tokenizer("char", ["only these\n"], None)
    source = find(write(tmp_path / "a.txt", "only these\n" * 5000 + "ß"))
    with pytest.raises(UserError, match="ß") as caught:
        tokenise(source, tokenizer, cache=tmp_path / "cache", processes=2)
    assert not isinstance(caught.value, WorkerLost)


def test_a_worker_that_is_killed_is_told_and_the_work_goes_on(
    tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, source = open_tokenizer(shared_data / "tok-gpt2"), corpus(tmp_path / "text")
    tokenise(source, tokenizer, cache=tmp_path / "whole")
    real, calls = workers._Worker.encode, list[int]()

    def fatal(self: Any, texts: Any, opens: Any) -> Any:
        calls.append(self.process.pid)
        if len(calls) == 30:
            os.kill(self.process.pid, signal.SIGKILL)
        return real(self, texts, opens)

    monkeypatch.setattr(workers._Worker, "encode", fatal)
    with pytest.raises(WorkerLost, match="was ended"):
        tokenise(source, tokenizer, cache=tmp_path / "cache", processes=2)
    for pid in set(calls):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)  # none is left behind
    (work,) = (tmp_path / "cache").glob(".*.work")
    assert json.loads((work / "journal.json").read_text())["tokens"] > 0
    tokenise(source, tokenizer, cache=tmp_path / "cache", processes=1)
    assert cache_files(tmp_path / "cache") == cache_files(tmp_path / "whole")


CHILD = """
import sys
from pathlib import Path
from glassformer.core.data import find, tokenise, tokenising
from glassformer.formats.tokenizer_files import open
tokenising.BATCH, tokenising.JOURNAL_EVERY = 2000, 0.0
tokenise(find(Path(sys.argv[1])), open(sys.argv[2]), cache=Path(sys.argv[3]), processes=2)
"""


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on_and_no_process_is_left(
    tmp_path: Path, shared_data: Path
) -> None:
    source, gpt2 = corpus(tmp_path / "text"), shared_data / "tok-gpt2"
    tokenise(source, open_tokenizer(gpt2), cache=tmp_path / "whole")
    cache = tmp_path / "cache"
    for journals in (3, 9):
        args = [sys.executable, "-c", CHILD, str(tmp_path / "text"), str(gpt2), str(cache)]
        child = subprocess.Popen(args, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        until, observed = time.monotonic() + 120, set[str]()
        while len(observed) < journals and child.poll() is None and time.monotonic() < until:
            observed |= {path.read_text() for path in cache.glob(".*.work/journal.json")}
        family = [
            int(pid)
            for pid in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        ]
        child.kill()
        assert child.wait() == -signal.SIGKILL and len(family) == 2
        until = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in family) and time.monotonic() < until:
            time.sleep(0.02)
        assert not any(Path(f"/proc/{pid}").exists() for pid in family)
    tokenise(source, open_tokenizer(gpt2), cache=cache)
    assert cache_files(cache) == cache_files(tmp_path / "whole")
    assert np.frombuffer(cache_files(cache)["tokens.bin"], np.uint16).size > 10_000
