"""A corpus written as tokens: read once, in order, tokenised in threads; stopped, it is gone on
with.

Every ``JOURNAL_EVERY`` seconds what is written is pushed to the disk, and a journal beside it says
how far that is. Whoever asks for the same corpus again cuts the files back to there, passes over
the text that was read, and goes on: the files are, byte for byte, what they would have been.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import dataclasses
import hashlib
import itertools
import json
import mmap
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...core import files
from ...core.errors import UserError, need, note
from ...core.tokenizer.framing import document_start
from ...core.tokenizer.tokenizer import Tokenizer
from ...core.training.shards import Shards
from ...fast.threads import cores
from ..tiktoken_backend import pool
from .corpus import Source, TextPiece, cache_home, cache_lock

Progress = Callable[[int, int], None]  # bytes of the files read, bytes there are

FORMAT = 2
MAPPED = ("tokens.bin", "starts.bin", "marks.bin")
JOURNAL = "journal.json"
JOURNAL_EVERY = 20.0  # seconds
BATCH = 1 << 17  # characters tokenised at a time by one thread


@dataclasses.dataclass
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


@dataclasses.dataclass(frozen=True)
class TokenizedCorpus:
    """A tokenised corpus, shared by its splits."""

    source: Source
    tokenizer: Tokenizer
    key: str
    marks: np.ndarray[Any, Any]  # (pieces + 1, 2): tokens before, bytes before
    starts: np.ndarray[Any, Any]
    maps: tuple[mmap.mmap, ...] = ()

    def bytes_before(self, token: int) -> int:
        """UTF-8 bytes of the text that the first ``token`` tokens stand for, exactly.

        A token that ends inside a character counts the whole character.
        """
        # searchsorted would copy the column
        piece = bisect.bisect_right(self.marks[:, 0], token) - 1
        first, before = map(int, self.marks[piece])
        inside = token - first
        if inside == 0:
            return before
        opens = self.starts[np.searchsorted(self.starts, first)] == first
        inside -= int(opens and document_start(self.tokenizer) is not None)
        *earlier, (text, _, _) = itertools.islice(
            self.source.pieces(), max(piece - 1, 0), piece + 1
        )
        continues = self.tokenizer.adds_prefix and bool(earlier) and not earlier[0].last
        spans = (
            self.tokenizer.encode_continuation(text)[1]
            if continues
            else self.tokenizer.offsets(text)
        )
        inner_spans = spans[:inside]
        return before + (len(text[: inner_spans[-1][1]].encode()) if inner_spans else 0)


def tokenise(
    source: Source,
    tokenizer: Tokenizer,
    *,
    cache: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Shards:
    """The corpus as shards, from the cache when this content was tokenised with this tokenizer
    before.

    ``cache`` is a folder (by default below ``cache_home()``), ``workers`` a number of
    threads. Stopped, and asked for again, it goes on. Raises UserError for an empty corpus, a full
    disk and whatever ``source`` finds wrong with its files.
    """
    content = f"{FORMAT} {source.digest()} {tokenizer.fingerprint} {tokenizer.bos} {tokenizer.eos}"
    key = hashlib.sha256(content.encode()).hexdigest()[:32]
    folder = (cache or cache_home() / "shards") / key
    with cache_lock(folder):
        if not _sound(folder):
            _make(folder, source, tokenizer, workers or cores(), progress)
        if progress:
            progress(source.size, source.size)
        return shards_under(key, source, tokenizer, cache)


def shards_under(
    key: str, source: Source, tokenizer: Tokenizer, cache: Path | None = None
) -> Shards:
    """The shards that ``tokenise`` has just left in the cache under this key, without looking
    through them again."""
    folder = (cache or cache_home() / "shards") / key
    record = json.loads((folder / "shards.json").read_text())
    maps: list[Any] = [
        np.memmap(folder / name, dtype, mode="r")
        for name, dtype in zip(MAPPED, (record["dtype"], "int64", "int64"), strict=True)
    ]
    tokens, starts, marks = maps
    opened = tuple(memmap._mmap for memmap in maps)
    pairs = np.asarray(marks).reshape(-1, 2)
    return Shards(
        tokens, 0, TokenizedCorpus(source, tokenizer, key, pairs, np.asarray(starts), opened)
    )


def _sound(folder: Path) -> bool:
    """True where the cache entry exists and its files match their hashes."""
    try:
        record = json.loads((folder / "shards.json").read_text())
        return all(files.sha256(folder / name) == record["sha256"][name] for name in MAPPED)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _make(
    folder: Path, source: Source, tokenizer: Tokenizer, workers: int, progress: Progress | None
) -> None:
    """Fill ``folder``, which appears when it is whole, or go on with what was begun; the caller
    holds its lock."""
    work = folder.with_name(f".{folder.name}.work")
    with files.explain_errors(folder):
        work.mkdir(parents=True, exist_ok=True)
        try:
            _write(work, source, tokenizer, workers, progress)
        except BaseException as error:
            # a corpus that is mended is another one
            if isinstance(error, UserError) or not (work / JOURNAL).exists():
                shutil.rmtree(work, ignore_errors=True)
            else:
                note(f"Tokenising {source.name} stopped. The next start continues from here.")
            raise
        for path in {*work.iterdir()} - {work / name for name in (*MAPPED, "shards.json")}:
            path.unlink()  # the journal, and what a kill in the middle of one left
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        work.rename(folder)


def _write(
    folder: Path, source: Source, tokenizer: Tokenizer, workers: int, progress: Progress | None
) -> None:
    dtype = np.dtype("uint16" if tokenizer.size <= 1 << 16 else "uint32")
    bos, eos = document_start(tokenizer), tokenizer.eos
    with contextlib.ExitStack() as opened:
        outputs = [opened.enter_context((folder / name).open("ab")) for name in MAPPED]
        at = _resumed(folder, outputs, dtype.itemsize)
        if at.tokens:
            note(f"Tokenising {source.name} goes on after {at.tokens:,} tokens.")
        tokens, starts, marks = outputs
        journalled = time.monotonic()
        encoded = opened.enter_context(contextlib.closing(_encoded(source, at, tokenizer, workers)))
        for pieces, file_index, count, batch_ids in encoded:
            stream: list[np.ndarray[Any, Any]] = []
            borders: list[int] = []
            before: list[tuple[int, int]] = []
            for piece, ids in zip(pieces, batch_ids, strict=True):
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
            at.file_index, at.pieces = file_index, count
            if time.monotonic() - journalled >= JOURNAL_EVERY:
                journalled = time.monotonic()
                for file in outputs:
                    file.flush()
                    os.fsync(file.fileno())
                files.write(folder / JOURNAL, json.dumps(dataclasses.asdict(at)))
            if progress:
                progress(min(pieces[-1].bytes_read, source.size), source.size)
        starts.write(np.array([at.tokens], "int64").tobytes())
        marks.write(np.array([at.tokens, at.bytes], "int64").tobytes())
    need(at.bytes > 0 and at.tokens > 0, f"{source.path} holds no text; give a corpus with some.")
    record = {
        "format": FORMAT,
        "dtype": dtype.name,
        "corpus": source.name,
        "tokens": at.tokens,
        "bytes": at.bytes,
        "sha256": {name: files.sha256(folder / name) for name in MAPPED},
    }
    (folder / "shards.json").write_text(json.dumps(record, indent=1) + "\n")


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


_Batch = tuple[list[TextPiece], int, int]
"""Pieces tokenised together, and where they end: the file of the corpus, and pieces of it."""


def _batches(source: Source, at: _Position) -> Iterator[_Batch]:
    """The pieces of a corpus from a position on."""
    before = sum(file.size for file in source.corpus_files[: at.file_index])
    batch, characters, skipped = list[TextPiece](), 0, at.pieces
    number = count = 0
    for number, file in enumerate(source.corpus_files[at.file_index :], at.file_index):
        count = skipped
        for text, last, bytes_read in itertools.islice(file.pieces(), skipped, None):
            count += 1
            batch.append(TextPiece(text, last, before + bytes_read))
            characters += len(text)
            if characters >= BATCH:
                yield batch, number, count
                batch, characters = [], 0
        before, skipped = before + file.size, 0
    if batch:
        yield batch, number, count


def _encoded(
    source: Source, at: _Position, tokenizer: Tokenizer, workers: int
) -> Generator[tuple[list[TextPiece], int, int, Any]]:
    """The batches with their ids, in order; a few batches are held at a time, not more."""
    encode = tokenizer.encoder(source.size)

    def ids(texts: list[str], opens: list[bool]) -> Any:
        """A continued document gets no prefix space."""
        if not tokenizer.adds_prefix or all(opens):
            return encode(texts)
        first = iter(encode([text for text, opened in zip(texts, opens, strict=True) if opened]))
        return [
            next(first) if opened else tokenizer.encode_continuation(text)[0]
            for text, opened in zip(texts, opens, strict=True)
        ]

    ahead: collections.deque[tuple[_Batch, Future[Any]]] = collections.deque()
    opening = at.opening
    with pool(workers) as threads:
        for batch in _batches(source, at):
            pieces = batch[0]
            opens = [opening, *(piece.last for piece in pieces[:-1])]
            ahead.append((batch, threads.submit(ids, [piece.text for piece in pieces], opens)))
            opening = pieces[-1].last
            if len(ahead) > workers:
                ready, future = ahead.popleft()
                yield *ready, future.result()
        while ahead:
            ready, future = ahead.popleft()
            yield *ready, future.result()
