"""Training: a generator of steps, and the hooks that consume them. Modules are imported on first use: torch is slow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..config.objective import Objective
    from .checkpoint import average
    from .choose import choose
    from .data import Batch, Batches, every_token_once
    from .launch import Ended, planned, run
    from .loop import State, Step, train
    from .loss import Loss
    from .objectives import Causal
    from .optimizer import Optimizer
    from .probe import Plan, make_plan
    from .schedule import factor

_HOME = {
    "average": "checkpoint",
    "choose": "choose",
    **dict.fromkeys(("Batch", "Batches", "every_token_once"), "data"),
    **dict.fromkeys(("Ended", "planned", "run"), "launch"),
    **dict.fromkeys(("State", "Step", "train"), "loop"),
    **dict.fromkeys(("Causal", "Objective"), "objectives"),
    "Loss": "loss",
    "Optimizer": "optimizer",
    **dict.fromkeys(("Plan", "make_plan"), "probe"),
    "factor": "schedule",
}
__all__ = [
    "Batch",
    "Batches",
    "Causal",
    "Ended",
    "Loss",
    "Objective",
    "Optimizer",
    "Plan",
    "State",
    "Step",
    "average",
    "choose",
    "every_token_once",
    "factor",
    "make_plan",
    "planned",
    "run",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value
