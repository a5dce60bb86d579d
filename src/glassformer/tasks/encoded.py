"""Examples as ids: what a model of each shape reads, what it is to write, and the labels. N
examples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..core import config
from ..core.config.objective import Objective
from ..core.config.run import Cut
from ..core.errors import need
from ..core.tokenizer.tokenizer import Tokenizer, cut_sizes
from ..core.training.batches import Array
from .example_table import Example, ExampleTable, encode_words

Item: TypeAlias = dict[str, list[int]]  # column -> what stands in it
Layout: TypeAlias = Callable[[Example, Any, list[int] | None], list[Item]]
"""(example, ids of its first text, or of each word; of its second) -> the decoder's item, and then
the encoder's."""


@dataclass(frozen=True)
class Framing:
    """Examples of a model with what opens and closes their texts (``core/tokenizer/framing.py``);
    the source has a ``source_tokenizer`` of its own where one is set."""

    tokenizer: Tokenizer
    model: config.Model
    source_tokenizer: Tokenizer | None = None

    def texts(self, texts: list[list[int]]) -> dict[str, list[int]]:
        """One text or two as columns: tokens, pos, and segments where the model tells them
        apart."""
        ids, segments = self.tokenizer.framed(texts)
        columns = {"tokens": ids, "pos": [*range(len(ids))]}
        return columns | ({"segments": segments} if self.model.embed.segments > 1 else {})

    def around(self, texts: int) -> int:
        """Number of special tokens around so many texts."""
        return len(self.texts([[]] * texts)["tokens"])


@dataclass(frozen=True)
class Side:
    """Columns of N examples laid end to end: example i is ``starts[i]`` to ``starts[i + 1]`` in
    each of them."""

    columns: dict[str, Array]
    starts: Array

    @classmethod
    def of(cls, **columns: Sequence[Array]) -> Side:
        """From what each example has in each column."""
        starts = np.cumsum([0, *map(len, next(iter(columns.values())))])
        return cls({name: np.concatenate(arrays) for name, arrays in columns.items()}, starts)

    @property
    def sizes(self) -> Array:
        """The length of each example."""
        return np.diff(self.starts)

    def rows(self, name: str) -> list[Array]:
        """A column, example by example."""
        return np.split(self.columns[name], self.starts[1:-1])


@dataclass(frozen=True)
class Encoded:
    """A table of examples as ids: one side, or what the decoder and then what the encoder reads,
    and labels. ``reference`` (N, documents) is what the model with the digest ``judge`` says of each
    example's documents; ``notes`` say what was cut."""

    name: str
    sides: tuple[Side, ...]
    labels: Array | None = None
    reference: Array | None = None
    judge: str = ""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.sides[0].starts) - 1

    @property
    def tokens(self) -> int:
        """Tokens of one epoch, on both sides."""
        return int(sum(side.starts[-1] for side in self.sides))

    @property
    def key(self) -> str:
        """The SHA-256 of all that a model sees."""
        digest = hashlib.sha256(self.judge.encode())
        for side in self.sides:
            for name, column in (*side.columns.items(), ("starts", side.starts)):
                digest.update(name.encode() + column.tobytes())
        if self.labels is not None:
            digest.update(self.labels.tobytes())
        return digest.hexdigest()


def encode(
    table: ExampleTable,
    tokenizer: Tokenizer,
    objective: Objective,
    model: config.Model,
    context: int,
    cut: Cut = "no",
    source_tokenizer: Tokenizer | None = None,
) -> Encoded:
    """The examples as a model of this shape learns them with this objective.

    The first texts are read with ``source_tokenizer`` where there is one. An example that a row of
    ``context`` does not hold is ``cut``, or refused. Raises UserError for that, for tokens that the
    tokenizer lacks, for a shape that does not fit.
    """
    fitting = " or ".join(kind.__name__ for kind in objective.shapes)
    sentence = (
        f"{type(objective).__name__} does not fit {type(model).__name__}; give a model of "
        f"the shape {fitting}."
    )
    need(type(model) in objective.shapes, sentence)
    fit = Fit(table.name, context, cut)
    if table.examples[0].conversations:
        conversations: Encoded = objective.encode(table, tokenizer, fit)  # type: ignore[attr-defined]
        return conversations
    layout = objective.layout(Framing(tokenizer, model, source_tokenizer), fit)
    first_tokenizer = source_tokenizer or tokenizer
    firsts: Iterable[Any]
    if table.examples[0].words:
        firsts = encode_words(first_tokenizer, (example.words for example in table))
    else:
        firsts = first_tokenizer.encode_batch([example.first for example in table])
    seconds = iter(
        tokenizer.encode_batch([example.second for example in table if example.second is not None])
    )
    columns: list[dict[str, list[Array]]] = []
    for example, first in zip(table, firsts, strict=True):
        sides = layout(example, first, None if example.second is None else next(seconds))
        columns = columns or [{name: [] for name in side} for side in sides]
        for side, side_columns in zip(sides, columns, strict=True):
            filled = all(side.values())
            need(
                filled,
                f"{table.name} line {example.line} has a text without a token; fix or "
                "remove that line.",
            )
            for name, values in side.items():
                side_columns[name].append(np.array(values, np.int32))
    labels = None
    # a number where no set of labels is chosen from
    if objective.labelled and table.examples[0].label is not None:
        labels = np.array(
            [example.label for example in table], np.float32 if table.labels is None else np.int64
        )
    return Encoded(table.name, tuple(Side.of(**side_columns) for side_columns in columns), labels)


@dataclass(frozen=True)
class Fit:
    """Texts made to fit into a context, the longer one cut first; or one sentence where that was
    not asked for."""

    name: str
    context: int
    cut: Cut
    fix: str = 'raise train.context, or cut what is too long with data.truncate = "end".'

    def __call__(self, example: Example, texts: list[Any], around: int, side: str) -> list[Any]:
        """The texts, so that they and ``around`` more tokens fit."""
        room = self.context - around
        length = sum(map(len, texts))
        if length <= room:
            return texts
        holds = (
            f"{self.name} line {example.line} has a {side} of {length + around} tokens, and a "
            f"row holds {self.context}"
        )
        need(self.cut != "no" and room >= len(texts), f"{holds}; {self.fix}")
        keeps = zip(texts, cut_sizes(texts, room), strict=False)
        return [ids[:keep] if self.cut == "end" else ids[len(ids) - keep :] for ids, keep in keeps]
