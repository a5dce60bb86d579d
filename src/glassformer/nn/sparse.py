"""Attention that costs what it visits: batched products over the blocks that a plan names, the gradient by hand.

Scores are made anew for the gradient, so what is kept does not grow with the pairs. Where a rule is a union of
several terms, each has its own softmax; their log-sum-exps tell how much each weighs.

B batch, T queries, S keys, H heads, K key-value heads, D head dim; the other letters as in plan.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from .dropout import keep_mask
from .mask import Mask
from .plan import NOTHING, Plan, with_steps


def visit(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, softcap: float | None = None, dropout: float = 0.0
) -> Tensor:
    """q (B, H, T, D), k and v (B, K, S, D) -> (B, H, T, D); zero where a query is nothing."""
    z: Tensor = _Sparse.apply(q, k, v, Work(with_steps(mask), scale, softcap, dropout))  # type: ignore[no-untyped-call]
    return z


@dataclass
class Work:
    """What to compute besides queries, keys and values, and which pairs dropout spared: one tensor a step and head."""

    plans: list[Plan]
    scale: float
    softcap: float | None
    dropout: float
    spared: list[Tensor] = field(default_factory=list)

    def scores(self, q: Tensor, k: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Scores (G, E, n * E) and, where they are capped, the slope of the cap."""
        if self.softcap is None and bias is not None:  # scale and mask go into the product itself
            return wide(torch.baddbmm(bias, q, k.mT, alpha=self.scale)), None
        scores, cap_grad = wide(torch.bmm(q, k.mT)).mul_(self.scale), None
        if self.softcap is not None:
            bent = scores.div_(self.softcap).tanh_()
            cap_grad, scores = 1 - bent * bent, bent * self.softcap
        return scores if bias is None else scores.add_(bias), cap_grad


class _Sparse(torch.autograd.Function):
    """Softmax over the visited keys only; keeps its result, and how much each of several terms weighs in it."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, work: Work) -> Tensor:
        shape, kv_shape, rows = q.shape, k.shape, len(work.plans[0].queries.columns)
        q, k, v = (x.reshape(rows, -1, *x.shape[2:]) for x in (q, k, v))  # (R, M, T or S, D)
        parts = [_look(work, plan, q, k, v) for plan in work.plans]
        z, weights = parts[0][0], list[Tensor]()
        if len(parts) > 1:
            weights = list(torch.stack([logsum for _, logsum in parts]).softmax(0))  # (R, M, T, 1) each
            z = reduce(Tensor.add_, (part.mul_(weight) for (part, _), weight in zip(parts, weights, strict=True)))
        z = z.to(q.dtype)
        ctx.save_for_backward(q, k, v, z, *weights)
        ctx.work, ctx.shape, ctx.kv_shape = work, shape, kv_shape
        return z.view(shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (q, k, v, z, *weights), work = ctx.saved_tensors, ctx.work
        grad = grad.reshape(z.shape)
        delta = wide(grad * z).sum(-1, keepdim=True)  # what every score of a query loses
        spared = iter(work.spared)
        parts = [
            _learn(work, plan, (q, k, v), grad, delta, weight, spared)
            for plan, weight in zip(work.plans, weights or [None], strict=True)
        ]
        to_q, to_k, to_v = (reduce(Tensor.add_, some) for some in zip(*parts, strict=True))
        scaled = (to_q.mul_(work.scale).view(ctx.shape), to_k.mul_(work.scale).view(ctx.kv_shape))
        return *(x.to(q.dtype) for x in (*scaled, to_v.view(ctx.kv_shape))), None


def _look(work: Work, plan: Plan, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """One term's result (R, M, T, D) and, of several terms, its log-sum-exp (R, M, T, 1)."""
    group, several = q.shape[1] // k.shape[1], len(work.plans) > 1
    q, k, v = plan.queries.lay(q), plan.keys.lay(k), plan.keys.lay(v)
    z = plan.blank(q)
    logsum = z.new_full((*q.shape[:-1], 1) if several else (0,), NOTHING)
    for step in plan.steps:
        bias = step.bias(q.dtype)
        for head in range(len(q)):
            some_k, some_v = (_take(x, head // group, step.keys) for x in (k, v))
            scores, _ = work.scores(_take(q, head, step.queries), some_k, bias)
            pattern = scores.softmax(-1)
            if several:  # the likeliest key tells the sum of all
                total = scores.amax(-1, keepdim=True) - pattern.amax(-1, keepdim=True).log()
                logsum[head].index_copy_(0, step.queries, total)
            if work.dropout:
                work.spared.append(keep_mask(pattern, work.dropout))
                pattern = pattern.mul_(work.spared[-1]).mul_(1 / (1 - work.dropout))
            z[head].index_copy_(0, step.queries, wide(torch.bmm(pattern.to(v.dtype), some_v)))
    return plan.queries.back(z), plan.queries.back(logsum) if several else logsum


def _learn(
    work: Work,
    plan: Plan,
    given: tuple[Tensor, Tensor, Tensor],
    grad: Tensor,
    delta: Tensor,
    weight: Tensor | None,
    spared: Iterator[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """One term's share of the gradients of queries and keys (both still to be scaled) and of values."""
    group = given[0].shape[1] // given[1].shape[1]
    q, grad, delta = (plan.queries.lay(x) for x in (given[0], grad, delta))
    k, v = plan.keys.lay(given[1]), plan.keys.lay(given[2])
    weight = None if weight is None else plan.queries.lay(weight)
    to_q, to_k, to_v = plan.blank(q), *(torch.zeros_like(x, dtype=delta.dtype) for x in (k, v))
    for step in plan.steps:
        bias = step.bias(q.dtype)
        for head in range(len(q)):
            some_q, some_grad, some_delta = (_take(x, head, step.queries) for x in (q, grad, delta))
            some_k, some_v = (_take(x, head // group, step.keys) for x in (k, v))
            scores, cap_grad = work.scores(some_q, some_k, bias)
            pattern = scores.softmax(-1)
            if weight is not None:
                pattern.mul_(_take(weight, head, step.queries))
            change, left = wide(torch.bmm(some_grad, some_v.mT)), pattern
            if work.dropout:
                alive = next(spared)
                change, left = (x.mul(alive).mul_(1 / (1 - work.dropout)) for x in (change, pattern))
            _add(to_v, head // group, step.keys, torch.bmm(left.to(v.dtype).mT, some_grad))
            change.sub_(some_delta).mul_(pattern)
            change = (change if cap_grad is None else change.mul_(cap_grad)).to(q.dtype)
            to_q[head].index_copy_(0, step.queries, wide(torch.bmm(change, some_k)))
            _add(to_k, head // group, step.keys, torch.bmm(change.mT, some_q))
    return plan.queries.back(to_q), plan.keys.back(to_k), plan.keys.back(to_v)


def wide(x: Tensor) -> Tensor:
    """In fp32 at least: where sums are made."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _take(x: Tensor, head: int, blocks: Tensor) -> Tensor:
    """Some blocks of one head of x (M, R * N / E, E, D): (G,) -> (G, E, D), (G, n) -> (G, n * E, D)."""
    return x[head].index_select(0, blocks.flatten()).view(len(blocks), -1, x.shape[-1])


def _add(x: Tensor, head: int, blocks: Tensor, value: Tensor) -> None:
    """Add value (G, n * E, D) to some blocks (G, n) of one head; a block may come several times."""
    x[head].index_add_(0, blocks.flatten(), wide(value).view(-1, *x.shape[2:]))
