"""Training: a generator of steps.

loop optimizer loss                            one step
causal                                         what is learned: the next token
batches shards micro_batches                   batches
"""

# ruff: noqa: F401
# mypy: implicit-reexport
from __future__ import annotations

from typing import TYPE_CHECKING

from ..files import lazily

if TYPE_CHECKING:
    from ..config.objective import Objective
    from .batches import Batch, Batches
    from .causal import Causal
    from .loop import State, TrainStep, train
    from .loss import Loss
    from .optimizer import Optimizer, factor

_HOME = {
    ".batches": "Batch Batches",
    ".causal": "Causal",
    ".loop": "State TrainStep train",
    ".loss": "Loss",
    "..config.objective": "Objective",
    ".optimizer": "Optimizer factor",
}
__all__ = list(" ".join(_HOME.values()).split())
__getattr__, _ = lazily(
    __name__, {name: home for home, names in _HOME.items() for name in names.split()}
)
