"""Records: what a file holds for each part of an example, with its line.

.tsv .csv          columns by name (with a header) or by number
.jsonl             fields
{source, target}   a file for each part, line by line
IN: ... OUT: ...   SCAN's lines
CoNLL's columns    a word and its label a line, an empty line between sentences
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.objective import Part
from ..errors import UserError, nearest
from .published import locate

Record = dict[Part, Any]  # part -> what stands there
Records = Iterator[tuple[int, Record]]  # each with its line, from 1
Parts = tuple[Part, ...]
KNOWN: Parts = ("source", "target", "text", "second", "label", "tokens", "labels")
SCAN = ("IN: ", " OUT: ")
DOCUMENT = "-DOCSTART-"  # CoNLL 2003 has it in place of a word where a document begins
SHORT = 60  # characters of a name or label that a message quotes


def records(where: str | Mapping[str, str], parts: Parts, columns: Mapping[str, str]) -> tuple[str, Records]:
    """What a file, or a file for each part, is called and holds; ``columns`` names the parts or counts from 0.

    A text with a label may have a second one beside it. Raises UserError with the line for what is not there.
    """
    for part in (*columns, *(where if isinstance(where, Mapping) else ())):
        if part not in KNOWN:
            raise UserError(f'There is no part "{part}" of an example.{nearest(part, KNOWN)}')
    if isinstance(where, Mapping):
        return _parallel(where, _with_second(parts, "second" in where))
    path = locate(where)
    return str(path), _file(path, _with_second(parts, "second" in columns), columns)


def _with_second(parts: Parts, there: bool) -> Parts:
    return ("text", "second", "label") if there and "label" in parts else parts


def _file(path: Path, parts: Parts, columns: Mapping[str, str]) -> Records:
    content = _content(path)
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if kind in (".jsonl", ".ndjson"):
        return _jsonl(path, content, parts, columns)
    if "tokens" in parts:
        return _sentences(_table(path, _columns(content), parts, columns))
    if kind == ".csv":
        return _table(path, _csv(path, content), parts, columns)
    first = content.split("\n", 1)[0]
    if first.startswith(SCAN[0]) and SCAN[1] in first and parts == ("source", "target"):
        return _scan(path, content)
    if kind == ".tsv" or "\t" in first:
        return _table(path, ((number, line.split("\t")) for number, line in _lines(content)), parts, columns)
    if not content.strip():
        raise UserError(f"{path} is empty; give a file of examples.")
    raise UserError(
        f"{path} has no columns to find {' and '.join(parts)} in; give a .tsv, .csv or .jsonl file, or a file for each "
        f"part, in a run file such as train = {{ {', '.join(f'{part} = FILE' for part in parts)} }}."
    )


def _content(path: Path) -> str:
    """The text of a file; UserError with the line that is not UTF-8."""
    if not path.is_file():
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"{path} is not a file; give a file of examples.{nearest(path.name, beside)}")
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be read ({reason}); check the file and its rights.") from None
    if b"\0" in data:
        raise UserError(f"{path} is a binary file (a zero byte at byte {data.index(0)}); give a text file in UTF-8.")
    try:
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        sentence = f"{path} line {line} is not UTF-8 text; convert the file, for example with `iconv -t utf-8`."
        raise UserError(sentence) from None


def _lines(content: str) -> Iterator[tuple[int, str]]:
    """The lines that hold something."""
    for number, line in enumerate(content.split("\n"), 1):
        if line.strip():
            yield number, line.removesuffix("\r")


def _parallel(where: Mapping[str, str], parts: Parts) -> tuple[str, Records]:
    if set(where) != set(parts):
        needed, given = " and ".join(parts), " and ".join(where)
        raise UserError(f"A file for each part is needed, {needed}, and there is one for {given}; change data.train.")
    sides = [_content(locate(where[part])).removesuffix("\n").split("\n") for part in parts]
    if len({len(lines) for lines in sides}) > 1:
        counts = ", ".join(f"{where[part]} has {len(lines)} lines" for part, lines in zip(parts, sides, strict=True))
        raise UserError(f"{counts}; parallel files need the same number, so fix or replace one of them.")
    rows = enumerate(zip(*sides, strict=True), 1)
    found = ((n, {p: text.removesuffix("\r") for p, text in zip(parts, row, strict=True)}) for n, row in rows)
    return " + ".join(where[part] for part in parts), found


def _scan(path: Path, content: str) -> Records:
    for number, line in _lines(content):
        source, found, target = line.partition(SCAN[1])
        if not found or not source.startswith(SCAN[0]):
            raise UserError(f'{path} line {number} is not of the form "IN: ... OUT: ..."; fix or remove that line.')
        yield number, {"source": source.removeprefix(SCAN[0]), "target": target}


def _columns(content: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in _lines(content):
        yield number, line.split("\t") if "\t" in line else [word for word in line.split(" ") if word]


def _sentences(words: Records) -> Records:
    """The words of each sentence and their labels: lines that follow each other without an empty one."""
    for _, group in itertools.groupby(enumerate(words), lambda word: word[1][0] - word[0]):
        lines = [(number, word) for _, (number, word) in group if word["tokens"] != DOCUMENT]
        if lines:
            yield lines[0][0], {part: [word[part] for _, word in lines] for part in ("tokens", "labels")}


def _jsonl(path: Path, content: str, parts: Parts, columns: Mapping[str, str]) -> Records:
    for at, (number, line) in enumerate(_lines(content)):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} line {number} is not valid JSON ({error}); fix or remove that line.") from None
        if not isinstance(record, dict):
            raise UserError(f"{path} line {number} is not a JSON object; write one {{...}} per line.")
        parts = _with_second(parts, at == 0 and "second" in record)
        for part in parts:
            if columns.get(part, part) not in record:
                raise _missing(path, part, columns, list(record), f"line {number}")
        yield number, {part: record[columns.get(part, part)] for part in parts}


def _csv(path: Path, content: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise UserError(f"{path} line {reader.line_num} is not valid CSV ({error}); fix that line.") from None


def _table(path: Path, rows: Iterator[tuple[int, list[str]]], parts: Parts, columns: Mapping[str, str]) -> Records:
    """The parts out of rows; the first row is a header where it holds a name that is looked for."""
    start, head = next(rows, (1, []))
    names = [name.strip() for name in head]
    wanted = [str(columns.get(part, part)) for part in parts]
    headed = any(name in names and not name.isdecimal() for name in wanted)
    parts = _with_second(parts, "second" in names if headed else len(names) > len(parts) and not columns)
    places = {}
    for at, part in enumerate(parts):
        name = str(columns.get(part, part))
        if name.isdecimal():
            places[part] = int(name)
        elif headed and name in names:
            places[part] = names.index(name)
        elif headed or columns or len(names) != len(parts):
            raise _missing(path, part, columns, names, f"line {start}")
        else:
            places[part] = at  # without names and without a header they are in their order
    for number, row in rows if headed else itertools.chain([(start, head)], rows):
        if len(row) <= max(places.values()):
            needed = f"{path} line {number} has {len(row)} columns and number {max(places.values())} (from 0) is needed"
            raise UserError(f"{needed}; fix or remove that line.")
        yield number, {part: row[place] for part, place in places.items()}


def _missing(path: Path, part: str, columns: Mapping[str, str], names: Sequence[str], where: str) -> UserError:
    shown = ", ".join(f'"{name[:SHORT]}"' for name in names) or "nothing"
    return UserError(
        f'{path} has no column "{columns.get(part, part)}" for the {part} ({where} holds {shown}); name it, or give '
        f"its number from 0 where there is no header: --columns {part}=NAME (in a run file data.columns.{part} = NAME)."
    )
