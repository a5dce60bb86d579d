"""A corpus: documents read from files as a stream of pieces, never whole.

    file, folder, .jsonl, .gz, .zst, .parquet  ->  CorpusFile (one file)  ->  Piece, Piece

A long document is cut where a line ends and the next begins with a letter or digit: there every
published tokenizer gives the same ids as for the whole text, if it puts nothing in front of the
rest (``Tokenizer.encode_continuation``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...core import files
from ...core.errors import UserError, nearest, need
from .. import tables
from . import text_streams
from .text_streams import DAMAGE, PIECE, plain_suffix, unpacked, unreadable

MARK = "<|endoftext|>"  # between the documents of many published corpora
_HEAD = 8192  # bytes that tell whether a file of a folder is text


class TextPiece(NamedTuple):
    """Some text of one document; ``last`` when the document ends here, ``bytes_read`` of
    the corpus's files so far."""

    text: str
    last: bool
    bytes_read: int


@dataclass(frozen=True)
class CorpusFile:
    """One file of a corpus: a single document, documents between ``separator``s, or a ``field`` of
    each line or row."""

    path: Path
    separator: str | None = None
    field: str | None = None

    @property
    def size(self) -> int:
        """Bytes of the file, as it lies on the disk."""
        return self.path.stat().st_size

    def digest(self) -> str:
        """Hash of the file's content and of the settings that split it into documents."""
        settings = json.dumps(
            [self.separator, self.field, self.path.suffix == ".gz", *self._kind()]
        )
        try:
            return hashlib.sha256((files.sha256(self.path) + settings).encode()).hexdigest()
        except OSError as error:
            raise unreadable(self.path, error) from None

    def _kind(self) -> list[str]:
        """File kinds added later, so that older cache keys stay valid."""
        if self.path.suffix in (".zst", *tables.SUFFIXES):
            return [self.path.suffix]
        return []

    def pieces(self) -> Iterator[TextPiece]:
        """The documents in order, long ones in several pieces; UserError where the file is not
        readable text."""
        if self.field is not None and self.path.suffix in tables.SUFFIXES:
            for text, bytes_read in tables.columns(self.path, self.field):
                yield TextPiece(text, True, bytes_read)
            return
        documents = 0
        try:
            with self.path.open("rb") as raw:
                stream = unpacked(raw, self.path)  # closes the file when nobody holds it
                blocks = text_streams.decoded(stream, self.path)
                ended: Iterator[tuple[str, bool]]
                if self.field is not None:
                    ended = (
                        (text, True)
                        for text in text_streams.jsonl(
                            text_streams.split(blocks, "\n"), self.path, self.field
                        )
                    )
                elif self.separator is not None:
                    ended = (
                        (text.strip("\r\n"), True)
                        for text in text_streams.split(blocks, self.separator)
                    )
                else:
                    ended = text_streams.cut(blocks)
                for text, last in ended:
                    documents += last
                    if text:
                        yield TextPiece(text, last, raw.tell())
        except DAMAGE as error:
            raise unreadable(
                self.path, error, f", after {documents} documents" if documents else ""
            ) from None


@dataclass(frozen=True)
class CorpusSummary:
    """Size, origin and licence of a corpus; ``bytes`` is its text in UTF-8."""

    name: str
    path: Path
    files: int
    documents: int
    bytes: int
    origin: str
    licence: str


@dataclass(frozen=True)
class Source:
    """A corpus: its files in order, with ``notes`` on what was left out."""

    name: str
    path: Path
    corpus_files: tuple[CorpusFile, ...]
    notes: tuple[str, ...] = ()
    origin: str = "your own file"
    licence: str = "yours to know"

    @property
    def size(self) -> int:
        """Bytes of all files, as they lie on the disk."""
        return sum(file.size for file in self.corpus_files)

    def digest(self) -> str:
        """A hash of the documents' content, whatever the files are called and whenever they were
        written."""
        return hashlib.sha256(
            "\n".join(file.digest() for file in self.corpus_files).encode()
        ).hexdigest()

    def pieces(self) -> Iterator[TextPiece]:
        """The documents in order, streamed: memory stays flat however large a document is."""
        before = 0
        for file in self.corpus_files:
            for text, last, bytes_read in file.pieces():
                yield TextPiece(text, last, before + bytes_read)
            before += file.size

    def texts(self) -> Iterator[str]:
        """The text in order, a piece at a time: what a tokenizer is trained on."""
        return (piece.text for piece in self.pieces())

    def documents(self) -> Iterator[str]:
        """The documents in order, each whole (a single huge file is one document: read ``texts``
        instead)."""
        pieces: list[str] = []
        for text, last, _ in self.pieces():
            pieces.append(text)
            if last:
                yield "".join(pieces)
                pieces.clear()

    def summary(self) -> CorpusSummary:
        """Counts, by reading the corpus once."""
        documents = size = 0
        for text, last, _ in self.pieces():
            documents += last
            size += len(text.encode())
        return CorpusSummary(
            self.name, self.path, len(self.corpus_files), documents, size, self.origin, self.licence
        )


def open_path(path: Path, field: str = "text", separator: str | None = None) -> Source:
    """The corpus at a path: a file, or every text file below a folder in sorted order.

    In files that are not JSONL a document ends at each ``separator``; without one the file is a
    single document. Raises UserError when nothing is there, the file is empty or binary, or the
    folder has no text.
    """
    kind = files.path_kind(path)
    if kind == "folder":
        return _open_folder(path, field, separator)
    need(
        kind != "other",
        f"{path} is a device or a pipe; save its text as a file and give that file.",
    )
    if kind is None:
        raise UserError(
            f"{path} does not exist; give a file, a folder or a named corpus.{nearest_name(path)}"
        )
    need(path.stat().st_size > 0, f"{path} is empty; give a file with some text.")
    file = _corpus_file(path, field, separator)
    return Source(
        path.name, path, (file,), () if file.field or separator else _separator_note(path)
    )


def nearest_name(path: Path) -> str:
    """A closing hint for a path where nothing is: the name in its folder that is most like it."""
    return nearest(
        path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    )


def _separator_note(path: Path) -> tuple[str, ...]:
    """A note on a file that seems to part its documents by a mark, which nobody asked to be read as
    one."""
    with contextlib.suppress(OSError), path.open("rb") as raw:
        if MARK.encode() in raw.read(PIECE):
            return (
                f'{path.name} is read as one document; give --separator "{MARK}" (train: '
                "--data.separator) to part it.",
            )
    return ()


def _open_folder(folder: Path, field: str, separator: str | None) -> Source:
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    rows, notes = tables.tables(folder, paths)
    corpus_files = [CorpusFile(path, field=field) for path in rows]
    for path in () if rows else paths:
        inside = path.relative_to(folder)
        if any(name.startswith(".") for name in inside.parts):
            notes.append(f"{inside} left out: hidden")
        elif path.stat().st_size == 0:
            notes.append(f"{inside} left out: empty")
        elif not _looks_like_text(path):
            notes.append(f"{inside} left out: not readable as UTF-8 text")
        else:
            corpus_files.append(_corpus_file(path, field, separator))
    need(bool(corpus_files), f"{folder} holds no text file; give a folder with UTF-8 text in it.")
    return Source(folder.resolve().name, folder, tuple(corpus_files), tuple(notes))


def _corpus_file(path: Path, field: str, separator: str | None) -> CorpusFile:
    rows = plain_suffix(path) in (".jsonl", ".ndjson", *tables.SUFFIXES)
    return CorpusFile(path, field=field) if rows else CorpusFile(path, separator or None)


def _looks_like_text(path: Path) -> bool:
    try:
        with path.open("rb") as raw:
            head = unpacked(raw, path).read(_HEAD)
            head.decode()
    except UnicodeDecodeError as error:
        cut_through = error.reason == "unexpected end of data" and len(head) == _HEAD
        return cut_through and b"\0" not in head
    except DAMAGE:
        return False
    return b"\0" not in head


def cache_home() -> Path:
    """The folder of downloads and tokenised corpora; ``$GLASSFORMER_CACHE`` names another."""
    named = os.environ.get("GLASSFORMER_CACHE")
    if named:
        return Path(named).expanduser()
    return Path.home() / ".cache" / "glassformer"


def data_home() -> Path | None:
    """The user's folder of data that is then not downloaded (``$GLASSFORMER_DATA``), if set."""
    named = os.environ.get("GLASSFORMER_DATA")
    return Path(named).expanduser() if named else None


@contextlib.contextmanager
def cache_lock(place: Path) -> Iterator[None]:
    """Processes that make the same cache entry take turns; the operating system ends a dead one's
    turn."""
    files.make_folder(place.parent)
    try:
        file = place.with_name(f".{place.name}.lock").open("a+")
    except OSError as error:
        raise files.explain(error, place) from None
    with file:
        files.exclusive(file)
        yield
