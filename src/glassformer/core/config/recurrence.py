"""Recurrent models: GRU and LSTM with a summary of the source or attention to it. No torch here.

Recurrent(depth, cell, cross)    stands in the slot of a Stack
+- cell    GRU | LSTM            how a state takes in a word
+- cross   Summary | Additive    how a decoder knows its source: one vector for all words, or a new one for each
"""

from __future__ import annotations

from typing import Any, TypeAlias

from ..errors import need
from .layers import Shapes, indexed, join, linear, shapes_of
from .serial import PositiveInt, Share, frozen


def _cell(cfg: Any, inputs: int, width: int) -> Shapes:
    """Shapes of the gates' projections of input and state, all gates' rows under each other."""
    return join(input=linear(inputs, cfg.gates * width), state=linear(width, cfg.gates * width))


@frozen
class GRU:
    """Two gates over one state (Cho et al. 2014)."""

    gates = 3  # with the candidate
    saved_per_dim = 9  # numbers a dimension that training keeps of each token
    shapes = _cell


@frozen
class LSTM:
    """Three gates over a state and a cell that is only added to (Hochreiter & Schmidhuber 1997;
    Gers et al. 2000)."""

    gates = 4
    saved_per_dim = 17
    shapes = _cell


@frozen
class Summary:
    """The source in one vector, of its first and last states (Cho, Sutskever et al. 2014)."""

    def shapes(self, dim: int) -> Shapes:
        return join(whole=linear(2 * dim, dim))

    def saved_activations(self, dim: int, context: int) -> int:
        return 2 * dim

    def flops(self, dim: int, context: int) -> int:
        return 0


@frozen
class Additive:
    """For each word a sum of the source's states, weighed by a layer (Bahdanau et al. 2015)."""

    width: PositiveInt  # of the layer that scores the source's states

    def shapes(self, dim: int) -> Shapes:
        """The layer over both ends of the source, and those that score."""
        q, k, score = (
            linear(dim, self.width),
            linear(dim, self.width, False),
            linear(self.width, 1, False),
        )
        return join(whole=linear(2 * dim, dim), q=q, k=k, score=score)

    def saved_activations(self, dim: int, context: int) -> int:
        """Numbers a token that training keeps: the scores of every word of the source."""
        return 8 * dim + self.width * context

    def flops(self, dim: int, context: int) -> int:
        return 2 * (self.width + dim) * context


@frozen
class Recurrent:
    """``depth`` layers of cells as wide as the model, each reading what the one below carries."""

    depth: PositiveInt = 1  # number of layers
    cell: GRU | LSTM = GRU()  # what each layer is
    cross: Summary | Additive | None = None  # how a decoder meets its source
    causal: bool = True  # read from left to right; false: both ways, half of the width each
    dropout: Share = 0.0  # share dropped of what each layer reads and of the output

    def __post_init__(self) -> None:
        need(self.depth <= 2000, f"Recurrent.depth is {self.depth}; give at most 2,000.")

    def shapes(self, dim: int) -> Shapes:
        """Its cells, those that read backwards, what looks at the source and what merges it."""
        width = dim if self.causal else dim // 2
        inputs = [dim if self.cross is None else 2 * dim] + [dim] * (self.depth - 1)
        cells = [shapes_of(self.cell, size, width) for size in inputs]
        layers = indexed("cells", cells) | indexed("back", [] if self.causal else cells)
        return layers | join(
            cross=shapes_of(self.cross, dim),
            merge=linear(3 * dim, dim) if self.cross is not None else {},
        )

    def saved_activations(self, dim: int, context: int) -> int:
        return self.depth * self.cell.saved_per_dim * dim + (
            0 if self.cross is None else self.cross.saved_activations(dim, context)
        )

    def flops(self, dim: int, context: int) -> int:
        return 0 if self.cross is None else self.cross.flops(dim, context)


Cell: TypeAlias = GRU | LSTM
