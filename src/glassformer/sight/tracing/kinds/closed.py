"""What has no arithmetic of ours: what is given, what an edit put there, parts that nobody has
described."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..plan import Index, Kind, Op, Reader, Weights, Worked, copy_of


class Edit(Kind):
    """A value that an edit of the tape has put in the place of another."""

    name = "edit"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        return x[0]

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        return copy_of(
            reader.input(0, *at), "An edit put this in the place of the value.", "edit(x)"
        )


class Generic(Kind):
    """A part that nobody has described: its module is called; its arithmetic stays closed."""

    name = "generic"
    needs_whole_input = True

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        call: Callable[..., Tensor] = op.params["call"]
        return call(*x)

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        empty = torch.zeros(0, dtype=torch.float64)
        return Worked(
            math.nan,
            empty,
            (),
            "A part that nobody has described: what goes in and what comes out.",
            "f(x)",
        )


class Leaf(Kind):
    """Leaves of the arithmetic: token ids, positions, weights."""

    name = "leaf"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        raise AssertionError(f"{op.id} is given")

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        description = {
            "tokens": "The number of a token",
            "source": "The number of a token of the source",
        }
        words = f"{description.get(op.id, 'The position of a token')}: here the arithmetic begins."
        return Worked(math.nan, torch.zeros(0, dtype=torch.float64), (), words, "given")
