"""The share that each of several processes holds and sends, from the config alone. No torch here.

A shard has 1/D of weights, gradients and moments; a block is gathered while it computes (FSDP2:
Zhao et al. 2023). The tensor axis leaves each process the model of a config with fewer heads and
hidden, the expert axis fewer experts, the pipeline some of the blocks.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..core import config
from ..core.memory import gibibytes
from .cost import BASE, FP32, LOGITS, TRAIN, Cost
from .parallel import AXES, Parallel

HALF = 2  # bytes a number in bf16
EXPERT_WEIGHTS = re.compile(r"\.ffn\.(gate|up|down)(_bias)?$")
"""The weights of a mixture's experts, which the expert axis shares out."""


@dataclass(frozen=True)
class Layout:
    """A run of ``cost`` on the processes of ``parallel`` (data filled in), in ``accumulate`` micro-batches a
    step.

    ``cost`` is that of one micro-batch; ``muon`` says that matrices travel to their owners and back. Of a
    pipeline it is the ``stage`` that is told, else the one that has the most.
    """

    cost: Cost
    parallel: Parallel
    accumulate: int
    dtype: str = "fp32"
    muon: bool = False
    stage: int | None = None

    @cached_property
    def stages(self) -> list[Layout]:
        """Layouts of the pipeline's stages; empty for a single stage."""
        count = self.parallel.pipeline if self.stage is None else 1
        if count > 1:
            return [replace(self, stage=stage) for stage in range(count)]
        return []

    @cached_property
    def tensor_cost(self) -> Cost:
        """The cost of what the tensor axis leaves to a process."""
        return replace(self.cost, model=cut(self.cost.model, self.parallel.tensor))

    @cached_property
    def sizes(self) -> dict[str, tuple[bool, int]]:
        """Sizes of the weights of a process before sharding, as in ``Cost.sizes``."""
        expert_size, sizes = self.parallel.expert, self.tensor_cost.sizes
        if self.stage is not None:
            depth = self.cost.model.stacks["decoder"].depth
            stages = self.parallel.pipeline
            sizes = {
                n: size for n, size in sizes.items() if stage_of(n, depth, stages) == self.stage
            }
        return {
            n: (m, size // expert_size if EXPERT_WEIGHTS.search(n) else size)
            for n, (m, size) in sizes.items()
        }

    @property
    def numbers(self) -> int:
        """Weights of a process before they are in shards."""
        return sum(size for _, size in self.sizes.values())

    @property
    def groups(self) -> list[int]:
        """Numbers of each block, then of what belongs to none."""
        sizes: dict[str, int] = {"": 0}
        for name, (_, size) in self.sizes.items():
            block = re.match(r"\w+\.blocks\.\d+\.", name)
            key = block[0] if block else ""
            sizes[key] = sizes.get(key, 0) + size
        outside = sizes.pop("")
        return [*sizes.values(), outside]

    @property
    def shards(self) -> int:
        return self.parallel.size("data")

    @property
    def local_parameters(self) -> int:
        """Weights that a process keeps."""
        if self.stages:
            return max(stage.local_parameters for stage in self.stages)
        return -(-self.numbers // self.shards)

    @property
    def memory(self) -> int:
        """Bytes a process on a CPU, beside ``BASE``: its shard, the activations, and what comes and
        goes.

        That is the logits or, in the backward pass, copies of a block: its weights and their
        gradient; the next one's as they are gathered, by FSDP2 and once more by gloo; what this one
        and the one before send of their gradients, and what arrives of them. A single process is in
        shards too once there are others along any axis.
        """
        if self.stages:
            return max(stage.memory for stage in self.stages)
        if self.parallel.size(*AXES) == 1:
            alone = replace(self.cost, muon=self.muon, accumulated=self.accumulate > 1)
            return alone.train(self.dtype)
        *blocks, outside = self.groups
        width = HALF if self.dtype == "bf16" else FP32
        tokens = self.cost.batch * -(-self.cost.context // self.parallel.context)
        logits = min(tokens * self.tensor_cost.model.embed.vocab, LOGITS) * (
            width if self.parallel.tensor == 1 else 3 * FP32
        )
        activations = self.tensor_cost.activations(self.dtype) // self.parallel.context
        if self.stage is not None:
            after, model = self.parallel.pipeline - self.stage, self.cost.model
            # micro-batches under way, of some blocks each
            activations = activations * min(after, self.accumulate) // self.parallel.pipeline
            tied = model.head is not None and model.head.tied
            # it is borrowed
            logits = 0 if after > 1 else logits + 2 * FP32 * model.embed.vocab * model.dim * tied
        resident = -(-self.numbers * TRAIN // self.shards) + activations
        coming = max(max(blocks, default=0) * (5 * width + 2 * FP32), outside * (width + FP32))
        return resident + 2 * outside * width + max(logits, coming)

    @property
    def traffic(self) -> int:
        """Bytes that it receives in a step: weights for both passes, gradients, Muon's matrices;
        for the other axes keys and values, sums of activations, tokens on their way to experts."""
        *blocks, outside = self.groups
        rounds, exact = self.accumulate // self.parallel.rows, self.parallel.exact
        width = HALF if self.dtype == "bf16" else FP32
        away = (self.shards - 1) / self.shards
        # what belongs to no block stays between the passes
        gather = (2 * sum(blocks) + outside) * width * away
        scatter = self.numbers * (width if exact else FP32) * away
        tables = sum(size for name, (_, size) in self.sizes.items() if EXPERT_WEIGHTS.search(name))
        # whose copies are those of replicate alone
        experts = tables if self.parallel.expert > 1 else 0
        again = experts * (self.parallel.replicate > 1)
        again += (self.numbers - experts) * (self.parallel.rows > self.shards)
        matrices = sum(size for multiplied, size in self.sizes.values() if multiplied)
        members = self.shards * self.parallel.tensor
        owners = 2 * matrices / self.shards * HALF * (1 - 1 / members) if self.muon else 0.0
        inner = sum(self._inner(width, rounds))
        return int(rounds * (gather + scatter + 2 * again / self.shards * FP32) + owners + inner)

    def _inner(self, width: int, rounds: int) -> tuple[float, float, float, float]:
        """Bytes that a step receives along the axes context, tensor, expert and pipeline."""
        cost = self.cost
        context = 1 - 1 / self.parallel.context
        parallel = self.parallel
        tokens = rounds * cost.batch * cost.context
        # keys and values go round in both passes, their gradients all the way home; then all
        # gradients are added up
        ring = tokens * cost.kv_per_token * (2 * width * context + FP32)
        ring += 2 * self.numbers / self.shards * FP32 * context
        stacks = cost.model.stacks.values()
        blocks = [block for stack in stacks for block in stack.blocks]
        # and the embedding's
        sums = 1 + sum(1 + (b.cross is not None) + (b.feedforward is not None) for b in blocks)
        stream = tokens * cost.model.dim * width
        tied = parallel.pipeline > 1 and cost.model.head is not None and cost.model.head.tied
        table = FP32 * cost.model.embed.vocab * cost.model.dim * tied
        chosen = sum(b.feedforward.top_k for b in blocks if isinstance(b.feedforward, config.MoE))
        return (
            ring if parallel.context > 1 else 0.0,
            2 * sums * stream * 2 * (1 - 1 / parallel.tensor),  # in both passes, there and back
            # to the experts and back, in both passes
            4 * chosen * stream * (1 - 1 / parallel.expert),
            # from the stage before, and its gradient from the next
            table + stream * min(2, parallel.pipeline - 1),
        )

    def rows(self) -> list[tuple[str, str]]:
        """Everything as (what, how much), ready to print."""
        axes = [
            f"{axis} {self.parallel.size(axis)}" for axis in AXES if self.parallel.size(axis) > 1
        ]
        rounds = self.accumulate // self.parallel.rows
        return [
            ("processes", f"{self.parallel.size(*AXES)}: {' x '.join(axes) or 'alone'}"),
            (
                "parameters a process keeps",
                f"{'at most ' * bool(self.stages)}{self.local_parameters:,} of {self.cost.total:,}",
            ),
            (
                "micro-batches of a step a process",
                f"{rounds} of {self.accumulate}, {self.cost.batch:,} rows each at most",
            ),
            (
                f"memory a process, {self.dtype}, beside {BASE >> 20} MiB of Python and PyTorch",
                gibibytes(self.memory),
            ),
            (f"received a step and process, {self.dtype}", gibibytes(self.traffic)),
        ]

    def to_dict(self) -> dict[str, Any]:
        """The same in numbers, as JSON holds it."""
        return {
            "processes": self.parallel.size(*AXES),
            "axes": {axis: self.parallel.size(axis) for axis in AXES},
            "parameters": self.local_parameters,
            "micro_batches": self.accumulate,
            "memory_bytes": self.memory,
            "traffic_bytes": self.traffic,
        }

    def sentence(self) -> str:
        """The same in a line."""
        (_, axes), (_, parameters), (_, micro_batches), (_, memory), (_, traffic) = self.rows()
        tail = f"{memory} of memory and {traffic} received a step each"
        return (
            f"{axes.replace(':', ' processes:', 1)}; each keeps {parameters} parameters and works "
            f"on {micro_batches}; {tail}."
        )


def cut(model: config.Model, processes: int) -> config.Model:
    """The config of what each of so many processes on the tensor axis computes."""
    if processes == 1:
        return model

    def share(size: int) -> int:
        return -(-size // processes)

    def thinner(layer: Any) -> Any:
        if isinstance(layer, config.MLP | config.GatedMLP):
            return replace(layer, hidden=share(layer.hidden))
        if isinstance(layer, config.MoE):
            return replace(layer, expert=thinner(layer.expert), shared=thinner(layer.shared))
        if isinstance(layer, config.Attention):
            heads = share(layer.heads)
            kv = share(layer.kv_heads or layer.heads)
            return replace(layer, heads=heads, kv_heads=kv, head_dim=layer.width(model.dim))
        return layer

    parts_of = ("attention", "cross", "feedforward")
    stacks: dict[str, Any] = {
        name: replace(
            stack,
            pattern=tuple(
                replace(b, **{n: thinner(getattr(b, n)) for n in parts_of}) for b in stack.pattern
            ),
        )
        for name, stack in model.stacks.items()
    }
    return replace(model, embed=replace(model.embed, vocab=share(model.embed.vocab)), **stacks)


def micro_batches_for(accumulate: int, parallel: Parallel) -> int:
    """The number of micro-batches of a step: as many as asked, or more, so that each process
    has as many."""
    return -(-accumulate // parallel.rows) * parallel.rows


def stage_blocks(depth: int, stages: int) -> list[range]:
    """Which of ``depth`` blocks each of so many stages of a pipeline computes; where they differ
    the first have more, since the last has the head."""
    starts = [-(-depth * stage // stages) for stage in range(stages + 1)]
    return [range(low, high) for low, high in itertools.pairwise(starts)]


def stage_of(name: str, depth: int, stages: int) -> int:
    """The stage to which the weight of this path in a decoder belongs."""
    block = re.match(r"decoder\.blocks\.(\d+)\.", name)
    if block:
        return next(
            stage
            for stage, blocks in enumerate(stage_blocks(depth, stages))
            if int(block[1]) in blocks
        )
    return stages - 1 if name.startswith(("decoder.last_norm.", "head.")) else 0
