"""Examples: what a model is shown and what it is to answer, read from tables, JSON lines or parallel files.

.tsv .csv          columns by name (with a header) or by number
.jsonl             fields; a list of sentences is one text, of a list of targets the first is learned
{source, target}   a file for each part, line by line
IN: ... OUT: ...   SCAN's lines
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError, nearest
from ..objectives import Classify, Contrast, Objective, Part, Seq2Seq

if TYPE_CHECKING:
    from .. import run
    from .tokenizer import Tokenizer

SCAN = ("IN: ", " OUT: ")
_SHORT = 60  # characters of a label that a message quotes


@dataclass(frozen=True)
class Example:
    """One example: ``first`` is its source or text, ``second`` its target or other text, ``line`` where it stands.

    ``label`` is the label's number in the set, or the number itself in a regression; ``references`` are all targets.
    """

    first: str
    second: str | None = None
    label: float | None = None
    line: int = 0
    references: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """Examples in the order of their file, the set of ``labels`` in the order of their numbers, and ``notes``."""

    name: str
    examples: tuple[Example, ...]
    labels: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)

    def texts(self) -> Iterator[str]:
        """Every text: what a tokenizer is trained on."""
        for example in self.examples:
            yield example.first
            if example.second is not None:
                yield example.second

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of what is learned from these examples, whatever the file is called."""
        digest = hashlib.sha256(json.dumps(self.labels).encode())
        for one in self.examples:
            digest.update(json.dumps([one.first, one.second, one.label]).encode())
        return digest.hexdigest()

    def split(self, share: float) -> tuple[Table, Table]:
        """Those to train on and a ``share`` to hold out, drawn the same way each time; both keep their order."""
        out = max(1, round(share * len(self)))
        if out >= len(self):
            raise UserError(
                f"{self.name} holds {len(self)} examples, too few to hold {share:g} of them out; give more."
            )
        held = np.zeros(len(self), bool)
        held[np.random.default_rng(0).permutation(len(self))[:out]] = True
        train, valid = (tuple(e for e, h in zip(self, held, strict=True) if h == which) for which in (False, True))
        return replace(self, examples=train), replace(self, examples=valid, notes=())


# ------------------------------------------------------------------------------- what to read


def parts_of(objective: Objective, second: bool = False) -> tuple[Part, ...]:
    """The parts of an example that an objective needs; ``second``: a classifier's texts are pairs."""
    if isinstance(objective, Seq2Seq):
        return "source", "target"
    if isinstance(objective, Contrast):
        return "text", "second"
    if isinstance(objective, Classify):
        return ("text", "second", "label") if second else ("text", "label")
    name = type(objective).__name__
    raise UserError(f'{name} learns from running text, not from examples; give a corpus ([data] type = "Data").')


def training_and_validation(data: run.Examples, objective: Objective) -> tuple[Table, Table]:
    """The tables that a run's [data] names, with the same set of labels. Raises UserError as ``read`` does."""
    how = {"columns": data.columns, "before": data.before}
    train = read(data.train, objective, labels=data.labels, **how)  # type: ignore[arg-type]
    if isinstance(data.valid, float):
        return train.split(data.valid)
    return train, read(data.valid, objective, labels=train.labels, **how)  # type: ignore[arg-type]


def read(
    where: str | Mapping[str, str],
    objective: Objective,
    *,
    columns: Mapping[str, str] | None = None,
    labels: Sequence[str] | None = None,
    before: str = "",
) -> Table:
    """The examples in a file, or in ``{part: file}`` line by line, for an objective.

    ``columns`` says what the parts are called, or which column from 0 they are; without it they have their own names,
    or are the columns in their order. ``labels`` is the set (None: what is found, sorted). An example with an empty
    text is left out, with a note. Raises UserError for what is missing or does not fit, with the line.
    """
    columns = dict(columns or {})
    known: tuple[Part, ...] = ("source", "target", "text", "second", "label")
    for part in (*columns, *(where if isinstance(where, Mapping) else ())):
        if part not in known:
            raise UserError(f'There is no part "{part}" of an example.{nearest(part, known)}')
    paired = "second" in columns or (isinstance(where, Mapping) and "second" in where)
    parts = parts_of(objective, paired)
    if isinstance(where, Mapping):
        name, records = _parallel(where, parts)
    else:
        name, records = where, _file(Path(where).expanduser(), objective, parts, columns)
    label = _Labels(name, labels, regression=isinstance(objective, Classify) and objective.regression)
    examples, empty = [], 0
    for line, record in records:
        made = _example(name, line, record, before, label)
        if made.first.strip(" \t") and (made.second is None or made.second.strip()):
            examples.append(made)
        else:
            empty += 1
    if not examples:
        raise UserError(f"{name} holds no examples; give a file with some.")
    notes = (f"{name}: {empty} examples left out: a text is empty",) if empty else ()
    return label.numbered(Table(name, tuple(examples), notes=notes), "label" in parts)


Record = dict[Part, Any]  # part -> what stands there


def _example(name: str, line: int, record: Record, before: str, label: _Labels) -> Example:
    texts = {part: _texts(name, line, part, value) for part, value in record.items() if part != "label"}
    first, *others = texts.values()
    second = others[0] if others else ("",)
    opened = before + first[0] if first[0].strip() else ""
    found = label.take(line, record["label"]) if "label" in record else None
    return Example(opened, second[0] if others else None, found, line, second if "target" in texts else ())


def _texts(name: str, line: int, part: str, value: Any) -> tuple[str, ...]:
    """A part's text, or its several targets; the sentences of a list are joined."""
    if part == "target" and isinstance(value, list) and value:
        return tuple(text for one in value for text in _texts(name, line, "", one))
    if isinstance(value, list) and all(isinstance(sentence, str) for sentence in value):
        value = " ".join(value)
    if not isinstance(value, str):
        raise UserError(f"{name} line {line} has a {type(value).__name__} where a text belongs; mend that line.")
    return (value,)


class _Labels:
    """Labels as numbers: of a set that is given, of the set that is found, or numbers as they are."""

    def __init__(self, name: str, given: Sequence[str] | None, regression: bool) -> None:
        self.name, self.regression = name, regression
        self.known = None if given is None else {label: number for number, label in enumerate(given)}
        self.found: dict[str, int] = {}

    def take(self, line: int, value: Any) -> float:
        """The number of a label; of a set that is not known yet, its number in the order of appearance."""
        word = json.dumps(value) if isinstance(value, bool | int | float) else value
        if not isinstance(word, str) or not word.strip():
            raise UserError(f"{self.name} line {line} has no label; mend or remove that line.")
        word = word.strip()
        if self.regression:
            try:
                number = float(word)
            except ValueError:
                number = math.nan
            if not math.isfinite(number):
                raise UserError(
                    f'{self.name} line {line} has the label "{word[:_SHORT]}", which is no number; mend it.'
                )
            return number
        if self.known is None:
            return self.found.setdefault(word, len(self.found))
        if word not in self.known:
            sentence = f'{self.name} line {line} has the label "{word[:_SHORT]}", which is not one of the set.'
            raise UserError(sentence + nearest(word, self.known))
        return self.known[word]

    def numbered(self, table: Table, labelled: bool) -> Table:
        """The table with the set of its labels, found ones in sorted order: as numbers where they all are."""
        if not labelled or self.regression:
            return table
        if self.known is not None:
            return replace(table, labels=tuple(self.known))
        order = sorted(self.found, key=int) if all(map(_whole, self.found)) else sorted(self.found)
        number = {self.found[word]: place for place, word in enumerate(order)}
        examples = tuple(replace(one, label=number[int(one.label or 0)]) for one in table)
        return replace(table, examples=examples, labels=tuple(order))


def _whole(word: str) -> bool:
    return word.removeprefix("-").isdecimal()


# -------------------------------------------------------------------------------------- files


def _file(
    path: Path, objective: Objective, parts: tuple[Part, ...], columns: dict[str, str]
) -> Iterator[tuple[int, Record]]:
    content = _content(path)
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if kind in (".jsonl", ".ndjson"):
        return _jsonl(path, content, parts, columns)
    if kind == ".csv":
        return _columns(path, _csv(path, content), parts, columns)
    first = content.split("\n", 1)[0]
    if first.startswith(SCAN[0]) and SCAN[1] in first and isinstance(objective, Seq2Seq):
        return _scan(path, content)
    if kind == ".tsv" or "\t" in first:
        rows = ((number, line.split("\t")) for number, line in _lines(content))
        return _columns(path, rows, parts, columns)
    needed = " and ".join(parts)
    raise UserError(
        f"{path} has no columns to find {needed} in; give a .tsv, .csv or .jsonl file, or a file for each part, "
        f"such as train = {{ {', '.join(f'{part} = FILE' for part in parts)} }}."
    )


def _content(path: Path) -> str:
    """The text of a file; UserError with the line that is not UTF-8."""
    if not path.is_file():
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"{path} does not exist or is a folder; give a file of examples.{nearest(path.name, beside)}")
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
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
    """The lines that hold something, counted from 1."""
    for number, line in enumerate(content.split("\n"), 1):
        if line.strip():
            yield number, line.removesuffix("\r")


def _parallel(where: Mapping[str, str], parts: tuple[Part, ...]) -> tuple[str, Iterator[tuple[int, Record]]]:
    if set(where) != set(parts):
        raise UserError(f"data.train and valid need a file for {' and '.join(parts)}; there is {', '.join(where)}.")
    sides = {part: _content(Path(where[part]).expanduser()).removesuffix("\n").split("\n") for part in parts}
    counts = [f"{where[part]} has {len(lines):,} lines" for part, lines in sides.items()]
    if len({len(lines) for lines in sides.values()}) > 1:
        raise UserError(f"{', '.join(counts)}; parallel files need the same number, so mend or replace one of them.")
    rows = enumerate(zip(*sides.values(), strict=True), 1)
    records = (
        (number, {p: text.removesuffix("\r") for p, text in zip(parts, row, strict=True)}) for number, row in rows
    )
    return " + ".join(where[part] for part in parts), records


def _scan(path: Path, content: str) -> Iterator[tuple[int, Record]]:
    for number, line in _lines(content):
        source, found, target = line.partition(SCAN[1])
        if not found or not source.startswith(SCAN[0]):
            raise UserError(f'{path} line {number} is not of the form "IN: ... OUT: ..."; mend or remove that line.')
        yield number, {"source": source.removeprefix(SCAN[0]), "target": target}


def _jsonl(path: Path, content: str, parts: tuple[Part, ...], columns: dict[str, str]) -> Iterator[tuple[int, Record]]:
    for number, line in _lines(content):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} line {number} is not valid JSON ({error}); mend or remove that line.") from None
        if not isinstance(record, dict):
            raise UserError(f"{path} line {number} is no JSON object; write one {{...}} per line.")
        for part in parts:
            if columns.get(part, part) not in record:
                raise _missing(path, part, columns, record, f"line {number}")
        yield number, {part: record[columns.get(part, part)] for part in parts}


def _csv(path: Path, content: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise UserError(f"{path} line {reader.line_num} is not valid CSV ({error}); mend that line.") from None


def _columns(
    path: Path, rows: Iterator[tuple[int, list[str]]], parts: tuple[Part, ...], columns: dict[str, str]
) -> Iterator[tuple[int, Record]]:
    """The parts out of rows of columns; the first row is a header when it holds a name that is looked for."""
    start, head = next(rows, (1, []))
    names = [name.strip() for name in head]
    wanted = {part: str(columns.get(part, part)) for part in parts}
    if any(name in names for name in wanted.values()):
        for part, name in wanted.items():
            if name not in names and not name.isdecimal():
                raise _missing(path, part, columns, names, "the header")
        places = {part: names.index(name) if name in names else int(name) for part, name in wanted.items()}
    else:
        if columns and all(name.isdecimal() for name in wanted.values()):
            places = {part: int(name) for part, name in wanted.items()}
        elif not columns and len(head) == len(parts):
            places = {part: place for place, part in enumerate(parts)}
        else:
            part = next(part for part in parts if not wanted[part].isdecimal())
            raise _missing(path, part, columns, names, "the first line")
        rows = iter([(start, head), *rows])
    for number, row in rows:
        if len(row) <= max(places.values()):
            sentence = f"{path} line {number} has {len(row)} columns and column {max(places.values())} (from 0) is "
            raise UserError(sentence + "needed; mend or remove that line.")
        yield number, {part: row[place] for part, place in places.items()}


def _missing(
    path: Path, part: str, columns: Mapping[str, str], names: Sequence[str] | Mapping[str, Any], where: str
) -> UserError:
    shown = ", ".join(f'"{name[:_SHORT]}"' for name in names) or "nothing"
    return UserError(
        f'{path} has no column "{columns.get(part, part)}" for the {part}; {where} holds {shown}: name the column, or '
        f'its number from 0 where there is no header, as data.columns = {{ {part} = "NAME" }}.'
    )


# ------------------------------------------------------------------- how a target is opened


def start_of_target(tokenizer: Tokenizer) -> int:
    """The token from which a decoder begins to write a target: bos, or pad (T5). Raises UserError without either."""
    start = tokenizer.pad if tokenizer.bos is None else tokenizer.bos
    if start is None:
        raise UserError("This tokenizer has no bos and no pad token to begin a target with; use one that has.")
    return start


def question(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """What a decoder alone reads before it writes the target: (bos) source, then sep or what starts a target."""
    bos = [] if tokenizer.bos is None or tokenizer.bos == tokenizer.eos else [tokenizer.bos]
    return [*bos, *ids, start_of_target(tokenizer) if tokenizer.sep is None else tokenizer.sep]
