"""A corpus: documents read from files as a stream of pieces, never whole.

    file, folder, .jsonl, .gz  ->  Part (one file, how its documents are told apart)  ->  Piece, Piece, ...

A long document is cut where a line ends and the next begins with a letter or digit: there every published tokenizer
gives the same ids as for the whole text, if it puts nothing in front of the rest (``Tokenizer.encode_continuation``).
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from .. import files
from ..errors import UserError, nearest, need

PIECE = 1 << 16  # characters of a piece: long enough to tokenise well, short enough to share out
MARK = "<|endoftext|>"  # between the documents of many published corpora
_HEAD = 8192  # bytes that tell whether a file of a folder is text
_LINE_BORDER = re.compile(r"\S\n(?=\w)")
_WORD_BORDER = re.compile(r"\S(?= \w)")


class Piece(NamedTuple):
    """Some text of one document; ``last`` when the document ends here, ``read`` bytes of the corpus's files so far."""

    text: str
    last: bool
    read: int


@dataclass(frozen=True)
class Part:
    """One file of a corpus: a single document, documents between ``separator``s, or a JSONL ``field`` per line."""

    path: Path
    separator: str | None = None
    field: str | None = None

    @property
    def size(self) -> int:
        """Bytes of the file, as it lies on the disk."""
        return self.path.stat().st_size

    def digest(self) -> str:
        """What the documents depend on: the file's content and how it is split."""
        how = json.dumps([self.separator, self.field, self.path.suffix == ".gz"])
        try:
            return hashlib.sha256((files.sha256(self.path) + how).encode()).hexdigest()
        except OSError as error:
            raise unreadable(self.path, error) from None

    def pieces(self) -> Iterator[Piece]:
        """The documents in order, long ones in several pieces; UserError where the file is not readable text."""
        try:
            with self.path.open("rb") as raw:
                blocks = _decoded(_unpacked(raw, self.path), self.path)
                ended: Iterator[tuple[str, bool]]
                if self.field is not None:
                    ended = ((text, True) for text in _jsonl(_split(blocks, "\n"), self.path, self.field))
                elif self.separator is not None:
                    ended = ((text.strip("\r\n"), True) for text in _split(blocks, self.separator))
                else:
                    ended = _cut(blocks)
                for text, last in ended:
                    if text:
                        yield Piece(text, last, raw.tell())
        except (OSError, EOFError, zlib.error) as error:
            raise unreadable(self.path, error) from None


@dataclass(frozen=True)
class Summary:
    """What a corpus holds and where it is from; ``bytes`` is its text in UTF-8."""

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
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()
    origin: str = "your own file"
    licence: str = "yours to know"

    @property
    def size(self) -> int:
        """Bytes of all files, as they lie on the disk."""
        return sum(part.size for part in self.parts)

    def digest(self) -> str:
        """A hash of the documents' content, whatever the files are called and whenever they were written."""
        return hashlib.sha256("\n".join(part.digest() for part in self.parts).encode()).hexdigest()

    def pieces(self) -> Iterator[Piece]:
        """The documents in order, streamed: memory stays flat however large a document is."""
        before = 0
        for part in self.parts:
            for text, last, read in part.pieces():
                yield Piece(text, last, before + read)
            before += part.size

    def texts(self) -> Iterator[str]:
        """The text in order, a piece at a time: what a tokenizer is trained on."""
        return (piece.text for piece in self.pieces())

    def documents(self) -> Iterator[str]:
        """The documents in order, each whole (a single huge file is one document: read ``texts`` instead)."""
        held: list[str] = []
        for text, last, _ in self.pieces():
            held.append(text)
            if last:
                yield "".join(held)
                held.clear()

    def summary(self) -> Summary:
        """Counts, by reading the corpus once."""
        documents = size = 0
        for text, last, _ in self.pieces():
            documents += last
            size += len(text.encode())
        return Summary(self.name, self.path, len(self.parts), documents, size, self.origin, self.licence)


def open_path(path: Path, field: str = "text", separator: str | None = None) -> Source:
    """The corpus at a path: a file, or every text file below a folder in sorted order.

    In files that are not JSONL a document ends at each ``separator``; without one the file is a single document.
    Raises UserError when nothing is there, the file is empty or binary, or the folder has no text.
    """
    there = files.standing(path)
    if there == "folder":
        return _open_folder(path, field, separator)
    need(there != "other", f"{path} is a device or a pipe; put its text into a file and give that.")
    if there is None:
        raise UserError(f"{path} does not exist; give a file, a folder or a named corpus.{meant(path)}")
    need(path.stat().st_size > 0, f"{path} is empty; give a file with some text.")
    part = _part(path, field, separator)
    return Source(path.name, path, (part,), () if part.field or separator else _unasked(path))


def meant(path: Path) -> str:
    """A closing hint for a path where nothing is: the name in its folder that is most like it."""
    return nearest(path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else [])


def _unasked(path: Path) -> tuple[str, ...]:
    """A note on a file that seems to part its documents by a mark, which nobody asked to be read as one."""
    with contextlib.suppress(OSError), path.open("rb") as raw:
        if MARK.encode() in raw.read(PIECE):
            return (
                f'{path.name} is read as one document; give --separator "{MARK}" (train: --data.separator) to part it.',
            )
    return ()


def _open_folder(folder: Path, field: str, separator: str | None) -> Source:
    parts, notes = [], []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        inside = path.relative_to(folder)
        if any(name.startswith(".") for name in inside.parts):
            notes.append(f"{inside} left out: hidden")
        elif path.stat().st_size == 0:
            notes.append(f"{inside} left out: empty")
        elif not _looks_like_text(path):
            notes.append(f"{inside} left out: not readable as UTF-8 text")
        else:
            parts.append(_part(path, field, separator))
    need(bool(parts), f"{folder} holds no text file; give a folder with UTF-8 text in it.")
    return Source(folder.resolve().name, folder, tuple(parts), tuple(notes))


def _part(path: Path, field: str, separator: str | None) -> Part:
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return Part(path, field=field) if plain.suffix in (".jsonl", ".ndjson") else Part(path, separator or None)


def _looks_like_text(path: Path) -> bool:
    try:
        with path.open("rb") as raw:
            head = _unpacked(raw, path).read(_HEAD)
            head.decode()
    except UnicodeDecodeError as error:
        cut_through = error.reason == "unexpected end of data" and len(head) == _HEAD
        return cut_through and b"\0" not in head
    except (OSError, EOFError, zlib.error):
        return False
    return b"\0" not in head


@contextlib.contextmanager
def in_turn(place: Path) -> Iterator[None]:
    """Processes that make the same cache entry take turns; the operating system ends a dead one's turn."""
    files.make_folder(place.parent)
    try:
        file = place.with_name(f".{place.name}.lock").open("a+")
    except OSError as error:
        raise files.explain(error, place) from None
    with file:
        files.exclusive(file)
        yield


# ---------------------------------------------------------------------------- streams of text


def _unpacked(raw: BinaryIO, path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw


def _decoded(stream: BinaryIO, path: Path) -> Iterator[str]:
    """The file's text in blocks; UserError with the byte offset where it is not UTF-8 or is binary."""
    at, rest = 0, b""
    while block := stream.read(PIECE):
        raw, rest = rest + block, b""
        if b"\0" in block:
            raise binary(path, at + raw.index(b"\0"))
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data":
                raise _not_utf8(path, at + error.start) from None
            raw, rest = raw[: error.start], raw[error.start :]
            text = raw.decode()
        yield text.removeprefix("\ufeff") if at == 0 else text
        at += len(raw)
    if rest:
        raise _not_utf8(path, at)


def binary(path: Path, offset: int) -> UserError:
    """What is said of a file with a zero byte."""
    return UserError(f"{path} is a binary file (a zero byte at byte {offset}); give a text file in UTF-8.")


def unreadable(path: Path, error: Exception) -> UserError:
    """What is said of a file that the system or gzip cannot read."""
    reason = getattr(error, "strerror", None) or error
    return UserError(f"{path} cannot be read ({reason}); check the file and its rights.")


def _not_utf8(path: Path, offset: int) -> UserError:
    return UserError(f"{path} is not UTF-8 text (byte {offset}); convert it, for example with `iconv -t utf-8`.")


def _split(blocks: Iterator[str], separator: str) -> Iterator[str]:
    """The texts between separators, which may lie across two blocks."""
    rest = ""
    for block in blocks:
        *whole, rest = (rest + block).split(separator)
        yield from whole
    yield rest


def _cut(blocks: Iterator[str]) -> Iterator[tuple[str, bool]]:
    """One document in pieces of about ``PIECE`` characters, cut at line borders where there are any."""
    rest = ""
    for block in blocks:
        rest += block
        while len(rest) > 2 * PIECE:
            found = _LINE_BORDER.search(rest, PIECE) or _WORD_BORDER.search(rest, PIECE)
            end = found.end() if found else len(rest) - 1
            yield rest[:end], False
            rest = rest[end:]
    yield rest, True


def _jsonl(lines: Iterator[str], path: Path, field: str) -> Iterator[str]:
    """The named field of each line; UserError with the line's number where it is missing or no text."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        record = json_line(line, f"{path} line {number}", "one {...} with a text field per line")
        text = record.get(field)
        if not isinstance(text, str):
            fields = ", ".join(sorted(key for key, value in record.items() if isinstance(value, str))) or "none"
            raise UserError(
                f'{path} line {number} has no text field "{field}" (there: {fields}); say which by --field, in a '
                f"training by --data.field."
            )
        yield text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def json_line(line: str, where: str, shape: str) -> dict[str, Any]:
    """The JSON object of a line; UserError that says ``where`` it is and what ``shape`` lines have."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError also of a number of 5,000 digits
        raise UserError(f"{where} is not valid JSON ({error}); fix or remove that line.") from None
    if not isinstance(record, dict):
        raise UserError(f"{where} is not a JSON object; write {shape}.")
    return record
