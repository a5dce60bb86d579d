"""The steps of recurrent readers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..plan import Index, Kind, Op, Reader, Weights, Worked, scalar


class Cell(Kind):
    """The next state of a GRU (Cho et al. 2014) or LSTM (Hochreiter & Schmidhuber 1997) from its
    gates."""

    name = "cell"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        if op.params["type"] == "lstm":
            show = (x[0] + x[1]).chunk(4, -1)[3]
            return torch.sigmoid(show) * torch.tanh(x[2])
        reset, update, new = x[0].chunk(3, -1)
        h_reset, h_update, h_new = x[1].chunk(3, -1)
        stay = torch.sigmoid(update + h_update)
        candidate = torch.tanh(new + torch.sigmoid(reset + h_reset) * h_new)
        return candidate + stay * (x[2] - candidate)

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        b, t, c = at
        width = op.shape[-1]
        gates = 4 if op.params["type"] == "lstm" else 3
        input_gates = [reader.input(0, b, t, gate * width + c) for gate in range(gates)]
        carried = [reader.input(1, b, t, gate * width + c) for gate in range(gates)]
        previous = reader.input(2, b, t, c)
        operands = (*input_gates, *carried, previous)
        if gates == 4:
            show = sigmoid(scalar(input_gates[3]) + scalar(carried[3]))
            value = show * math.tanh(scalar(previous))
            words = f"The output gate {show:.6g} times tanh of the cell's memory {scalar(previous):.6g}."
            return Worked(
                value,
                torch.tensor([value]).double(),
                (),
                words,
                "o * tanh(c)",
                operands,
                {"output": show},
            )
        reset = sigmoid(scalar(input_gates[0]) + scalar(carried[0]))
        stay = sigmoid(scalar(input_gates[1]) + scalar(carried[1]))
        candidate = math.tanh(scalar(input_gates[2]) + reset * scalar(carried[2]))
        terms = torch.tensor([(1 - stay) * candidate, stay * scalar(previous)], dtype=torch.float64)
        words = (
            f"{stay:.6g} of the state before and {1 - stay:.6g} of the candidate {candidate:.6g}."
        )
        numbers = {"reset": reset, "update": stay, "candidate": candidate}
        return Worked(float(terms.sum()), terms, (), words, "(1 - z) n + z h", operands, numbers)


class Memory(Kind):
    """An LSTM's memory: what stays of it and what enters."""

    name = "memory"
    needs_whole_input = True

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        enter, stay, new, _ = (x[0] + x[1]).chunk(4, -1)
        memory, steps = torch.zeros_like(new[:, 0]), range(new.shape[1])
        memories = [memory] * len(steps)
        for t in reversed(steps) if op.params.get("reverse") else steps:
            memory = torch.sigmoid(stay[:, t]) * memory + torch.sigmoid(enter[:, t]) * torch.tanh(
                new[:, t]
            )
            memories[t] = memory
        return torch.stack(memories, 1)

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        b, t, c = at
        width = op.shape[-1]
        lines = [
            (reader.input(0, b, t, gate * width + c), reader.input(1, b, t, gate * width + c))
            for gate in range(3)
        ]
        enter, stay, new = (scalar(input_line) + scalar(carried) for input_line, carried in lines)
        before = t + 1 if op.params.get("reverse") else t - 1
        old = reader.input(2, b, before, c) if 0 <= before < op.shape[1] else None
        previous = 0.0 if old is None else scalar(old)
        terms = torch.tensor(
            [sigmoid(stay) * previous, sigmoid(enter) * math.tanh(new)], dtype=torch.float64
        )
        words = (
            f"{sigmoid(stay):.6g} of the memory before and {sigmoid(enter):.6g} of the new "
            f"{math.tanh(new):.6g}."
        )
        operands = (*(line for pair in lines for line in pair), *(() if old is None else (old,)))
        numbers = {"input": sigmoid(enter), "forget": sigmoid(stay)}
        return Worked(float(terms.sum()), terms, (), words, "f * c[t-1] + i * g", operands, numbers)


class Additive(Kind):
    """Score of a source state against the previous state: w tanh(q + k) (Bahdanau et al.
    2015)."""

    name = "additive"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        q, k = x  # (B, T, A), (B, S, A)
        rows = [
            F.linear(torch.tanh(q[:, t, None] + k), w["weight"])[..., 0] for t in range(q.shape[1])
        ]
        return torch.stack(rows, 1)[:, None]

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        b, _, t, s = at
        q, k, w = (
            reader.input(0, b, t, None),
            reader.input(1, b, s, None),
            reader.weight("weight", 0, None),
        )
        assert w is not None
        terms = w.values * torch.tanh(q.values + k.values)
        words = f"State {t} with state {s} of the source: {len(terms)} terms."
        return Worked(float(terms.sum()), terms, (q, k, w), words, "sum_a w_a tanh(q_a + k_a)")


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
