"""What each of several processes holds and sends, from the config alone. No torch here.

A shard has 1/D of weights, gradients and moments; a block is gathered while it computes (FSDP2: Zhao et al. 2023).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..config.parallel import AXES, Parallel
from ..cost import FP32, TRAIN, Cost, gibibytes

HALF = 2  # bytes a number in bf16


@dataclass(frozen=True)
class Layout:
    """A run of ``cost`` on the processes of ``parallel`` (data filled in), in so many ``pieces`` a step.

    ``cost`` is that of one piece; ``muon`` says that matrices travel to their owners and back.
    """

    cost: Cost
    parallel: Parallel
    pieces: int
    dtype: str = "fp32"
    muon: bool = False

    @property
    def groups(self) -> list[int]:
        """Numbers of each block, then of what belongs to none."""
        found: dict[str, int] = {"": 0}
        for name, (_, size) in self.cost.sizes.items():
            block = re.match(r"\w+\.blocks\.\d+\.", name)
            key = block[0] if block else ""
            found[key] = found.get(key, 0) + size
        rest = found.pop("")
        return [*found.values(), rest]

    @property
    def shards(self) -> int:
        return self.parallel.size("data")

    @property
    def memory(self) -> int:
        """Bytes a process: its shard, the gathered rest and two blocks with the gradient of one, the activations."""
        *blocks, rest = self.groups
        width = HALF if self.dtype == "bf16" else FP32
        gathered = (2 * rest + 3 * max(blocks, default=0)) * width
        held = -(-self.cost.total * TRAIN // self.shards)
        return held + (gathered if self.shards > 1 else 0) + self.cost.activations(self.dtype) // self.parallel.context

    @property
    def traffic(self) -> int:
        """Bytes that it receives in a step: weights for both passes, gradients, Muon's matrices, keys and values."""
        *blocks, rest = self.groups
        rounds = self.pieces // self.parallel.rows
        width = HALF if self.dtype == "bf16" else FP32
        away = (self.shards - 1) / self.shards
        gather = (2 * sum(blocks) + rest) * width * away  # what belongs to no block stays between the passes
        scatter = self.cost.total * (width if self.parallel.exact else FP32) * away
        copies = self.parallel.rows // self.shards
        again = 2 * self.cost.total / self.shards * FP32 * (copies > 1)
        matrices = sum(size for multiplied, size in self.cost.sizes.values() if multiplied)
        owners = 2 * matrices * HALF * away / self.shards if self.muon else 0.0
        others, row = 1 - 1 / self.parallel.context, self.cost.kv_per_token * self.cost.batch * self.cost.context
        # keys and values go round in both passes, their gradients all the way home; then all gradients are added up
        ring = rounds * row * (2 * width * others + FP32) + 2 * self.cost.total / self.shards * FP32 * others
        return int(rounds * (gather + scatter + again) + owners + (ring if others else 0))

    def rows(self) -> list[tuple[str, str]]:
        """Everything as (what, how much), ready to print."""
        said = [f"{axis} {self.parallel.size(axis)}" for axis in AXES if self.parallel.size(axis) > 1]
        own = self.pieces // self.parallel.rows
        return [
            ("processes", f"{self.parallel.size(*AXES)}: {' x '.join(said) or 'alone'}"),
            ("parameters a process keeps", f"{-(-self.cost.total // self.shards):,} of {self.cost.total:,}"),
            ("pieces of a step a process", f"{own} of {self.pieces}, {self.cost.batch:,} rows each at most"),
            (f"memory a process, {self.dtype}", gibibytes(self.memory)),
            (f"received a step and process, {self.dtype}", gibibytes(self.traffic)),
        ]

    def to_dict(self) -> dict[str, Any]:
        """The same in numbers, as JSON holds it."""
        return {
            "processes": self.parallel.size(*AXES),
            "axes": {axis: self.parallel.size(axis) for axis in AXES},
            "parameters": -(-self.cost.total // self.shards),
            "pieces": self.pieces,
            "memory_bytes": self.memory,
            "traffic_bytes": self.traffic,
        }

    def sentence(self) -> str:
        """The same in a line."""
        (_, axes), (_, kept), (_, own), (_, memory), (_, traffic) = self.rows()
        tail = f"{memory} of memory and {traffic} received a step each"
        return f"{axes.replace(':', ' processes:', 1)}; each keeps {kept} parameters and works on {own}; {tail}."


def pieces_for(asked: int, parallel: Parallel) -> int:
    """In how many pieces a step is worked through: as many as asked, or more, so that each process has as many."""
    return -(-asked // parallel.rows) * parallel.rows
