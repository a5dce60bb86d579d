"""A corpus written as tokens: read once, in order, tokenised in threads or processes; stopped, it
is gone on with.

Every ``JOURNAL_EVERY`` seconds what is written is pushed to the disk, and a journal beside it says
how far that is. Whoever asks for the same corpus again cuts the files back to there, passes over
the text that was read, and goes on: the files are, byte for byte, what they would have been.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .. import files
from ..errors import UserError, need, note
from ..threads import cores
from ..tokenizer.framing import document_start
from ..tokenizer.library import pool
from ..tokenizer.tokenizer import Tokenizer
from .corpus import Source, TextPiece, cache_lock
from .shards import Shards, TokenizedCorpus
from .workers import Array, Encode, WorkerLost, encoder_by_processes, encoder_of

Progress = Callable[[int, int], None]  # bytes of the files read, bytes there are

FORMAT = 2
MAPPED = ("tokens.bin", "starts.bin", "marks.bin")
JOURNAL = "journal.json"
JOURNAL_EVERY = 20.0  # seconds
BATCH = 1 << 17  # characters tokenised at a time by one thread or process


@dataclass
class _Position:
    """Progress of the work: file of the corpus, pieces read of it, and sizes written."""

    file_index: int = 0
    pieces: int = 0
    tokens: int = 0
    bytes: int = 0
    documents: int = 0
    marks: int = 0
    start: int = 0  # of the document that is open, in tokens
    opening: bool = True  # whether the next piece opens one

    def sizes(self, width: int) -> tuple[int, int, int]:
        """Bytes of the three files."""
        return self.tokens * width, self.documents * 8, self.marks * 16


def make(
    folder: Path,
    source: Source,
    tokenizer: Tokenizer,
    workers: int | None,
    processes: int | None,
    progress: Progress | None,
) -> None:
    """Fill ``folder``, which appears when it is whole, or go on with what was begun; the caller
    holds its lock.

    Raises UserError for an empty corpus, a full disk and whatever ``source`` finds wrong with its
    files.
    """
    work = folder.with_name(f".{folder.name}.work")
    if processes is None:
        setting = os.environ.get("GLASSFORMER_PROCESSES", "0")
        need(
            setting.isdecimal(),
            f"GLASSFORMER_PROCESSES is {setting}; give a number of processes, or 0 for threads.",
        )
        processes = int(setting)
    threads = processes or workers or cores()
    with contextlib.ExitStack() as opened, files.explain_errors(folder):
        work.mkdir(parents=True, exist_ok=True)
        try:
            if processes:
                encode = opened.enter_context(
                    encoder_by_processes(tokenizer, source.size, processes)
                )
            else:
                encode = encoder_of(tokenizer, source.size)
            with pool(threads) as threaded:
                _write(
                    work, source, tokenizer, _in_order(threaded.submit, encode, threads), progress
                )
        except BaseException as error:
            # mended, it is another corpus
            broken = isinstance(error, UserError) and not isinstance(error, WorkerLost)
            if broken or not (work / JOURNAL).exists():
                shutil.rmtree(work, ignore_errors=True)
            else:
                note(
                    f"Tokenising {source.name} stopped; asked for again, it goes on from where "
                    "it was."
                )
            raise
        for path in {*work.iterdir()} - {work / name for name in (*MAPPED, "shards.json")}:
            path.unlink()  # the journal, and what a kill in the middle of one left
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        work.rename(folder)


Encoded = Iterator[tuple["_Batch", Any]]


@dataclass
class _Batch:
    """Pieces tokenised together, and where in the corpus (part, pieces of it) they end."""

    pieces: list[TextPiece]
    end: tuple[int, int]


def _write(
    folder: Path,
    source: Source,
    tokenizer: Tokenizer,
    encoded: Callable[[Iterator[_Batch], bool], Encoded],
    progress: Progress | None,
) -> None:
    dtype = "uint16" if tokenizer.size <= 1 << 16 else "uint32"
    bos, eos = document_start(tokenizer), tokenizer.eos
    with contextlib.ExitStack() as opened:
        outputs = [opened.enter_context((folder / name).open("ab")) for name in MAPPED]
        at = _resumed(folder, outputs, np.dtype(dtype).itemsize)
        if at.tokens:
            note(f"Tokenising {source.name} goes on after {at.tokens:,} tokens.")
        tokens, starts, marks = outputs
        clock = _JournalClock(source, at)
        for batch, batch_ids in encoded(
            _batched(_from(source, at.file_index, at.pieces)), at.opening
        ):
            stream: list[Array] = []
            borders: list[int] = []
            before: list[tuple[int, int]] = []
            for piece, ids in zip(batch.pieces, batch_ids, strict=True):
                before.append((at.tokens, at.bytes))
                first = [bos] if at.opening and bos is not None else []
                at.opening = piece.last
                last = [eos] if at.opening and eos is not None else []
                stream += [np.asarray(segment, dtype) for segment in (first, ids, last)]
                at.tokens += len(first) + len(ids) + len(last)
                at.bytes += len(piece.text.encode())
                if at.opening and at.tokens > at.start:
                    borders.append(at.start)
                    at.start = at.tokens
            tokens.write(np.concatenate(stream).tobytes())
            starts.write(np.array(borders, "int64").tobytes())
            marks.write(np.array(before, "int64").tobytes())
            at.documents += len(borders)
            at.marks += len(before)
            at.file_index, at.pieces = batch.end
            clock.passed(batch.pieces[-1].bytes_read, at.tokens * np.dtype(dtype).itemsize)
            if clock.due():
                for file in outputs:
                    file.flush()
                    os.fsync(file.fileno())
                files.write(folder / JOURNAL, json.dumps(dataclasses.asdict(at)))
            if progress:
                progress(min(batch.pieces[-1].bytes_read, source.size), source.size)
        starts.write(np.array([at.tokens], "int64").tobytes())
        marks.write(np.array([at.tokens, at.bytes], "int64").tobytes())
    need(at.bytes > 0 and at.tokens > 0, f"{source.path} holds no text; give a corpus with some.")
    record = {
        "format": FORMAT,
        "dtype": dtype,
        "corpus": source.name,
        "tokens": at.tokens,
        "bytes": at.bytes,
    }
    hashes = {name: files.sha256(folder / name) for name in MAPPED}
    (folder / "shards.json").write_text(json.dumps({**record, "sha256": hashes}, indent=1) + "\n")


def _resumed(folder: Path, outputs: Sequence[BinaryIO], width: int) -> _Position:
    """The journal's position, with the files truncated to it; the beginning where there is none."""
    at = _Position()
    with contextlib.suppress(OSError, ValueError, TypeError):
        saved = _Position(**json.loads((folder / JOURNAL).read_text()))
        if all(file.tell() >= size for file, size in zip(outputs, saved.sizes(width), strict=True)):
            at = saved
    for file, size in zip(outputs, at.sizes(width), strict=True):
        file.truncate(size)
    return at


class _JournalClock:
    """When the journal is due, and what is said once it is known how long the work takes."""

    def __init__(self, source: Source, at: _Position) -> None:
        self.source, self.size = source, source.size
        self.begun = self.last = time.monotonic()
        # when the first batch was done, and how much was read by then
        self.first: tuple[float, int] | None = None
        self.said = False

    def passed(self, bytes_read: int, written: int) -> None:
        now = time.monotonic()
        self.first = self.first or (now, bytes_read)
        seconds, bytes_done = now - self.first[0], bytes_read - self.first[1]
        if not self.said and seconds > 5 and bytes_done > 0:
            self.said = True
            remaining = (self.size - bytes_read) / bytes_done * seconds
            speed = f"{self.size / 1e9:.1f} GB of files, {bytes_done / seconds / 1e6:.1f} MB/s"
            cost = (
                f"about {remaining / 60:.0f} minutes more, {written / bytes_read * self.size / 1e9:.1f} "
                "GB of tokens"
            )
            if remaining > 60:
                note(f"Tokenising {self.source.name}: {speed}, {cost}.")

    def due(self) -> bool:
        due = time.monotonic() - self.last >= JOURNAL_EVERY
        self.last = time.monotonic() if due else self.last
        return due


def _from(
    source: Source, file_index: int, skipped: int
) -> Iterator[tuple[tuple[int, int], TextPiece]]:
    """The pieces of a corpus after some of a part, each with (its part, how many of it were read
    then)."""
    before = sum(file.size for file in source.corpus_files[:file_index])
    for number, file in enumerate(source.corpus_files[file_index:], file_index):
        for count, (text, last, bytes_read) in enumerate(
            itertools.islice(file.pieces(), skipped, None), skipped + 1
        ):
            yield (number, count), TextPiece(text, last, before + bytes_read)
        before, skipped = before + file.size, 0


def _in_order(
    submit: Callable[..., Future[Any]], encode: Encode, workers: int
) -> Callable[..., Encoded]:
    """Batches with their ids, in order; a few batches are held at a time, not more."""

    def encoded(batches: Iterator[_Batch], opening: bool) -> Encoded:
        ahead: collections.deque[tuple[_Batch, Future[Any]]] = collections.deque()
        for batch in batches:
            opens = [opening, *(piece.last for piece in batch.pieces[:-1])]
            ahead.append((batch, submit(encode, [piece.text for piece in batch.pieces], opens)))
            opening = batch.pieces[-1].last
            if len(ahead) > workers:
                ready, future = ahead.popleft()
                yield ready, future.result()
        while ahead:
            ready, future = ahead.popleft()
            yield ready, future.result()

    return encoded


def _batched(pieces: Iterator[tuple[tuple[int, int], TextPiece]]) -> Iterator[_Batch]:
    batch: list[TextPiece] = []
    size, end = 0, (0, 0)
    for end, piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= BATCH:
            yield _Batch(batch, end)
            batch, size = [], 0
    if batch:
        yield _Batch(batch, end)


def tokenise(
    source: Source,
    tokenizer: Tokenizer,
    *,
    cache: Path | None = None,
    workers: int | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Shards:
    """The corpus as shards, from the cache when this content was tokenised with this tokenizer
    before.

    ``cache`` is a folder (by default below ``files.cache_home()``), ``workers`` a number of
    threads, ``processes`` of processes instead (0: threads; None: ``$GLASSFORMER_PROCESSES``, or
    0). Stopped, and asked for again, it goes on. Raises UserError for an empty corpus, a full disk
    and whatever ``source`` finds wrong with its files.
    """
    content = f"{FORMAT} {source.digest()} {tokenizer.fingerprint} {tokenizer.bos} {tokenizer.eos}"
    key = hashlib.sha256(content.encode()).hexdigest()[:32]
    folder = (cache or files.cache_home() / "shards") / key
    with cache_lock(folder):
        if not _sound(folder):
            make(folder, source, tokenizer, workers, processes, progress)
        if progress:
            progress(source.size, source.size)
        return shards_under(key, source, tokenizer, cache)


def shards_under(
    key: str, source: Source, tokenizer: Tokenizer, cache: Path | None = None
) -> Shards:
    """The shards that ``tokenise`` has just left in the cache under this key, without looking
    through them again."""
    folder = (cache or files.cache_home() / "shards") / key
    record = json.loads((folder / "shards.json").read_text())
    tokens, starts, marks = (
        np.memmap(folder / name, dtype, mode="r")
        for name, dtype in zip(MAPPED, (record["dtype"], "int64", "int64"), strict=True)
    )
    maps: list[Any] = [tokens, starts, marks]
    pairs = np.asarray(marks).reshape(-1, 2)
    opened = tuple(memmap._mmap for memmap in maps)
    corpus = TokenizedCorpus(source, tokenizer, key, pairs, np.asarray(starts), opened)
    return Shards(tokens, 0, corpus)


def _sound(folder: Path) -> bool:
    """True where the cache entry exists and its files match their hashes."""
    try:
        record = json.loads((folder / "shards.json").read_text())
        return all(files.sha256(folder / name) == record["sha256"][name] for name in MAPPED)
    except (OSError, ValueError, KeyError, TypeError):
        return False
