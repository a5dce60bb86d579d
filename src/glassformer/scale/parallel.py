"""The axes along which several processes share one training. No torch here.

[parallel]
replicate = 2      # two groups, each with the whole model in shards
tensor = 4         # each matrix in four parts
"""

from __future__ import annotations

import math
import os
from dataclasses import replace

from ..core.config.serial import PositiveFloat, PositiveInt, frozen
from ..core.errors import UserError, need

AXES = ("pipeline", "replicate", "data", "expert", "context", "tensor")
"""The axes from the outside in: neighbours on the last lie on neighbouring ranks, which
talk fastest and most."""
ROWS = ("replicate", "data", "expert")
"""The axes that share out the rows of a batch; a rank of any other reads the rows of
its neighbours."""


@frozen
class Parallel:
    """Number of processes along each axis; their product is the number of processes that torchrun
    starts.

    ``data`` shards weights, gradients and the optimizer's state (FSDP2), ``replicate`` keeps so
    many copies of the shards (HSDP). ``exact`` adds gradients in the order in which one process
    would, so that its bits come out.
    """

    # shards of weights and state, each with rows of its own; none: what is left
    data: PositiveInt | None = None
    replicate: PositiveInt = 1  # copies of all shards, each with rows of its own
    tensor: PositiveInt = 1  # parts that each matrix is cut into
    context: PositiveInt = 1  # parts that each row of tokens is cut into
    # groups that the experts of each mixture are shared out to, each with rows of its own
    expert: PositiveInt = 1
    pipeline: PositiveInt = 1  # stages that the blocks of a decoder are shared out to; alone so far
    # the bits of one process, whatever the number of processes; false: plain collectives
    exact: bool = True
    timeout: PositiveFloat = 600.0  # seconds that a process waits for the others before it gives up

    def of(self, processes: int) -> Parallel:
        """The same with ``data`` filled in for so many processes; UserError where the axes do not
        multiply to them."""
        product = math.prod(self.size(name) for name in AXES if name != "data")
        axes = " x ".join(
            f"{name} {self.size(name)}" for name in AXES if getattr(self, name) not in (None, 1)
        )
        count, verb = ("1 process", "is") if processes == 1 else (f"{processes} processes", "are")
        if self.data is None:
            fits = processes % product == 0
            need(
                fits,
                f"{count} cannot be divided by {axes} of [parallel]; start a multiple of {product}.",
            )
            return replace(self, data=processes // product)
        if self.data * product != processes:
            fix = f"start {self.data * product} by torchrun --nproc-per-node, or leave out data"
            raise UserError(
                f"[parallel] {axes or 'data 1'} is for {self.data * product}, but there {verb} "
                f"{count}; {fix}."
            )
        return self

    def size(self, *axes: str) -> int:
        """Number of processes along these axes together; ``data`` has to be filled in."""
        return math.prod(getattr(self, name) or 1 for name in axes)

    @property
    def rows(self) -> int:
        """Number of shares in which the rows of a batch are computed."""
        return self.size(*ROWS)


def processes() -> int:
    """Number of processes that torchrun started, this one among them."""
    if "RANK" in os.environ:
        return int(os.environ.get("WORLD_SIZE", "1"))
    return 1
