"""The vocabulary of what came before: texts read word by word, what was read carried on in a state. No torch here.

Recurrent(depth, cell, cross)    stands in the slot of a Stack
+- cell    GRU | LSTM            how a state takes in a word
+- cross   Summary | Additive    how a decoder knows its source: one vector for all words, or a new one for each
"""

from __future__ import annotations

from typing import TypeAlias

from ..errors import above_zero, need
from .serial import frozen


@frozen
class GRU:
    """Two gates over one state (Cho et al. 2014)."""


@frozen
class LSTM:
    """Three gates over a state and a cell that is only added to (Hochreiter & Schmidhuber 1997; Gers et al. 2000)."""


@frozen
class Summary:
    """The whole source in one vector, made of its first and last states (Cho et al. 2014, Sutskever et al. 2014)."""


@frozen
class Additive:
    """For each word a sum of the source's states, weighed by a layer of ``width`` (Bahdanau et al. 2015)."""

    width: int

    def __post_init__(self) -> None:
        above_zero(self, "width")


@frozen
class Recurrent:
    """``depth`` layers of cells as wide as the model, each reading what the one below carries.

    ``causal``: from left to right; else both ways, half of the width each. ``dropout`` acts on what each layer
    reads and on what comes out.
    """

    depth: int = 1
    cell: GRU | LSTM = GRU()  # what each layer is
    cross: Summary | Additive | None = None  # how a decoder meets its source
    causal: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        above_zero(self, "depth")
        need(self.depth <= 2000, f"Recurrent.depth is {self.depth}; give at most 2,000.")
        need(0 <= self.dropout < 1, f"Recurrent.dropout is {self.dropout}; give a share from 0 to below 1.")


Cell: TypeAlias = GRU | LSTM
