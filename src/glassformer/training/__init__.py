"""Training: a generator of steps, and the hooks that consume them."""

from .checkpoint import average
from .choose import choose
from .data import Batch, Batches, every_token_once
from .launch import Ended, planned, run
from .loop import State, Step, train
from .objective import Causal, Loss, Objective
from .optimizer import Optimizer
from .probe import Plan, make_plan
from .schedule import factor

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
