"""Records: what a file holds for each part of an example, with its line.

.tsv .csv          columns by name (with a header) or by number
.jsonl             fields
{source, target}   a file for each part, line by line
IN: ... OUT: ...   SCAN's lines
CoNLL's columns    a word and its label a line, an empty line between sentences
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.objective import Objective
from ..config.serial import members
from ..errors import UserError, nearest, need
from .compression import damage, plain_suffix, unpacked
from .corpus import meant
from .registry import locate
from .text_streams import binary, json_line, unreadable

Record = dict[str, Any]  # part -> what stands there
Records = Iterator[tuple[int, Record]]  # each with its line, from 1
SCAN = ("IN: ", " OUT: ")
DOCUMENT = "-DOCSTART-"  # CoNLL 2003 has it in place of a word where a document begins
SHORT = 60  # characters of a name or label that a message quotes


@dataclass(frozen=True)
class Parts:
    """What an example consists of, in order; some are ``optional``. ``columns`` names them or
    counts from 0."""

    names: tuple[str, ...]
    optional: tuple[str, ...]
    columns: Mapping[str, str]

    def among(self, there: Iterable[str]) -> tuple[str, ...]:
        """The parts, without the optional ones that are not there."""
        return tuple(part for part in self.names if part not in self.optional or part in there)

    def column(self, part: str) -> str:
        """What a part is called in the file."""
        return str(self.columns.get(part, part))


def records(
    where: str | Mapping[str, str], objective: Objective, columns: Mapping[str, str]
) -> tuple[str, Records]:
    """What a file, or a file for each part, is called, and the parts that an objective reads in it.

    Raises UserError with the line for what is not there.
    """
    known = list(
        dict.fromkeys(
            part
            for kind in members(Objective).values()
            for part in kind.example_fields  # type: ignore[attr-defined]
        )
    )
    for part in (*columns, *(where if isinstance(where, Mapping) else ())):
        if part not in known:
            raise UserError(f'There is no part "{part}" of an example.{nearest(part, known)}')
    parts = Parts(objective.example_fields, objective.optional, columns)
    if isinstance(where, Mapping):
        return _parallel(where, parts.among(where))
    path = locate(where)
    return str(path), _file(path, parts)


def _file(path: Path, parts: Parts) -> Records:
    content = _content(path)
    kind = plain_suffix(path)
    if kind in (".jsonl", ".ndjson"):
        return _jsonl(path, content, parts)
    if "tokens" in parts.names:
        return _sentences(_table(path, _columns(content), parts))
    if kind == ".csv":
        return _table(path, _csv(path, content), parts)
    first = content.split("\n", 1)[0]
    if first.startswith(SCAN[0]) and SCAN[1] in first and parts.names == ("source", "target"):
        return _scan(path, content)
    if kind == ".tsv" or "\t" in first:
        return _table(path, ((number, line.split("\t")) for number, line in _lines(content)), parts)
    need(bool(content.strip()), f"{path} is empty; give a file of examples.")
    needed = parts.among(parts.columns)
    raise UserError(
        f"{path} has no columns to find {' and '.join(needed)} in; give a .tsv, .csv or .jsonl "
        "file, or a file for "
        f"each part, in a run file such as train = {{ "
        f"{', '.join(f'{part} = FILE' for part in needed)} }}."
    )


def _content(path: Path) -> str:
    """The text of a file; UserError with the line that is not UTF-8."""
    if not path.is_file():
        raise UserError(f"{path} is not a file; give a file of examples.{meant(path)}")
    try:
        with path.open("rb") as raw:
            data = unpacked(raw, path).read()
    except damage(path) as error:
        raise unreadable(path, error) from None
    if b"\0" in data:
        raise binary(path, data.index(0))
    try:
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        sentence = (
            f"{path} line {line} is not UTF-8 text; convert the file, for example with "
            "`iconv -t utf-8`."
        )
        raise UserError(sentence) from None


def _lines(content: str) -> Iterator[tuple[int, str]]:
    """The lines that hold something."""
    for number, line in enumerate(content.split("\n"), 1):
        if line.strip():
            yield number, line.removesuffix("\r")


def _parallel(where: Mapping[str, str], parts: tuple[str, ...]) -> tuple[str, Records]:
    if set(where) != set(parts):
        needed, given = " and ".join(parts), " and ".join(where)
        raise UserError(
            f"A file for each part is needed, {needed}, and there is one for "
            f"{given}; change data.train."
        )
    sides = [_content(locate(where[part])).removesuffix("\n").split("\n") for part in parts]
    if len({len(lines) for lines in sides}) > 1:
        counts = ", ".join(
            f"{where[part]} has {len(lines)} lines"
            for part, lines in zip(parts, sides, strict=True)
        )
        raise UserError(
            f"{counts}; parallel files need the same number, so fix or replace one of them."
        )
    rows = enumerate(zip(*sides, strict=True), 1)
    found = (
        (n, {p: text.removesuffix("\r") for p, text in zip(parts, row, strict=True)})
        for n, row in rows
    )
    return " + ".join(where[part] for part in parts), found


def _scan(path: Path, content: str) -> Records:
    for number, line in _lines(content):
        source, found, target = line.partition(SCAN[1])
        if not found or not source.startswith(SCAN[0]):
            raise UserError(
                f'{path} line {number} is not of the form "IN: ... OUT: ..."; fix or '
                "remove that line."
            )
        yield number, {"source": source.removeprefix(SCAN[0]), "target": target}


def _columns(content: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in _lines(content):
        yield (
            number,
            line.split("\t") if "\t" in line else [word for word in line.split(" ") if word],
        )


def _sentences(words: Records) -> Records:
    """The words of each sentence and their labels: lines that follow each other without an empty
    one."""
    for _, group in itertools.groupby(enumerate(words), lambda word: word[1][0] - word[0]):
        lines = [(number, word) for _, (number, word) in group if word["tokens"] != DOCUMENT]
        if lines:
            yield (
                lines[0][0],
                {part: [word[part] for _, word in lines] for part in ("tokens", "labels")},
            )


def _jsonl(path: Path, content: str, parts: Parts) -> Records:
    wanted: tuple[str, ...] = ()
    for number, line in _lines(content):
        record = json_line(line, f"{path} line {number}", "one {...} per line")
        # the first line tells what all have
        wanted = wanted or parts.among((*parts.columns, *record))
        for part in wanted:
            if parts.column(part) not in record:
                raise _missing(path, part, parts, list(record), f"line {number}")
        yield number, {part: record[parts.column(part)] for part in wanted}


def _csv(path: Path, content: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise UserError(
            f"{path} line {reader.line_num} is not valid CSV ({error}); fix that line."
        ) from None


def _table(path: Path, rows: Iterator[tuple[int, list[str]]], parts: Parts) -> Records:
    """The parts out of rows; the first row is a header where it holds a name that is looked for."""
    start, head = next(rows, (1, []))
    names = [name.strip() for name in head]
    wanted = parts.among(parts.columns)
    headed = any(name in names and not name.isdecimal() for name in map(parts.column, wanted))
    if headed:
        wanted = parts.among((*parts.columns, *names))
    elif len(names) > len(wanted) and not parts.columns:
        wanted = parts.names
    places = {}
    for at, part in enumerate(wanted):
        name = parts.column(part)
        if name.isdecimal():
            places[part] = int(name)
        elif headed and name in names:
            places[part] = names.index(name)
        elif headed or parts.columns or len(names) != len(wanted):
            raise _missing(path, part, parts, names, f"line {start}")
        else:
            places[part] = at  # without names and without a header they are in their order
    for number, row in rows if headed else itertools.chain([(start, head)], rows):
        if len(row) <= max(places.values()):
            needed = (
                f"{path} line {number} has {len(row)} columns and number "
                f"{max(places.values())} (from 0) is needed"
            )
            raise UserError(f"{needed}; fix or remove that line.")
        yield number, {part: row[place] for part, place in places.items()}


def _missing(path: Path, part: str, parts: Parts, names: Sequence[str], where: str) -> UserError:
    shown = ", ".join(f'"{name[:SHORT]}"' for name in names) or "nothing"
    return UserError(
        f'{path} has no column "{parts.column(part)}" for the {part} ({where} holds {shown}); '
        "name it, or give "
        f"its number from 0 where there is no header: data.columns.{part} = NAME in a run file, "
        "for train "
        f"--data.columns.{part} NAME, for other commands --columns {part}=NAME."
    )
