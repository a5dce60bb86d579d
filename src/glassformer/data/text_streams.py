"""A file's bytes as text: blocks decoded, split at separators, cut into pieces, or the field of
each line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import UserError

PIECE = 1 << 16  # characters of a piece: long enough to tokenise well, short enough to share out
_LINE_BORDER = re.compile(r"\S\n(?=\w)")
_WORD_BORDER = re.compile(r"\S(?= \w)")


def decoded(stream: BinaryIO, path: Path) -> Iterator[str]:
    """The file's text in blocks; UserError with the byte offset where it is not UTF-8 or is
    binary."""
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
    return UserError(
        f"{path} is a binary file (a zero byte at byte {offset}); give a text file in UTF-8."
    )


def unreadable(path: Path, error: Exception, where: str = "") -> UserError:
    """What is said of a file that the system cannot read or unpack, ``where`` in it."""
    reason = getattr(error, "strerror", None) or error
    return UserError(f"{path} cannot be read ({reason}{where}); check the file and its rights.")


def _not_utf8(path: Path, offset: int) -> UserError:
    return UserError(
        f"{path} is not UTF-8 text (byte {offset}); convert it, for example with `iconv -t utf-8`."
    )


def split(blocks: Iterator[str], separator: str) -> Iterator[str]:
    """The texts between separators, which may lie across two blocks."""
    rest = ""
    for block in blocks:
        *whole, rest = (rest + block).split(separator)
        yield from whole
    yield rest


def cut(blocks: Iterator[str]) -> Iterator[tuple[str, bool]]:
    """One document in pieces of about ``PIECE`` characters, cut at line borders where there are
    any."""
    rest = ""
    for block in blocks:
        rest += block
        while len(rest) > 2 * PIECE:
            found = _LINE_BORDER.search(rest, PIECE) or _WORD_BORDER.search(rest, PIECE)
            end = found.end() if found else len(rest) - 1
            yield rest[:end], False
            rest = rest[end:]
    yield rest, True


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


def json_line(line: str, where: str, shape: str) -> dict[str, Any]:
    """The JSON object of a line; UserError that says ``where`` it is and what ``shape`` lines
    have."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError also of a number of 5,000 digits
        raise UserError(f"{where} is not valid JSON ({error}); fix or remove that line.") from None
    if not isinstance(record, dict):
        raise UserError(f"{where} is not a JSON object; write {shape}.")
    return record
