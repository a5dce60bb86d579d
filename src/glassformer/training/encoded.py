"""Examples as ids: what a model of each shape reads, what it is to write, and the labels.

    encoder-decoder   source  s s s </s>                 tokens  <s> t t t        targets  t t t </s>
    decoder           tokens  s s s <s> t t t            targets  - - - t t t </s>    prefix  1 1 1 1 0 0 0
    encoder           tokens  [CLS] a a [SEP] b [SEP]    segments  0 0 0 0 1 1    labels, one a document
    a word's label                                    targets  - 3 - - 1 -    at its first token

N examples.
"""

from __future__ import annotations

import functools
import hashlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import config
from ..config.objective import Classify, Contrast, Objective, Seq2Seq, Tag
from ..data.examples import Cut, Example, Table, question, start_of_target, words_apart
from ..errors import UserError
from ..tokenizer.tokenizer import Tokenizer
from .data import Array

Item = dict[str, list[int]]  # column -> what stands in it


@dataclass(frozen=True)
class Side:
    """Columns of N examples laid end to end: example i is ``starts[i]`` to ``starts[i + 1]`` in each of them."""

    columns: dict[str, Array]
    starts: Array

    @property
    def sizes(self) -> Array:
        """The length of each example."""
        return np.diff(self.starts)


@dataclass(frozen=True)
class Encoded:
    """A table of examples as ids: one side, or what the decoder and then what the encoder reads, and labels."""

    name: str
    sides: tuple[Side, ...]
    labels: Array | None = None

    def __len__(self) -> int:
        return len(self.sides[0].starts) - 1

    @property
    def tokens(self) -> int:
        """Tokens of one epoch, on both sides."""
        return int(sum(side.starts[-1] for side in self.sides))

    @property
    def key(self) -> str:
        """The SHA-256 of all that a model sees."""
        digest = hashlib.sha256()
        for side in self.sides:
            for name, column in (*side.columns.items(), ("starts", side.starts)):
                digest.update(name.encode() + column.tobytes())
        if self.labels is not None:
            digest.update(self.labels.tobytes())
        return digest.hexdigest()


# ---------------------------------------------------------------------------------- text to ids


def encode(
    table: Table,
    tokenizer: Tokenizer,
    objective: Objective,
    model: config.Model,
    context: int,
    cut: Cut = "no",
    prefix: bool = False,
) -> Encoded:
    """The examples as a model of this shape learns them with this objective.

    ``prefix`` marks a decoder's source as seen both ways. An example that a row of ``context`` does not hold is
    ``cut``, or refused. Raises UserError for that, for tokens that the tokenizer lacks, for a shape that does not fit.
    """
    fit = _Fit(table.name, context, cut)
    layout = _layout(tokenizer, objective, model, fit, prefix)
    firsts: Iterable[Any] = tokenizer.encode_batch([one.first for one in table])
    if isinstance(objective, Tag):
        firsts = words_apart(tokenizer, (one.words for one in table))
    seconds = tokenizer.encode_batch([one.second for one in table if one.second is not None])
    second = iter(seconds)
    columns: list[dict[str, array[int]]] = []
    starts: list[array[int]] = []
    for one, first in zip(table, firsts, strict=True):
        sides = layout(one, first, None if one.second is None else next(second))
        if not columns:
            columns = [{name: array("i") for name in side} for side in sides]
            starts = [array("q", [0]) for _ in sides]
        for side, whole, ends in zip(sides, columns, starts, strict=True):
            for name, values in side.items():
                whole[name].extend(values)
            ends.append(ends[-1] + len(next(iter(side.values()))))
            if ends[-1] == ends[-2]:
                raise UserError(f"{table.name} line {one.line} has a text without a token; fix or remove that line.")
    labels = None
    if isinstance(objective, Classify):
        labels = np.array([one.label for one in table], np.float32 if objective.regression else np.int64)
    laid = [
        Side({name: np.frombuffer(column, np.int32) for name, column in whole.items()}, np.frombuffer(ends, np.int64))
        for whole, ends in zip(columns, starts, strict=True)
    ]
    return Encoded(table.name, tuple(laid), labels)


Frame = Callable[[list[list[int]]], Item]
Layout = Callable[[Example, Any, list[int] | None], list[Item]]  # tagged: the ids of each word


def _layout(tokenizer: Tokenizer, objective: Objective, model: config.Model, fit: _Fit, prefix: bool) -> Layout:
    """What an example's ids become: an item for the decoder or the only stack, and one for the encoder before it."""
    shape, name = type(model), type(objective).__name__
    if isinstance(objective, Seq2Seq) and shape is not config.Encoder:
        eos = tokenizer.eos
        if eos is None:
            raise UserError("This tokenizer has no end-of-text token to end a target with; use one that has.")
        if shape is config.EncoderDecoder:
            return _translated(start_of_target(tokenizer), eos, fit)
        return _continued(tokenizer, eos, fit, prefix)
    if isinstance(objective, Classify | Tag | Contrast) and shape is not config.EncoderDecoder:
        frame = _framed(tokenizer, model)
        if isinstance(objective, Tag):
            return _tagged(frame, fit)
        return (_classified if isinstance(objective, Classify) else _paired)(frame, fit)
    fitting = "a Decoder or an EncoderDecoder" if isinstance(objective, Seq2Seq) else "an Encoder or a Decoder"
    raise UserError(f"{name} does not fit {shape.__name__}; give {fitting}.")


def _translated(start: int, eos: int, fit: _Fit) -> Layout:
    def lay(one: Example, source: list[int], target: list[int] | None) -> list[Item]:
        assert target is not None
        (source,) = fit(one, [source], 1, "source")
        (target,) = fit(one, [target], 1, "target")
        read = [*source, eos]
        written = {"tokens": [start, *target], "targets": [*target, eos], "pos": [*range(len(target) + 1)]}
        return [written, {"source": read, "source_pos": [*range(len(read))]}]

    return lay


def _continued(tokenizer: Tokenizer, eos: int, fit: _Fit, prefix: bool) -> Layout:
    around = len(question(tokenizer, []))

    def lay(one: Example, source: list[int], target: list[int] | None) -> list[Item]:
        assert target is not None
        source, target = fit(one, [source, target], around, "source and target")
        asked = question(tokenizer, source)
        item = {
            "tokens": asked + target,
            "targets": [-1] * (len(asked) - 1) + [*target, eos],
            "pos": [*range(len(asked) + len(target))],
        }
        return [{**item, "prefix": [1] * len(asked) + [0] * len(target)} if prefix else item]

    return lay


def _framed(tokenizer: Tokenizer, model: config.Model) -> Frame:
    """What stands around one text or two: an encoder's own tokens and segments; bos, sep and eos for a decoder."""
    if isinstance(model, config.Encoder):
        told = model.embed.segments > 0

        def frame(texts: list[list[int]]) -> Item:
            ids, segments = tokenizer.framed(texts)
            return _item(ids, segments if told else [])

        return frame
    bos = [] if tokenizer.bos is None or tokenizer.bos == tokenizer.eos else [tokenizer.bos]
    eos = [] if tokenizer.eos is None else [tokenizer.eos]
    between = eos if tokenizer.sep is None else [tokenizer.sep]
    if not between:
        raise UserError("This tokenizer has no token to end a text with; use one that has an end-of-text token.")
    return lambda texts: _item([*bos, *texts[0], *(id for text in texts[1:] for id in (*between, *text)), *eos], [])


def _item(ids: list[int], segments: list[int]) -> Item:
    item = {"tokens": ids, "pos": [*range(len(ids))]}
    return {**item, "segments": segments} if segments else item


def _classified(frame: Frame, fit: _Fit) -> Layout:
    @functools.cache
    def around(texts: int) -> int:
        return len(frame([[]] * texts)["tokens"])

    def lay(one: Example, first: list[int], second: list[int] | None) -> list[Item]:
        texts = [first] if second is None else [first, second]
        return [frame(fit(one, texts, around(len(texts)), "text"))]

    return lay


def _tagged(frame: Frame, fit: _Fit) -> Layout:
    """Words' ids between the frame, and a target at the first of each."""
    opened = frame([[-1]])["tokens"]
    start, around = opened.index(-1), len(opened) - 1

    def lay(one: Example, first: list[list[int]], second: list[int] | None) -> list[Item]:
        ids = [id for word in first for id in word]
        tags = [t for tag, word in zip(one.tags, first, strict=True) for t in (tag, *[-1] * (len(word) - 1))]
        (ids,), (tags,) = (fit(one, [part], around, "sentence") for part in (ids, tags))
        item = frame([ids])
        return [{**item, "targets": [-1] * start + tags + [-1] * (around - start)}]

    return lay


def _paired(frame: Frame, fit: _Fit) -> Layout:
    """Two documents side by side, so that a pair never leaves its row."""
    around = 2 * len(frame([[]])["tokens"])

    def lay(one: Example, first: list[int], second: list[int] | None) -> list[Item]:
        assert second is not None
        left, right = (frame([text]) for text in fit(one, [first, second], around, "pair"))
        return [{name: left[name] + right[name] for name in left}]

    return lay


@dataclass(frozen=True)
class _Fit:
    """Texts made to fit into a context, the longer one cut first; or one sentence where that was not asked for."""

    name: str
    context: int
    cut: Cut

    def __call__(self, one: Example, texts: list[list[int]], around: int, part: str) -> list[list[int]]:
        """The texts, so that they and ``around`` more tokens fit."""
        room, length = self.context - around, sum(map(len, texts))
        if length <= room:
            return texts
        if self.cut == "no" or room < len(texts):
            raise UserError(
                f"{self.name} line {one.line} has a {part} of {length + around} tokens, and a row holds "
                f'{self.context}; raise train.context, or cut what is too long with data.cut = "end".'
            )
        short = min(*map(len, texts), room // 2) if len(texts) == 2 else 0
        first = room - short if len(texts) == 1 or len(texts[0]) > len(texts[1]) else short
        keeps = (first, room - first)
        return [
            ids[:keep] if self.cut == "end" else ids[len(ids) - keep :] for ids, keep in zip(texts, keeps, strict=False)
        ]
