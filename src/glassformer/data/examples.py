"""Examples: what a model is shown and what it is to answer, with the set of their labels."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ..config.objective import Classify, Contrast, Objective, Part, Seq2Seq, Tag
from ..errors import UserError, nearest
from .records import SHORT, Record, records

if TYPE_CHECKING:
    from ..config import run
    from ..tokenizer.tokenizer import Tokenizer

Cut: TypeAlias = Literal["no", "end", "start"]
"""What a text that is too long loses; "no" refuses it."""


@dataclass(frozen=True)
class Example:
    """One example: ``first`` is its source or text, ``second`` its target or other text, ``line`` where it stands.

    ``label`` is the label's number in the set, or the number itself in a regression; ``references`` are all targets.
    A sentence that is tagged has ``words`` and as many ``tags``, their labels' numbers.
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
            digest.update(json.dumps([one.words or one.first, one.second, one.tags or one.label]).encode())
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


PARTS: dict[type, tuple[Part, ...]] = {
    Seq2Seq: ("source", "target"),
    Contrast: ("text", "second"),
    Classify: ("text", "label"),  # and the second text, where there is one
    Tag: ("tokens", "labels"),
}


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
    if type(objective) not in PARTS:
        sentence = f"{type(objective).__name__} learns from running text, not from examples; "
        raise UserError(sentence + 'give a corpus ([data] type = "Data").')
    name, found = records(where, PARTS[type(objective)], columns or {})
    label = _Labels(name, labels, regression=isinstance(objective, Classify) and objective.regression)
    examples, empty = [], 0
    tagged = isinstance(objective, Tag)
    if tagged and before:
        raise UserError("Words that are tagged have no text before them; leave data.before (--before) out.")
    for line, record in found:
        made = _tagged(name, line, record, label) if tagged else _example(name, line, record, before, label)
        if made.first.strip(" \t") and (made.second is None or made.second.strip()):
            examples.append(made)
        else:
            empty += 1
    if not examples:
        raise UserError(f"{name} holds no examples; give a file with some.")
    notes = (f"{name}: left out for an empty text: {empty}",) if empty else ()
    return label.numbered(Table(name, tuple(examples), notes=notes), labelled=isinstance(objective, Classify | Tag))


def _example(name: str, line: int, record: Record, before: str, label: _Labels) -> Example:
    texts = {part: _texts(name, line, part, value) for part, value in record.items() if part != "label"}
    first, *others = texts.values()
    second = others[0] if others else ("",)
    opened = before + first[0] if first[0].strip() else ""
    found = label.take(line, record["label"]) if "label" in record else None
    return Example(opened, second[0] if others else None, found, line, second if "target" in texts else ())


def _tagged(name: str, line: int, record: Record, label: _Labels) -> Example:
    """A sentence of words with a label each."""
    words, labels = record["tokens"], record["labels"]
    for part, value in record.items():
        if not isinstance(value, list):
            raise UserError(f"{name} line {line} holds {json.dumps(value)[:SHORT]} for its {part}; give a list.")
    if len(words) != len(labels):
        raise UserError(f"{name} line {line} has {len(words)} words and {len(labels)} labels; give one for each word.")
    for word in words:
        if not isinstance(word, str) or not word.strip():
            raise UserError(f"{name} line {line} holds {json.dumps(word)[:SHORT]} where a word belongs; fix that line.")
    tags = tuple(int(label.take(line, value)) for value in labels)
    return Example(" ".join(words), line=line, words=tuple(words), tags=tags)


def _texts(name: str, line: int, part: str, value: Any) -> tuple[str, ...]:
    """A part's text, or its several targets; the sentences of a list are joined."""
    if part == "target" and isinstance(value, list) and value:
        return tuple(text for one in value for text in _texts(name, line, "", one))
    if isinstance(value, list) and all(isinstance(sentence, str) for sentence in value):
        value = " ".join(value)
    if not isinstance(value, str):
        raise UserError(f"{name} line {line} holds {json.dumps(value)[:SHORT]} where a text belongs; fix that line.")
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
            raise UserError(f"{self.name} line {line} has no label; fix or remove that line.")
        word = word.strip()
        if self.regression:
            try:
                number = float(word)
            except ValueError:
                number = math.nan
            if not math.isfinite(number):
                raise UserError(
                    f'{self.name} line {line} has the label "{word[:SHORT]}", which is not a number; fix it.'
                )
            return number
        if self.known is None:
            return self.found.setdefault(word, len(self.found))
        if word not in self.known:
            sentence = f'{self.name} line {line} has the label "{word[:SHORT]}", which is not one of the set.'
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
        examples = tuple(
            replace(one, tags=tuple(number[tag] for tag in one.tags))
            if one.tags
            else replace(one, label=number[int(one.label or 0)])
            for one in table
        )
        return replace(table, examples=examples, labels=tuple(order))


def _whole(word: str) -> bool:
    return word.removeprefix("-").isdecimal()


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


# ------------------------------------------------------------------------------- words and labels


def words_apart(tokenizer: Tokenizer, sentences: Iterable[Sequence[str]]) -> Iterator[list[list[int]]]:
    """The ids of each word of each sentence, encoded one by one, behind the space that a text has before it."""
    sentences = [
        [w if tokenizer.adds_prefix or not at else f" {w}" for at, w in enumerate(words)] for words in sentences
    ]
    apart = list(dict.fromkeys(word for words in sentences for word in words))
    known = dict(zip(apart, tokenizer.encode_batch(apart), strict=True))
    for words in sentences:
        missing = next((word for word in words if not known[word]), None)
        if missing is not None:
            raise UserError(f"The tokenizer makes no token of the word {json.dumps(missing.strip())[:SHORT]}; fix it.")
        yield [known[word] for word in words]
