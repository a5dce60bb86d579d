"""Queries with keys, masks, shares, and the experts with the highest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..plan import Index, Kind, Line, Op, Reader, Weights, Worked, copy_of, products, scalar


class QK(Kind):
    """Each query with each key of its group's head."""

    name = "qk"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        q, k = x
        return q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-1, -2)

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        b, h, t, s = at
        q, k = reader.input(0, b, h, t, None), reader.input(1, b, h // op.params["group"], s, None)
        return products(
            (q, k),
            f"Query {t} with key {s} in head {h}: {len(q.values)} products.",
            "sum_d q_d k_d",
        )


class Bias(Kind):
    """A number for the distance between query and key, for each head (T5's buckets, ALiBi's
    slopes)."""

    name = "bias"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        bias: Tensor = op.params["call"](*x)
        return bias

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        b, h, t, s = at
        q, k = reader.input(0, b, t), reader.input(1, b, s)
        away = int(scalar(k)) - int(scalar(q))
        if op.params["type"] == "alibi":
            slope = op.params["slopes"][h]
            words = f"Distance {abs(away)} times the slope of head {h}, {slope:.6g}, taken away."
            return copy_of(k, words, "-slope |i - j|", -abs(away) * slope, q, slope=slope)
        bucket = op.params["bucket"](away)
        line = reader.weight("table", bucket, h)
        assert line is not None
        return copy_of(
            line,
            f"Distance {away} is in bucket {bucket}.",
            "table[bucket, head]",
            None,
            q,
            k,
            bucket=bucket,
        )


class Mask(Kind):
    """-inf where the query may not attend to the key."""

    name = "mask"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        scores, q_pos, k_pos = x
        return scores.masked_fill(~op.params["allowed"](q_pos, k_pos), float("-inf"))

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        b, _, t, s = at
        line, q, k = reader.input(0, *at), reader.input(1, b, t), reader.input(2, b, s)
        visible = bool(op.params["allowed"](q.values.long()[None], k.values.long()[None]))
        words = (
            "The mask lets this query see this key."
            if visible
            else "The mask hides this key: -infinity."
        )
        value = scalar(line) if visible else -math.inf
        return copy_of(line, words, "x" if visible else "-inf", value, q, k)


class Softmax(Kind):
    """Shares of 1, by exponentials."""

    name = "softmax"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        shares = x[0].softmax(-1, torch.promote_types(x[0].dtype, torch.float32))
        return shares.to(op.params["dtype"]) if "dtype" in op.params else shares

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        row = reader.input(0, *at[:-1], None)
        top = float(row.values.max())
        exps = (row.values - top).exp()
        total = float(exps.sum())
        numerator = float(exps[at[-1]])
        hidden = (
            "The mask hides this key: e^-infinity is 0"
            if op.axes[-1] == "S"
            else "e^-infinity is 0"
        )
        words = (
            hidden if row.values[at[-1]] == -math.inf else f"e^(x - {top:.6g}) = {numerator:.6g}"
        )
        words += f", divided by the sum of all {len(exps)}, {total:.6g}."
        numbers = {"max": top, "sum": total, "exp": numerator}
        line = reader.input(0, *at)
        return Worked(
            numerator / total,
            exps / total,
            (row,),
            words,
            "e^(x_j - max) / sum_i e^(x_i - max)",
            (line,),
            numbers,
        )


class AV(Kind):
    """Values, weighed by the attention pattern."""

    name = "av"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        pattern, v = x
        if v.ndim == 3:  # one head over the source's states themselves
            return pattern[:, 0] @ v
        return pattern @ v.repeat_interleave(pattern.shape[1] // v.shape[1], 1)

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        b, h, t, d = at if len(at) == 4 else (at[0], 0, *at[1:])
        place = (b, h // op.params["group"], None, d) if len(at) == 4 else (b, None, d)
        pattern, v = reader.input(0, b, h, t, None), reader.input(1, *place)
        return products(
            (pattern, v), f"Dimension {d} of {len(v.values)} weighed values.", "sum_s a_s v_s"
        )


class TopK(Kind):
    """The router's highest shares, or which experts have them."""

    name = "topk"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        weight, chosen = x[0].topk(op.shape[-1], dim=-1)
        if op.params["gives"] == "chosen":
            return chosen
        return weight / weight.sum(-1, keepdim=True) if op.params["normalize"] else weight

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        row = reader.input(0, *at[:-1], None)
        weight, chosen = row.values.topk(op.shape[-1])
        expert = int(chosen[at[-1]])
        chosen_share = Line(row.id, (*row.index[:-1], expert), row.values[expert : expert + 1])
        if op.params["gives"] == "chosen":
            return copy_of(
                chosen_share,
                f"Expert {expert} has the share number {at[-1] + 1}.",
                "argtop_k p",
                float(expert),
                row,
            )
        total = float(weight.sum()) if op.params["normalize"] else 1.0
        words = f"The share of expert {expert}" + (
            f", divided by the chosen ones' sum {total:.6g}." if total != 1 else "."
        )
        return copy_of(
            chosen_share,
            words,
            "p_e / sum of the chosen",
            float(weight[at[-1]]) / total,
            row,
            sum=total,
        )
