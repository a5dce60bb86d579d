"""Records: what a file holds for each part of an example, with its line.

.tsv .csv          columns by name (with a header) or by number
.jsonl .json       fields; .json is a list
.parquet .arrow    columns (formats/tables.py)
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

from ..core.config.objective import Objective
from ..core.config.serial import members
from ..core.errors import UserError, nearest, need
from ..core.files import json_value
from ..formats.data.catalog import locate
from ..formats.data.corpus import nearest_name
from ..formats.data.text_streams import (
    DAMAGE,
    binary,
    json_line,
    plain_suffix,
    unpacked,
    unreadable,
)
from ..formats.tables import SUFFIXES, table_rows
from .example_table import SHORT

Record = dict[str, Any]  # part -> what stands there
Records = Iterator[tuple[int, Record]]  # each with its line, from 1
SCAN = ("IN: ", " OUT: ")
LINES = (".jsonl", ".ndjson")
DOCUMENT = "-DOCSTART-"  # CoNLL 2003 has it in place of a word where a document begins


@dataclass(frozen=True)
class Fields:
    """Fields of an example, in order; some are ``optional``. ``columns`` maps them to column names
    or to numbers from 0."""

    names: tuple[str, ...]
    optional: tuple[str, ...]
    columns: Mapping[str, str]

    def among(self, available: Iterable[str]) -> tuple[str, ...]:
        """The parts, without the optional ones that are not there."""
        return tuple(
            field for field in self.names if field not in self.optional or field in available
        )

    def column(self, field: str) -> str:
        """Name or number of a field's column in the file."""
        return str(self.columns.get(field, field))


def records(
    source: str | Mapping[str, str], objective: Objective, columns: Mapping[str, str]
) -> tuple[str, Records]:
    """The name and the records of a file, or of one file for each field of the objective.

    Raises UserError with the line for what is not there.
    """
    kinds: Iterable[Any] = members(Objective).values() if conversational(objective) else [objective]
    known_fields = dict.fromkeys(field for kind in kinds for field in kind.example_fields)
    for field in (*columns, *(source if isinstance(source, Mapping) else ())):
        if field not in known_fields:
            raise UserError(
                f'There is no part "{field}" in the examples of {type(objective).__name__}.'
                f"{nearest(field, known_fields)}"
            )
    fields = Fields(objective.example_fields, objective.optional, columns)
    if isinstance(source, Mapping):
        need(not conversational(objective), "Conversations are one file; change data.train.")
        return _parallel(source, fields.among(source))
    path = locate(source)
    if conversational(objective):
        return str(path), objects(path)
    return str(path), _file(path, fields)


def conversational(objective: Objective) -> bool:
    """True if the objective's examples are conversations (``tasks/conversations.py``)."""
    return bool({"messages", "chosen"} & {*objective.example_fields})


def objects(path: Path) -> Records:
    """The records of a .jsonl file, of a list in a .json file, or of a table in Parquet or Arrow."""
    if path.suffix in SUFFIXES and path.is_file():
        return iter(enumerate(table_rows(path), 1))
    content, suffix = _content(path), plain_suffix(path)
    if suffix == ".json" or (suffix not in LINES and content.lstrip()[:1] == "["):
        listed = json_value(content, str(path), "fix the file")
        is_list = isinstance(listed, list) and all(isinstance(item, dict) for item in listed)
        need(is_list, f"{path} is not a list of objects; write [{{...}}, {{...}}].")
        return iter(enumerate(listed, 1))
    return (
        (number, json_line(line, f"{path} line {number}", "one {...} per line"))
        for number, line in _lines(content)
    )


def first_record(name: str) -> Record:
    """The first record of a file of conversations; UserError where it has none."""
    path = locate(name)
    _, record = next(objects(path), (0, None))
    if record is None:
        raise UserError(f"{path} is empty; give a file of conversations.")
    return record


def _file(path: Path, fields: Fields) -> Records:
    if path.suffix in (*SUFFIXES, ".json") and path.is_file():
        return _selected(path, objects(path), fields)
    content = _content(path)
    kind = plain_suffix(path)
    if kind in LINES:
        return _selected(path, objects(path), fields)
    if "tokens" in fields.names:
        return _sentences(_table(path, _columns(content), fields))
    if kind == ".csv":
        return _table(path, _csv(path, content), fields)
    first = content.split("\n", 1)[0]
    if first.startswith(SCAN[0]) and SCAN[1] in first and fields.names == ("source", "target"):
        return _scan(path, content)
    if kind == ".tsv" or "\t" in first:
        return _table(
            path, ((number, line.split("\t")) for number, line in _lines(content)), fields
        )
    need(bool(content.strip()), f"{path} is empty; give a file of examples.")
    needed = fields.among(fields.columns)
    raise UserError(
        f"{path} has no columns to find {' and '.join(needed)} in; give a .tsv, .csv or .jsonl "
        "file, or a file for "
        f"each part, in a run file such as train = {{ "
        f"{', '.join(f'{field} = FILE' for field in needed)} }}."
    )


def _content(path: Path) -> str:
    """The text of a file; UserError with the line that is not UTF-8."""
    if not path.is_file():
        raise UserError(f"{path} is not a file; give a file of examples.{nearest_name(path)}")
    try:
        with path.open("rb") as raw:
            data = unpacked(raw, path).read()
    except DAMAGE as error:
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


def _parallel(sources: Mapping[str, str], fields: tuple[str, ...]) -> tuple[str, Records]:
    if set(sources) != set(fields):
        needed, supplied = " and ".join(fields), " and ".join(sources)
        raise UserError(
            f"A file for each part is needed, {needed}, and there is one for "
            f"{supplied}; change data.train."
        )
    sides = [_content(locate(sources[field])).removesuffix("\n").split("\n") for field in fields]
    if len({len(lines) for lines in sides}) > 1:
        line_counts = ", ".join(
            f"{sources[field]} has {len(lines)} lines"
            for field, lines in zip(fields, sides, strict=True)
        )
        raise UserError(
            f"{line_counts}; parallel files need the same number, so fix or replace one of them."
        )
    rows = enumerate(zip(*sides, strict=True), 1)
    numbered = (
        (n, {p: text.removesuffix("\r") for p, text in zip(fields, row, strict=True)})
        for n, row in rows
    )
    return " + ".join(sources[field] for field in fields), numbered


def _scan(path: Path, content: str) -> Records:
    for number, line in _lines(content):
        source, separator, target = line.partition(SCAN[1])
        if not separator or not source.startswith(SCAN[0]):
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
                {field: [word[field] for _, word in lines] for field in ("tokens", "labels")},
            )


def _selected(path: Path, rows: Records, fields: Fields) -> Records:
    selected: tuple[str, ...] = ()
    for number, record in rows:
        # the first line tells what all have
        selected = selected or fields.among((*fields.columns, *record))
        for field in selected:
            if fields.column(field) not in record:
                raise _missing(path, field, fields, list(record), f"line {number}")
        yield number, {field: record[fields.column(field)] for field in selected}


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


def _table(path: Path, rows: Iterator[tuple[int, list[str]]], fields: Fields) -> Records:
    """The parts out of rows; the first row is a header where it holds a name that is looked for."""
    start, head = next(rows, (1, []))
    names = [name.strip() for name in head]
    selected = fields.among(fields.columns)
    headed = any(name in names and not name.isdecimal() for name in map(fields.column, selected))
    if headed:
        selected = fields.among((*fields.columns, *names))
    elif len(names) > len(selected) and not fields.columns:
        selected = fields.names
    places = {}
    for at, field in enumerate(selected):
        name = fields.column(field)
        if name.isdecimal():
            places[field] = int(name)
        elif headed and name in names:
            need(names.count(name) == 1, f'{path} has several columns "{name}"; rename one.')
            places[field] = names.index(name)
        elif headed or fields.columns or len(names) != len(selected):
            raise _missing(path, field, fields, names, f"line {start}")
        else:
            places[field] = at  # without names and without a header they are in their order
    for number, row in rows if headed else itertools.chain([(start, head)], rows):
        if len(row) <= max(places.values()):
            needed = (
                f"{path} line {number} has {len(row)} columns and number "
                f"{max(places.values())} (from 0) is needed"
            )
            raise UserError(f"{needed}; fix or remove that line.")
        need(
            not headed or not any(cell.strip() for cell in row[len(names) :]),
            f"{path} line {number} has {len(row)} columns and the header {len(names)}; fix that "
            "line, in a .csv by quotes around a text with commas.",
        )
        yield number, {field: row[place] for field, place in places.items()}


def _missing(
    path: Path, field: str, fields: Fields, names: Sequence[str], location: str
) -> UserError:
    listed = ", ".join(f'"{name[:SHORT]}"' for name in names) or "nothing"
    return UserError(
        f'{path} has no column "{fields.column(field)}" for the {field} ({location} holds {listed}); '
        "name it, or give "
        f"its number from 0 where there is no header: data.columns.{field} = NAME in a run file, "
        "for train "
        f"--data.columns.{field} NAME, for other commands --columns {field}=NAME."
    )
