"""Attention that costs what it visits: batched products over the blocks that a plan names, the gradient by hand.

Scores are made anew for the gradient, so what is kept does not grow with the pairs. Where a rule is a union of
several terms, each has its own softmax; their log-sum-exps tell how much each weighs.

B batch, T queries, S keys, H heads, K key-value heads, D head dim; the other letters as in plan.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .mask import Mask
from .plan import NOTHING, Plan, with_steps


def visit(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, softcap: float | None = None) -> Tensor:
    """q (B, H, T, D), k and v (B, K, S, D) -> (B, H, T, D); zero where a query is nothing."""
    z: Tensor = _Sparse.apply(q, k, v, with_steps(mask), scale, softcap)  # type: ignore[no-untyped-call]
    return z


class _Sparse(torch.autograd.Function):
    """Softmax over the visited keys only; keeps its result, and how much each of several terms weighs in it."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, plans: list[Plan], scale: float, softcap: float | None
    ) -> Tensor:
        shape, kv_shape, rows = q.shape, k.shape, len(plans[0].queries.columns)
        q, k, v = (x.reshape(rows, -1, *x.shape[2:]) for x in (q, k, v))  # (R, M, T or S, D)
        parts = [_look(plan, q, k, v, scale, softcap, len(plans) > 1) for plan in plans]
        z, weights = parts[0][0], list[Tensor]()
        if len(plans) > 1:
            weights = list(torch.stack([logsum for _, logsum in parts]).softmax(0))  # (R, M, T, 1) each
            z = torch.stack([part * weight for (part, _), weight in zip(parts, weights, strict=True)]).sum(0)
        z = z.to(q.dtype)
        ctx.save_for_backward(q, k, v, z, *weights)
        ctx.plans, ctx.scale, ctx.softcap, ctx.shape, ctx.kv_shape = plans, scale, softcap, shape, kv_shape
        return z.view(shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, z, *weights = ctx.saved_tensors
        grad = grad.reshape(z.shape)
        drift = (grad * z).sum(-1, keepdim=True, dtype=torch.float32)  # what every score of a query loses
        parts = [
            _learn(plan, q, k, v, grad, drift, weight, ctx.scale, ctx.softcap)
            for plan, weight in zip(ctx.plans, weights or [None], strict=True)
        ]
        to_q, to_k, to_v = (sum(some[1:], some[0]) for some in zip(*parts, strict=True))
        scaled = (to_q.mul_(ctx.scale).view(ctx.shape), to_k.mul_(ctx.scale).view(ctx.kv_shape))
        return *(x.to(q.dtype) for x in (*scaled, to_v.view(ctx.kv_shape))), None, None, None


def _look(
    plan: Plan, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None, several: bool
) -> tuple[Tensor, Tensor]:
    """One term's result (R, M, T, D) and, of several terms, its log-sum-exp (R, M, T, 1), in fp32."""
    group = q.shape[1] // k.shape[1]
    q, k, v = plan.queries.lay(q), plan.keys.lay(k), plan.keys.lay(v)
    z = plan.blank(q)
    logsum = z.new_full((*q.shape[:-1], 1) if several else (0,), NOTHING)
    for step in plan.steps:
        bias = step.bias(q.dtype)
        for head in range(q.shape[1]):
            some_q, some_k, some_v = _take(q, head, step.queries), *(_take(x, head // group, step.keys) for x in (k, v))
            scores, _ = _scores(some_q, some_k, bias, scale, softcap)
            pattern = scores.softmax(-1)
            _put(z, head, step.queries, torch.bmm(pattern.to(v.dtype), some_v))
            if several:  # the likeliest key tells the sum of all
                _put(logsum, head, step.queries, scores.amax(-1, keepdim=True) - pattern.amax(-1, keepdim=True).log())
    return plan.queries.back(z), plan.queries.back(logsum) if several else logsum


def _learn(
    plan: Plan,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    drift: Tensor,
    weight: Tensor | None,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One term's share of the gradients of queries and keys (both still to be scaled) and of values, in fp32."""
    group = q.shape[1] // k.shape[1]
    q, grad, drift = (plan.queries.lay(x) for x in (q, grad, drift))
    k, v = plan.keys.lay(k), plan.keys.lay(v)
    weight = None if weight is None else plan.queries.lay(weight)
    to_q, to_k, to_v = plan.blank(q), *(torch.zeros_like(x, dtype=torch.float32) for x in (k, v))
    for step in plan.steps:
        bias = step.bias(q.dtype)
        for head in range(q.shape[1]):
            some_q, some_grad, some_drift = (_take(x, head, step.queries) for x in (q, grad, drift))
            some_k, some_v = (_take(x, head // group, step.keys) for x in (k, v))
            scores, slope = _scores(some_q, some_k, bias, scale, softcap)
            pattern = scores.softmax(-1)
            if weight is not None:
                pattern.mul_(_take(weight, head, step.queries))
            _add(to_v, head // group, step.keys, torch.bmm(pattern.to(v.dtype).mT, some_grad))
            change = torch.bmm(some_grad, some_v.mT).float().sub_(some_drift).mul_(pattern)
            change = (change if slope is None else change.mul_(slope)).to(q.dtype)
            _put(to_q, head, step.queries, torch.bmm(change, some_k))
            _add(to_k, head // group, step.keys, torch.bmm(change.mT, some_q))
    return plan.queries.back(to_q), plan.keys.back(to_k), plan.keys.back(to_v)


def _scores(
    q: Tensor, k: Tensor, bias: Tensor | None, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor | None]:
    """Scores (G, E, n * E) in fp32 and, where they are capped, the slope of the cap."""
    if softcap is None and bias is not None:  # scale and mask go into the product itself
        return torch.baddbmm(bias, q, k.mT, alpha=scale).float(), None
    scores, slope = torch.bmm(q, k.mT).float().mul_(scale), None
    if softcap is not None:
        bent = scores.div_(softcap).tanh_()
        slope, scores = 1 - bent * bent, bent * softcap
    return scores if bias is None else scores.add_(bias), slope


def _take(x: Tensor, head: int, blocks: Tensor) -> Tensor:
    """Some blocks of one head of x (R, M, N / E, E, D): (G,) -> (G, E, D), (G, n) -> (G, n * E, D)."""
    rows = x[:, head].reshape(-1, *x.shape[3:])
    return rows.index_select(0, blocks.flatten()).view(len(blocks), -1, x.shape[-1])


def _put(x: Tensor, head: int, blocks: Tensor, value: Tensor) -> None:
    """Write value (G, E, D) to some blocks of one head of x (R, M, N / E, E, D)."""
    x[blocks // x.shape[2], head, blocks % x.shape[2]] = value.to(x.dtype)


def _add(x: Tensor, head: int, blocks: Tensor, value: Tensor) -> None:
    """Add value (G, n * E, D) to some blocks (G, n) of one head; a block may come several times."""
    value = value.view(-1, *x.shape[3:]).to(x.dtype)
    if len(x) == 1:
        x[0, head].index_add_(0, blocks.flatten(), value)
    else:
        flat = blocks.flatten()
        x.index_put_((flat // x.shape[2], torch.tensor(head), flat % x.shape[2]), value, accumulate=True)
