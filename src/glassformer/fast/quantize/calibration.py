"""The inputs of a model's matrices while it reads a text: the sum of x x^T of each,
for rounding and report.

C inputs of a matrix, B rows, T tokens, S tokens of a source.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ...core import config
from ...core.errors import need
from ...core.nn import Model
from ...core.nn.model import inference
from ...core.training.shards import Shards

ROW = 256  # tokens that are read together
MEMORY = 1 << 30  # bytes of sums that are held at a time; more matrices are more readings
HELD_OUT = 5  # one row of so many is not calibrated with but measured on
Sides: TypeAlias = tuple[Tensor, Tensor | None]
"""Tokens (1, T), and those (1, S) that an encoder-decoder's encoder reads beside them."""
Ids: TypeAlias = Sequence[int] | np.ndarray[Any, Any]
Gram = dict[str, Tensor]
"""(C, C) of each matrix by its path; of a stack of tables (E, C, C)."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Text:
    """Rows of tokens: those that are calibrated with, and those that the report measures on."""

    rows: Sequence[Sides]
    held_out: Sequence[Sides]

    @classmethod
    def of(cls, shards: Shards, model: config.Model, tokens: int, measured: int) -> Text:
        """Rows spread evenly over a corpus: ``tokens`` to calibrate with, ``measured`` ones;
        UserError for too few.

        An encoder-decoder reads the same on both sides, so one with two vocabularies is refused: it
        needs ``of_pairs``.
        """
        pair = model.has_source
        two = (
            f"This model reads its source by a vocabulary of its own, so {shards.name} is half "
            "of what it needs"
        )
        need(
            model.input_embed is model.embed,
            f"{two}; give sources and targets: --calibrate FILE --target FILE.",
        )
        length = min(ROW, model.context)
        row_count = len(shards) // length
        need(
            row_count >= HELD_OUT,
            f"{shards.name} has {len(shards):,} tokens; give {HELD_OUT * length:,} or more.",
        )
        highest = int(shards.tokens[: len(shards)].max())
        need(
            highest < model.embed.vocab,
            f"{shards.name} has token {highest}, which is outside this model's vocabulary; use "
            "the text of this model's tokenizer.",
        )
        rows = [_row(shards.tokens[i * length : (i + 1) * length]) for i in range(row_count)]
        return cls._apart([(row, row if pair else None) for row in rows], tokens, measured)

    @classmethod
    def of_pairs(cls, pairs: Sequence[tuple[Ids, Ids]], tokens: int, measured: int) -> Text:
        """Sources and what a decoder reads to write their targets, as ids; spread evenly, as many
        as have ``tokens``.

        Raises UserError for fewer than HELD_OUT.
        """
        need(
            len(pairs) >= HELD_OUT,
            f"{len(pairs)} pairs of texts are too few; give {HELD_OUT} or more.",
        )
        return cls._apart(
            [(_row(target), _row(source)) for source, target in pairs], tokens, measured
        )

    @classmethod
    def _apart(cls, rows: Sequence[Sides], tokens: int, measured: int) -> Text:
        """Every HELD_OUT-th row apart, and of both so many tokens."""
        length = sum(row.numel() for row, _ in rows) / len(rows)
        calibration_rows = [row for number, row in enumerate(rows) if (number + 1) % HELD_OUT]
        held_out = rows[HELD_OUT - 1 :: HELD_OUT]
        return cls(
            spread(calibration_rows, math.ceil(tokens / length)),
            spread(held_out, math.ceil(measured / length)),
        )


def _row(ids: Ids) -> Tensor:
    return torch.from_numpy(np.asarray(ids, np.int64))[None]


def spread(rows: Sequence[Sides], count: int) -> list[Sides]:
    """So many of the rows, evenly from the first to the last."""
    count = min(max(count, 1), len(rows))
    return [rows[number * len(rows) // count] for number in range(count)]


def forward_row(model: Model, row: Sides) -> Any:
    """Runs the model on a row, with logits at every token."""
    device = next(model.parameters()).device
    tokens, source = row
    return model(
        tokens.to(device), logits="all", **({} if source is None else {"source": source.to(device)})
    )


def grams(
    model: Model, rows: Sequence[Sides], paths: Sequence[str], progress: Progress = lambda _: None
) -> Iterator[Gram]:
    """The sums of some of the matrices at a time, as many as MEMORY holds; those never met are left
    out."""
    view = copy.copy(model)
    view.engine = "eager"  # which multiplies by one matrix after another
    parameters = dict(model.named_parameters())
    groups = list(_parts({path: parameters[path] for path in paths}))
    for number, group in enumerate(groups, 1):
        watch = _Watch(group)
        with inference(view), watch:
            for row in rows:
                forward_row(view, row)
        progress(f"calibrating, reading {number} of {len(groups)}")
        yield watch.sums


def _parts(weights: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    group: dict[str, Tensor] = {}
    group_bytes = 0
    for path, weight in weights.items():
        size = 4 * weight.shape[-1] ** 2 * (len(weight) if weight.ndim == 3 else 1)
        if group and group_bytes + size > MEMORY:
            yield group
            group, group_bytes = {}, 0
        group[path], group_bytes = weight, group_bytes + size
    if group:
        yield group


class _Watch(TorchFunctionMode):
    """While entered, each product with one of these weights adds its x x^T; a stack's table is
    known by its place."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.sums: Gram = {}
        self.weights = dict(weights)
        self.places: dict[tuple[int, int], tuple[str, int | None]] = {}
        for path, weight in weights.items():
            tables = enumerate(weight) if weight.ndim == 3 else [(None, weight)]
            self.places |= {
                (table.data_ptr(), len(table)): (path, number) for number, table in tables
            }

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is F.linear and isinstance(args[1], Tensor):
            place = self.places.get((args[1].data_ptr(), len(args[1])))
            if place is not None:
                self.add(*place, args[0].detach())
        return func(*args, **(kwargs or {}))

    def add(self, path: str, number: int | None, x: Tensor) -> None:
        """One more product of x (.., C)."""
        flat = x.reshape(-1, x.shape[-1]).float()
        width = x.shape[-1]
        if path not in self.sums:
            stack = () if number is None else (len(self.weights[path]),)
            self.sums[path] = flat.new_zeros(*stack, width, width)
        (self.sums[path] if number is None else self.sums[path][number]).addmm_(flat.T, flat)
