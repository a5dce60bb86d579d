"""Examples: what a model is shown and what it is to answer, with the set of their labels."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ..core.errors import UserError, nearest, need
from .records import SHORT, Record, records

if TYPE_CHECKING:
    from ..core.config import run
    from ..core.config.objective import Objective
    from ..core.tokenizer.tokenizer import Tokenizer

Cut: TypeAlias = Literal["no", "end", "start"]
"""What a text that is too long loses; "no" refuses it."""


@dataclass(frozen=True)
class Example:
    """One example: ``first`` is its source or text, ``second`` its target or other text, ``line``
    where it stands.

    ``label`` is the label's number in the set, or the number itself in a regression; ``references``
    are all targets. A sentence that is tagged has ``words`` and as many ``tags``, their labels'
    numbers.
    """

    first: str
    second: str | None = None
    label: float | None = None
    line: int = 0
    references: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    tags: tuple[int, ...] = ()


@dataclass(frozen=True)
class Table:
    """Examples in the order of their file, the set of ``labels`` in the order of their numbers, and
    ``notes``."""

    name: str
    examples: tuple[Example, ...]
    labels: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)

    def texts(self, first: bool = True, second: bool = True) -> Iterator[str]:
        """Every text, or those of one side: what a tokenizer is trained on."""
        for example in self.examples:
            if first:
                yield example.first
            if second and example.second is not None:
                yield example.second

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of what is learned from these examples, whatever the file is called."""
        digest = hashlib.sha256(json.dumps(self.labels).encode())
        for example in self.examples:
            digest.update(
                json.dumps(
                    [example.words or example.first, example.second, example.tags or example.label]
                ).encode()
            )
        return digest.hexdigest()

    def split(self, share: float) -> tuple[Table, Table]:
        """Training and validation examples: a ``share`` is held out, drawn with a fixed seed; both
        keep their order."""
        out = max(1, round(share * len(self)))
        if out >= len(self):
            raise UserError(
                f"{self.name} holds {len(self)} examples, too few to hold {share:g} of them out; "
                "give more."
            )
        held_out = np.zeros(len(self), bool)
        held_out[np.random.default_rng(0).permutation(len(self))[:out]] = True
        train, valid = (
            tuple(e for e, h in zip(self, held_out, strict=True) if h == which)
            for which in (False, True)
        )
        return replace(self, examples=train), replace(self, examples=valid, notes=())


# ------------------------------------------------------------------------------- what to read


def training_and_validation(data: run.Examples, objective: Objective) -> tuple[Table, Table]:
    """The tables that a run's [data] names, with the same set of labels. Raises UserError as
    ``read_examples`` does."""
    options = {"columns": data.columns, "before": data.prefix}
    train = read_examples(data.train, objective, labels=data.labels, **options)  # type: ignore[arg-type]
    if isinstance(data.valid, float):
        return train.split(data.valid)
    return train, read_examples(data.valid, objective, labels=train.labels, **options)  # type: ignore[arg-type]


def read_examples(
    source: str | Mapping[str, str],
    objective: Objective,
    *,
    columns: Mapping[str, str] | None = None,
    labels: Sequence[str] | None = None,
    before: str = "",
) -> Table:
    """The examples in a file, or in ``{part: file}`` line by line, as the objective's ``example``
    makes them.

    ``columns`` says what the parts are called, or which column from 0 they are; without it they
    have their own names, or are the columns in their order. ``labels`` is the set (None: what is
    found, sorted). An example with an empty text is left out, with a note. Raises UserError for
    what is missing or does not fit, with the line.
    """
    running = f"{type(objective).__name__} learns from running text, not from examples"
    need(bool(objective.example_fields), f'{running}; give a corpus ([data] type = "Data").')
    name, rows = records(source, objective, columns or {})
    label_set = _Labels(name, labels)
    examples, empty = [], 0
    for line, record in rows:
        example = objective.example(Row(name, line, record, before, label_set))
        if example.first.strip(" \t") and (example.second is None or example.second.strip()):
            examples.append(example)
        else:
            empty += 1
    need(bool(examples), f"{name} holds no examples; give a file with some.")
    notes = (f"{name}: left out for an empty text: {empty}",) if empty else ()
    return label_set.numbered(Table(name, tuple(examples), notes=notes))


@dataclass(frozen=True)
class Row:
    """One record of a file, from which an objective makes its example: parts as texts, words or
    labels.

    ``before`` stands before each source or text. All raise UserError with the line for what is not
    what they read.
    """

    name: str
    line: int
    record: Record
    before: str
    labels: _Labels

    def __contains__(self, field: str) -> bool:
        return field in self.record

    @property
    def location(self) -> str:
        """The file and the line."""
        return f"{self.name} line {self.line}"

    def text(self, field: str) -> str:
        """A text; the sentences of a list are joined."""
        return self._text(self.record[field])

    def prefixed_text(self, field: str) -> str:
        """A text with what stands before it; nothing stays nothing."""
        text = self.text(field)
        return self.before + text if text.strip() else ""

    def texts(self, field: str) -> tuple[str, ...]:
        """A text, or each of a list."""
        value = self.record[field]
        return (
            tuple(map(self._text, value))
            if isinstance(value, list) and value
            else (self._text(value),)
        )

    def list(self, field: str) -> list[Any]:
        """A list."""
        value = self.record[field]
        if not isinstance(value, list):
            raise UserError(
                f"{self.location} holds {json.dumps(value)[:SHORT]} for its {field}; give a list."
            )
        return value

    def words(self, field: str) -> tuple[str, ...]:
        """A list of words, none of them empty."""
        words = self.list(field)
        for word in words:
            if not isinstance(word, str) or not word.strip():
                quoted = json.dumps(word)[:SHORT]
                raise UserError(
                    f"{self.location} holds {quoted} where a word belongs; fix that line."
                )
        return tuple(words)

    def label(self, field: str) -> int:
        """The number of a label in the set."""
        return self.labels.number(self.line, self.record[field])

    def number(self, field: str) -> float:
        """A finite number."""
        word = self.labels.word(self.line, self.record[field])
        with contextlib.suppress(ValueError):
            if math.isfinite(number := float(word)):
                return number
        raise UserError(
            f'{self.location} has the label "{word[:SHORT]}", which is not a number; fix it.'
        )

    def _text(self, value: Any) -> str:
        if isinstance(value, list) and all(isinstance(sentence, str) for sentence in value):
            value = " ".join(value)
        if not isinstance(value, str):
            raise UserError(
                f"{self.location} holds {json.dumps(value)[:SHORT]} where a text "
                "belongs; fix that line."
            )
        return value


class _Labels:
    """Labels as numbers: of a set that is given, or of the set that is found."""

    def __init__(self, name: str, labels: Sequence[str] | None) -> None:
        self.name = name
        self.known = (
            None if labels is None else {label: number for number, label in enumerate(labels)}
        )
        self.found: dict[str, int] = {}  # label -> its number in the order of appearance

    def word(self, line: int, value: Any) -> str:
        """A label as it is written."""
        word = json.dumps(value) if isinstance(value, bool | int | float) else value
        if not isinstance(word, str) or not word.strip():
            raise UserError(f"{self.name} line {line} has no label; fix or remove that line.")
        return word.strip()

    def number(self, line: int, value: Any) -> int:
        """The number of a label; of a set that is not known yet, its number in the order of
        appearance."""
        word = self.word(line, value)
        number = self.found.setdefault(word, len(self.found))
        if self.known is None:
            return number
        if word not in self.known:
            sentence = (
                f'{self.name} line {line} has the label "{word[:SHORT]}", which is not '
                "one of the set."
            )
            raise UserError(sentence + nearest(word, self.known))
        return self.known[word]

    def numbered(self, table: Table) -> Table:
        """The table with the set of its labels, found ones in sorted order: as numbers where they
        all are."""
        if not self.found:
            return table
        if self.known is not None:
            return replace(table, labels=tuple(self.known))
        order = sorted(self.found, key=int) if all(map(_whole, self.found)) else sorted(self.found)
        number = {self.found[word]: place for place, word in enumerate(order)}
        examples = tuple(
            replace(example, tags=tuple(number[tag] for tag in example.tags))
            if example.tags
            else replace(example, label=number[int(example.label or 0)])
            for example in table
        )
        return replace(table, examples=examples, labels=tuple(order))


def _whole(word: str) -> bool:
    return word.removeprefix("-").isdecimal()


# ------------------------------------------------------------------------------- words and labels


def encode_words(
    tokenizer: Tokenizer, sentences: Iterable[Sequence[str]]
) -> Iterator[list[list[int]]]:
    """The ids of each word of each sentence, encoded one by one, behind the space that a text has
    before it."""
    sentences = [
        [w if tokenizer.adds_prefix or not at else f" {w}" for at, w in enumerate(words)]
        for words in sentences
    ]
    apart = list(dict.fromkeys(word for words in sentences for word in words))
    ids_of = dict(zip(apart, tokenizer.encode_batch(apart), strict=True))
    for words in sentences:
        missing = next((word for word in words if not ids_of[word]), None)
        if missing is not None:
            raise UserError(
                "The tokenizer makes no token of the word "
                f"{json.dumps(missing.strip())[:SHORT]}; fix it."
            )
        yield [ids_of[word] for word in words]
