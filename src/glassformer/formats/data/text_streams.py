"""A file's bytes as text: unpacked, decoded in blocks, split at separators, cut into pieces, or the
field of each line."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from ...core.errors import UserError
from ..tables import open_pyarrow

PIECE = 1 << 16  # characters of a piece: long enough to tokenise well, short enough to share out
_LINE_BORDER = re.compile(r"\S\n(?=\w)")
_WORD_BORDER = re.compile(r"\S(?= \w)")

PACKED = (".gz", ".zst")
DAMAGE = (OSError, EOFError, zlib.error)
"""The exceptions that reading a damaged file may raise."""


def plain_suffix(path: Path) -> str:
    """The suffix of a file without its compression suffix: .jsonl of a.jsonl.gz."""
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


def unpacked(raw: BinaryIO, path: Path) -> BinaryIO:
    """The stream of what is packed in a file; UserError where a package for it is missing."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    if path.suffix == ".zst":
        return cast(BinaryIO, open_pyarrow(path).CompressedInputStream(raw, "zstd"))
    return raw


def decoded(stream: BinaryIO, path: Path) -> Iterator[str]:
    """The file's text in blocks; UserError with the byte offset where it is not UTF-8 or is
    binary."""
    at, tail = 0, b""
    while block := stream.read(PIECE):
        raw, tail = tail + block, b""
        if b"\0" in block:
            raise binary(path, at + raw.index(b"\0"))
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data":
                raise _not_utf8(path, at + error.start) from None
            raw, tail = raw[: error.start], raw[error.start :]
            text = raw.decode()
        yield text.removeprefix("\ufeff") if at == 0 else text
        at += len(raw)
    if tail:
        raise _not_utf8(path, at)


def binary(path: Path, offset: int) -> UserError:
    return UserError(
        f"{path} is a binary file (a zero byte at byte {offset}); give a text file in UTF-8."
    )


def unreadable(path: Path, error: Exception, location: str = "") -> UserError:
    """The error for a file that cannot be read or unpacked, at ``location`` in it."""
    reason = getattr(error, "strerror", None) or error
    return UserError(f"{path} cannot be read ({reason}{location}); check the file and its rights.")


def _not_utf8(path: Path, offset: int) -> UserError:
    return UserError(
        f"{path} is not UTF-8 text (byte {offset}); convert it, for example with `iconv -t utf-8`."
    )


def split(blocks: Iterator[str], separator: str) -> Iterator[str]:
    """The texts between separators, which may lie across two blocks."""
    tail = ""
    for block in blocks:
        *texts, tail = (tail + block).split(separator)
        yield from texts
    yield tail


def cut(blocks: Iterator[str]) -> Iterator[tuple[str, bool]]:
    """One document in pieces of about ``PIECE`` characters, cut at line borders where there are
    any."""
    buffer = ""
    for block in blocks:
        buffer += block
        while len(buffer) > 2 * PIECE:
            border = _LINE_BORDER.search(buffer, PIECE) or _WORD_BORDER.search(buffer, PIECE)
            end = border.end() if border else len(buffer) - 1
            yield buffer[:end], False
            buffer = buffer[end:]
    yield buffer, True


def jsonl(lines: Iterator[str], path: Path, field: str) -> Iterator[str]:
    """The named field of each line; UserError with the line's number where it is missing or no
    text."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        record = json_line(line, f"{path} line {number}", "one {...} with a text field per line")
        text = record.get(field)
        if not isinstance(text, str):
            fields = (
                ", ".join(sorted(key for key, value in record.items() if isinstance(value, str)))
                or "none"
            )
            raise UserError(
                f'{path} line {number} has no text field "{field}" (there: {fields}); say which '
                "by --field, in a "
                f"training by --data.field."
            )
        yield (
            text
            if text.isascii()
            else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        )


def json_line(line: str, location: str, shape: str) -> dict[str, Any]:
    """The JSON object of a line; UserError with its ``location`` and the ``shape`` that lines
    have."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError also of a number of 5,000 digits
        raise UserError(
            f"{location} is not valid JSON ({error}); fix or remove that line."
        ) from None
    if not isinstance(record, dict):
        raise UserError(f"{location} is not a JSON object; write {shape}.")
    return record
