"""The structure of a recorded pass, inferred from what it computed: no name of the model is read.

attention         softmax weights that multiply values
residual stream   additions x + f(x) where f holds a product: one after the other, back from the answer
head              what stands between the last addition and the answer
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from ...core.errors import UserError
from .operations import Operation, Value
from .rules import CASTS, MOVES, behind, read

PRODUCTS = {"linear", "matmul", "bmm", "mm", "addmm", "baddbmm", "einsum", "grouped_mm", "conv1d"}
PRODUCTS |= {"conv2d", "conv3d"}
CARRIED = CASTS | MOVES | {"dropout"}


@dataclass(frozen=True, eq=False)
class FoundAttention:
    """``pattern`` (B, H, T, S) as it multiplies ``values`` (B, H, S, D), and what that gives,
    ``mixed`` (B, H, T, D)."""

    pattern: Value
    values: Value
    mixed: Value
    output: Operation | None  # the layer that reads ``mixed``

    @property
    def path(self) -> str:
        """The module that computes it."""
        operation = self.mixed.operation
        assert operation is not None
        return operation.place[0] or self.pattern.address

    def weights(self) -> Tensor:
        """The numbers of the pattern (B, H, T, S)."""
        return _batched(read(self.pattern))

    def sizes(self) -> Tensor | None:
        """The size of what each key would write through each head, |v W_out| (B, H, S); None where no
        matrix follows."""
        weights = [x for x in (self.output.inputs if self.output else ()) if len(x.shape) == 2]
        v = _batched(read(self.values)).double()
        heads = self.weights().shape[1]
        width = v.shape[-1]
        v = v.repeat_interleave(heads // v.shape[1], 1)
        for weight in weights:
            matrix = read(weight).double()
            matrix = matrix.T if self.output and self.output.name == "addmm" else matrix
            if matrix.shape[1] == heads * width:
                by_head = matrix.view(-1, heads, width).permute(1, 2, 0)  # (H, D, C)
                sizes: Tensor = torch.linalg.vector_norm(v @ by_head, dim=-1)
                return sizes
        return None


class Structure:
    """The attentions of a pass, and the states of its residual stream on the way to the answer
    (B, T, V)."""

    def __init__(self, trace: Any) -> None:
        self.trace = trace
        fields = [name for name, x in trace.outputs.items() if x.is_floating_point()]
        if not fields:
            raise UserError(f"{type(trace.module).__name__} returns no numbers to trace back.")
        self.name = "logits" if "logits" in fields else fields[0]
        self.answer = trace.aliases[self.name]
        self._readers: dict[Value, list[Operation]] = defaultdict(list)
        # a bit for each value: those that one comes from, and of these those behind a product
        self._from: dict[Value, int] = {}
        self._through: dict[Value, int] = {}
        self._residual: dict[int, tuple[Value, Value, Value]] = {}  # bit -> x, f(x), their sum
        for operation in trace.operations:
            self._follow(operation)
        self.attentions = [x for op in trace.operations if (x := self._attention(op))]
        self.writes: list[Value] = []  # what each addition adds to the stream
        self.states = self._states()

    def _follow(self, operation: Operation) -> None:
        origins = through = 0
        for x in operation.inputs:
            self._readers[x].append(operation)
            origins |= self._from.get(x, 0)
            through |= self._through.get(x, 0)
        if operation.name in PRODUCTS:
            through |= origins
        for value in operation.outputs:
            bit = len(self._from)
            self._from[value] = origins | 1 << bit
            self._through[value] = through
            if operation.name == "add" and len(operation.inputs) == 2:
                for x, write in permutations(operation.inputs):
                    *_, uncast = behind(x, CASTS)
                    before = self._from.get(uncast, 0)
                    bit_of_x = 1 << before.bit_length() - 1 if before else 0
                    if bit_of_x & self._through.get(write, 0) and x.shape == value.shape:
                        self._residual[bit] = x, write, value

    def _latest(self, candidates: int) -> int | None:
        """The latest of some values that is the sum of a residual addition."""
        return max((bit for bit in self._residual if candidates >> bit & 1), default=None)

    def _states(self) -> list[Value]:
        """The stream before each of its additions, and behind the last; norms that stand behind
        additions are passed."""
        bit = self._latest(self._from.get(self.answer, 0))
        states: list[Value] = []
        while bit is not None:
            x, write, total = self._residual[bit]
            if not states:
                states.append(self._behind(total, x))
            states.append(x)
            self.writes.insert(0, write)
            bit = self._latest(self._from.get(x, 0) & ~self._through.get(x, 0))
        return states[::-1]

    def _behind(self, total: Value, x: Value) -> Value:
        """The last sum, or where the stream is normed behind each sum, the norm of it."""
        name = x.operation.name if x.operation else ""
        normed = [op.outputs[0] for op in self._readers[total] if op.name == name]
        return normed[0] if name.endswith("norm") and normed else total

    def _attention(self, operation: Operation) -> FoundAttention | None:
        if operation.name not in PRODUCTS or len(operation.inputs) < 2:
            return None
        pattern, values = operation.inputs[:2]
        numbers = math.prod(pattern.shape)
        for source in behind(pattern, CARRIED):
            if math.prod(source.shape) == numbers:  # as it was before its heads were grouped
                pattern = source
        is_softmax = source.operation is not None and source.operation.name == "softmax"
        if not is_softmax or len(pattern.shape) not in (3, 4) or len(values.shape) < 3:
            return None
        mixed = after = operation.outputs[0]
        while (readers := self._readers[after]) and readers[0].name in CARRIED:
            after = readers[0].outputs[0]
        return FoundAttention(pattern, values, mixed, readers[0] if readers else None)

    def depths(self) -> dict[str, Tensor]:
        """The states (B, T, C) by address; UserError where nothing is added on the way to the
        answer."""
        if not self.states:
            raise UserError(
                f"{type(self.trace.module).__name__} adds nothing to a residual stream on the way to "
                f"{self.name}, so there are no depths to read."
            )
        shape = self.states[-1].shape  # some models make rows of all tokens on the way
        return {x.address: read(x).reshape(shape) for x in self.states}

    def writers(self, place: str) -> list[str]:
        """The addresses of all that is written to the stream at a place: heads of its attentions (with
        a word for their number), and what no attention wrote."""
        addresses = []
        for x, write in zip(self.states, self.writes, strict=False):
            fresh = self._from[write] & ~self._from.get(x, 0)
            # what an encoder's stream has taken up is no head of this one
            taken = [self._from[y] for bit, (*_, y) in self._residual.items() if fresh >> bit & 1]
            mixed = [
                value
                for value in (attention.mixed for attention in self.attentions)
                if self._has(fresh, value) and not any(self._has(y, value) for y in taken)
            ]
            for value in mixed:
                first = "0,head" if len(value.shape) == 4 else "head"
                addresses.append(f"{value.address}[{first},{place}]")
            if not mixed:
                row = f"0,{place}" if len(write.shape) == 3 else place
                addresses.append(f"{write.address}[{row}]")
        return addresses

    def _has(self, origins: int, value: Value) -> bool:
        """True where a value of the pass is among those of a set of bits."""
        return bool(origins >> self._from[value].bit_length() - 1 & 1)

    def _head(self) -> list[Operation]:
        """The functions between the last state and the answer."""
        last = self.states[-1]
        needed = self._from[self.answer]
        return [
            operation
            for operation in self.trace.operations
            if any(self._has(self._from[x], last) for x in operation.outputs)
            and any(self._has(needed, x) for x in operation.outputs)
            and last not in operation.outputs
        ]

    def decode(self, state: Tensor) -> Tensor:
        """The answer (B, T, V) as the model's head reads it from a state (B, T, C)."""
        values = {self.states[-1]: state}
        with torch.no_grad():
            for operation in self._head():
                tensors = [values[x] if x in values else read(x) for x in operation.inputs]
                values |= zip(operation.outputs, operation.run(tensors), strict=False)
        return values[self.answer]

    def head_layers(self) -> list[str]:
        """The layers with weights between the last state and the answer."""
        weights = [x for op in self._head() for x in op.inputs if x.kind == "weight"]
        return list(dict.fromkeys(x.address.rpartition(".")[0] for x in weights))


def _batched(x: Tensor) -> Tensor:
    return x if x.ndim == 4 else x[None]
