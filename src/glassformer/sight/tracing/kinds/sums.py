"""Sums and products, activations, norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ....core.nn.layers import ACTIVATIONS
from ..plan import Index, Kind, Op, Reader, Weights, Worked, copy_of, products, scalar


class Add(Kind):
    """The sum of its inputs."""

    name = "add"
    words = "The sum of {n} values at this place."

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        total = x[0]
        for addend in x[1:]:
            total = total + addend
        return total

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        lines = [reader.input(number, *at) for number in range(len(op.inputs))]
        terms = torch.cat([line.values for line in lines])
        words = self.words.format(n=len(lines))
        return Worked(
            float(terms.sum()), terms, (), words, " + ".join("xyzuvw"[: len(lines)]), tuple(lines)
        )


class Residual(Add):
    """Sum of the residual stream and a sublayer's output."""

    name = "residual"
    words = "The residual stream and what was written to it, {n} values."


class Scale(Kind):
    """Every number multiplied by one."""

    name = "scale"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        by = op.params["by"]
        return x[0] * (torch.tensor(by, dtype=x[0].dtype) if op.params.get("rounded") else by)

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        by, line = float(op.params["by"]), reader.input(0, *at)
        return copy_of(
            line,
            f"Multiplied by {by:.6g}{op.params.get('why', '')}.",
            f"x * {by:.6g}",
            scalar(line) * by,
            by=by,
        )


class Linear(Kind):
    """A product with a weight matrix, and a bias."""

    name = "linear"
    words = "Row {o} of the weight matrix times the input vector: {n} products{bias}."

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        y = F.linear(x[0], w["weight"], w.get("bias"))
        return y * op.params["factor"] if "factor" in op.params else y

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        x, row, bias = (
            reader.input(0, *at[:-1], None),
            reader.weight("weight", at[-1], None),
            reader.weight("bias", at[-1]),
        )
        assert row is not None
        words = self.words.format(o=at[-1], n=len(x.values), bias=", and a bias" if bias else "")
        return products((x, row), words, "sum_i x_i W[o,i]", bias, op.params.get("factor", 1.0))


class LMHead(Linear):
    """The hidden state with the vector of each token of the vocabulary."""

    name = "lm_head"
    words = "The vector of token {o} times the hidden state: {n} products{bias}."


class Classify(Linear):
    """A label's score."""

    name = "classify"
    words = "The vector of label {o} times the hidden state: {n} products{bias}."


class Router(Linear):
    """A mixture's score of each expert, in fp32 at least."""

    name = "router"
    words = "How well expert {o} fits the token: {n} products{bias}."

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        wide = torch.promote_types(x[0].dtype, torch.float32)
        return F.linear(x[0].to(wide), w["weight"].to(wide))


class Expert(Kind):
    """A product with the matrix of each expert that the token was sent to: (B, T, k, out)."""

    name = "expert"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        rows, chosen = x
        rows = rows if rows.ndim == 4 else rows[:, :, None].expand(*chosen.shape, -1)
        out = rows.new_zeros(*chosen.shape, w["weight"].shape[1])
        for expert in sorted(set(chosen.flatten().tolist())):
            routed = chosen == expert
            out[routed] = F.linear(
                rows[routed], w["weight"][expert], w["bias"][expert] if "bias" in w else None
            )
        return out

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        b, t, k, o = at
        chosen = reader.input(1, b, t, k)
        expert = int(scalar(chosen))
        x = reader.input(0, b, t, None) if op.params["first"] else reader.input(0, b, t, k, None)
        row, bias = reader.weight("weight", expert, o, None), reader.weight("bias", expert, o)
        assert row is not None
        words = f"Expert {expert}, choice {k} of this token: row {o} of its matrix times the input."
        worked = products((x, row), words, "sum_i x_i W[e,o,i]", bias)
        return Worked(
            worked.value,
            worked.terms,
            worked.factors,
            words,
            worked.equation,
            (*worked.other_lines, chosen),
            worked.numbers,
        )


class Combine(Kind):
    """Outputs of the chosen experts, weighted by the router."""

    name = "combine"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        answers, weight = x
        return (answers * weight[..., None]).sum(2).to(answers.dtype)

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        b, t, c = at
        lines = (reader.input(0, b, t, None, c), reader.input(1, b, t, None))
        return products(
            lines,
            f"{len(lines[0].values)} experts' answers, weighed by the router.",
            "sum_k weight_k y_k",
        )


class Softcap(Kind):
    """Bounded smoothly: c tanh(x / c)."""

    name = "softcap"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        return op.params["cap"] * torch.tanh(x[0] / op.params["cap"])  # type: ignore[no-any-return]

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        cap, line = float(op.params["cap"]), reader.input(0, *at)
        value = cap * math.tanh(scalar(line) / cap)
        return copy_of(
            line,
            f"Kept between -{cap:g} and {cap:g}.",
            f"{cap:g} tanh(x / {cap:g})",
            value,
            cap=cap,
        )


class Act(Kind):
    """An activation."""

    name = "act"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        return ACTIVATIONS[op.params["act"]](x[0])

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        act, line = op.params["act"], reader.input(0, *at)
        return copy_of(
            line, f"{act} of {scalar(line):.6g}.", f"{act}(x)", float(ACTIVATIONS[act](line.values))
        )


class GLU(Kind):
    """A gate times what it lets through."""

    name = "glu"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        return x[0] * x[1]

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        return products(
            (reader.input(0, *at), reader.input(1, *at)),
            "The gate times what it lets through.",
            "gate * up",
        )


class Norm(Kind):
    """LayerNorm (Ba et al. 2016), RMSNorm (Zhang & Sennrich 2019), or length 1 (``type``
    "unit")."""

    name = "norm"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        p = op.params
        if p["type"] == "unit":
            return F.normalize(x[0], dim=-1)
        if p["type"] == "layer":
            return F.layer_norm(x[0], x[0].shape[-1:], w["weight"], w.get("bias"), p["eps"])
        gain = (
            None
            if "weight" not in w
            else (w["weight"] + p["offset"] if p["offset"] else w["weight"])
        )
        return F.rms_norm(
            x[0], x[0].shape[-1:], None if gain is None else gain.to(x[0].dtype), p["eps"]
        )

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        p, row_line = op.params, reader.input(0, *at[:-1], None)
        row, line = row_line.values, reader.input(0, *at)
        if p["type"] == "unit":
            length = max(float(row.norm()), 1e-12)
            return copy_of(
                line,
                "Divided by the vector's length.",
                "x / |x|",
                scalar(line) / length,
                row_line,
                length=length,
            )
        gain, shift = reader.weight("weight", at[-1]), reader.weight("bias", at[-1])
        mean = float(row.mean()) if p["type"] == "layer" else 0.0
        spread = math.sqrt(float((row - mean).square().mean()) + p["eps"])
        value = (scalar(line) - mean) / spread
        by = 1.0 if gain is None else scalar(gain) + p.get("offset", 0.0)
        value = value * by + (0.0 if shift is None else scalar(shift))
        operands = tuple(line for line in (gain, shift, row_line) if line is not None)
        if p["type"] == "layer":
            words = (
                f"Minus the vector's mean {mean:.6g}, divided by its deviation {spread:.6g}, "
                f"times the gain {by:.6g}."
            )
            equation = "(x - mean) / sqrt(var + eps) * gain" + (
                " + bias" if shift is not None else ""
            )
            return copy_of(
                line, words, equation, value, *operands, mean=mean, deviation=spread, gain=by
            )
        words = f"Divided by the vector's root mean square {spread:.6g}, times the gain {by:.6g}."
        return copy_of(
            line, words, "x / sqrt(mean(x^2) + eps) * gain", value, *operands, rms=spread, gain=by
        )
