"""Examples read from a file's records, as an objective makes them; labels as numbers."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError, nearest, need
from .conversations import read as read_conversations
from .example_table import SHORT, Example, ExampleTable
from .records import Record, conversational, records

if TYPE_CHECKING:
    from ..core.config.objective import Objective


def read_examples(
    source: str | Mapping[str, str],
    objective: Objective,
    *,
    columns: Mapping[str, str] | None = None,
    labels: Sequence[str] | None = None,
    before: str = "",
) -> ExampleTable:
    """The examples in a file, or in ``{part: file}`` line by line, as the objective's ``example``
    makes them.

    ``columns`` says what the parts are called, or which column from 0 they are; without it they
    have their own names, or are the columns in their order. ``labels`` is the set (None: what is
    found, sorted). An example with an empty text is left out, with a note. Raises UserError for
    what is missing or does not fit, with the line.
    """
    running = f"{type(objective).__name__} learns from running text, not from examples"
    need(bool(objective.example_fields), f'{running}; give a corpus ([data] type = "Data").')
    chooses = objective.labelled and not getattr(objective, "regression", False)
    need(
        chooses or not labels,
        f"{type(objective).__name__} chooses from no labels with these settings; leave "
        "data.labels out.",
    )
    name, rows = records(source, objective, columns or {})
    if conversational(objective):
        need(not before, "Conversations have no text before them; leave data.prefix out.")
        conversations = tuple(read_conversations(name, rows, columns or {}, objective.example))
        need(bool(conversations), f"{name} holds no conversations; give a file with some.")
        return ExampleTable(name, conversations)
    numbers = {label: number for number, label in enumerate(labels or ())}
    examples, empty = [], 0
    for line, record in rows:
        row = ExampleRow(name, line, record, before, numbers, labels is not None)
        example = objective.example(row)
        if example.first.strip(" \t") and (example.second is None or example.second.strip()):
            examples.append(example)
        else:
            empty += 1
    need(bool(examples), f"{name} holds no examples; give a file with some.")
    notes = (f"{name}: left out for an empty text: {empty}",) if empty else ()
    if labels is None:
        examples, numbers = _sorted_labels(examples, numbers)
    return ExampleTable(name, tuple(examples), tuple(numbers) or None, notes)


def _sorted_labels(
    examples: list[Example], numbers: dict[str, int]
) -> tuple[list[Example], dict[str, int]]:
    """Labels that were numbered as they appeared, numbered in sorted order: as numbers where they
    all are."""
    numeric = all(label.removeprefix("-").isdecimal() for label in numbers)
    order = sorted(numbers, key=int if numeric else str)
    number: dict[Any, int] = {numbers[label]: place for place, label in enumerate(order)}
    if not order:
        return examples, {}
    return [
        replace(example, tags=tuple(number[tag] for tag in example.tags))
        if example.tags
        else replace(example, label=number[example.label])
        for example in examples
    ], {label: place for place, label in enumerate(order)}


@dataclass(frozen=True)
class ExampleRow:
    """One record of a file, from which an objective makes its example: parts as texts, words or
    labels.

    ``before`` stands before each source or text. ``numbers`` of labels are a ``fixed`` set, or grow
    as labels appear. All raise UserError with the line for what is not what they read.
    """

    name: str
    line: int
    record: Record
    before: str
    numbers: dict[str, int]
    fixed: bool

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
        return tuple(map(self._text, value if isinstance(value, list) and value else [value]))

    def list(self, field: str) -> list[Any]:
        """A list."""
        value = self.record[field]
        if not isinstance(value, list):
            raise self._holds(value, f"for its {field}; give a list")
        return value

    def words(self, field: str) -> tuple[str, ...]:
        """A list of words, none of them empty."""
        words = self.list(field)
        for word in words:
            if not isinstance(word, str) or not word.strip():
                raise self._holds(word, "where a word belongs; fix that line")
        return tuple(words)

    def label(self, value: Any) -> int:
        """The number of a label: of a set that is not known yet, in the order of appearance."""
        word = self._word(value)
        if self.fixed and word not in self.numbers:
            sentence = (
                f'{self.location} has the label "{word[:SHORT]}", which is not one of the set.'
            )
            raise UserError(sentence + nearest(word, self.numbers))
        return self.numbers.setdefault(word, len(self.numbers))

    def number(self, value: Any) -> float:
        """A finite number."""
        word = self._word(value)
        with contextlib.suppress(ValueError):
            if math.isfinite(number := float(word)):
                return number
        raise UserError(
            f'{self.location} has the label "{word[:SHORT]}", which is not a number; fix it.'
        )

    def _word(self, value: Any) -> str:
        """A label as it is written."""
        word = json.dumps(value) if isinstance(value, bool | int | float) else value
        if not isinstance(word, str) or not word.strip():
            raise UserError(f"{self.location} has no label; fix or remove that line.")
        return word.strip()

    def _text(self, value: Any) -> str:
        if isinstance(value, list) and all(isinstance(sentence, str) for sentence in value):
            value = " ".join(value)
        if not isinstance(value, str):
            raise self._holds(value, "where a text belongs; fix that line")
        return value

    def _holds(self, value: Any, fix: str) -> UserError:
        return UserError(f"{self.location} holds {json.dumps(value)[:SHORT]} {fix}.")
