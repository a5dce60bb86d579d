"""softmax(q k^T) v by several engines under one signature. ``eager`` is written out and is the law.

B batch, T queries, S keys, H heads, K key-value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from .dropout import dropout as drop
from .dropout import keep_mask
from .flex import flexed
from .mask import Mask
from .plan import share
from .sparse import visit

Look = Callable[[str, Tensor], Tensor]


def unwatched(name: str, x: Tensor) -> Tensor:
    """Nobody looks."""
    return x


class Engine(Protocol):
    """q (B, H, T, D), k and v (B, K, S, D) -> (B, H, T, D); ``bias`` (B or 1, H, T, S) is added to the scores."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        bias: Tensor | None,
        scale: float,
        softcap: float | None = None,
        dropout: float = 0.0,
        look: Look = unwatched,
    ) -> Tensor: ...


def eager(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: Tensor | None,
    scale: float,
    softcap: float | None = None,
    dropout: float = 0.0,
    look: Look = unwatched,
) -> Tensor:
    """Attention as the paper writes it (Vaswani et al. 2017, section 3.2.1), every step in the open."""
    heads = k.shape[1]  # the queries of one group share a key-value head
    scores = (folded(q, heads) @ k.transpose(-1, -2)).view(*q.shape[:3], -1) * scale  # (B, H, T, S)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    scores = look("scores", scores.masked_fill(~mask.dense(), float("-inf")))
    pattern = look("pattern", scores.softmax(-1, torch.promote_types(scores.dtype, torch.float32)).to(v.dtype))
    used = drop(pattern, dropout) if dropout > 0 else pattern
    return (folded(used, heads) @ v).view(*q.shape[:3], -1)


def folded(x: Tensor, heads: int) -> Tensor:
    """(B, H, T, ..) -> (B, K, H / K * T, ..): the queries of a group side by side, as if they were one head's."""
    return x.reshape(x.shape[0], heads, x.shape[1] * x.shape[2] // heads, x.shape[3])


FEW = 8
"""Queries a head up to which a mask is spelt out for each of a group: beyond, that costs more than folding saves."""


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: Tensor | None,
    scale: float,
    softcap: float | None = None,
    dropout: float = 0.0,
    look: Look = unwatched,
) -> Tensor:
    """PyTorch's fused kernels, or ``sparse`` or ``blocks`` where they pay; no mask where a kernel knows its shape."""
    training = bias is None and softcap is None and _blocks_pay(q, k, dropout)
    if bias is None and _sparse_pays(q, mask, 0.15 if training else 0.3):
        return visit(q, k, v, mask, scale, softcap, dropout)
    if softcap is not None:
        return eager(q, k, v, mask, bias, scale, softcap, dropout)  # no fused kernel caps scores
    if training:
        return blocks(q, k, v, mask, bias, scale, None, dropout)
    if bias is None and _wide_pays(q, k, mask, dropout):
        return wide(q, k, v, scale)
    fast, allowed, group = mask.fast if bias is None else None, None, q.shape[1] // k.shape[1]
    if fast is None:
        allowed = mask.dense()
        if bias is not None:
            allowed = bias.to(q.dtype).masked_fill(~allowed, float("-inf"))
    if group > 1 and (fast == "none" or (fast is None and q.shape[2] <= FEW)):
        if allowed is not None:
            heads = max(group, allowed.shape[1])  # where all heads have one mask: one for each of a group
            allowed = folded(allowed.expand(-1, heads, -1, -1), heads // group)
        how: dict[str, Any] = {"attn_mask": allowed, "dropout_p": dropout, "scale": scale}
        return F.scaled_dot_product_attention(folded(q, k.shape[1]), k, v, **how).reshape(*q.shape[:3], -1)
    if fast == "none" and q.shape[2] == 1 and dropout == 0 and q.dtype == torch.bfloat16 and q.device.type == "cpu":
        # a second row takes the kernel from its slow products of one row: half the time
        twice = q.expand(-1, -1, 2, -1)
        return F.scaled_dot_product_attention(twice, k, v, scale=scale)[:, :, :1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=allowed, dropout_p=dropout, is_causal=fast == "causal", scale=scale, enable_gqa=group > 1
    )


def blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: Tensor | None,
    scale: float,
    softcap: float | None = None,
    dropout: float = 0.0,
    look: Look = unwatched,
) -> Tensor:
    """Batched matrix products on blocks of queries, each over the keys it may see; the gradient by hand."""
    if bias is not None or softcap is not None:
        return eager(q, k, v, mask, bias, scale, softcap, dropout)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    forbidden = None if mask.fast else ~mask.dense()
    z: Tensor = _Blocks.apply(q, k, v, forbidden, mask.fast == "causal", scale, dropout)  # type: ignore[no-untyped-call]
    return z


def wide(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention of a bf16 prompt by batched products, no gradient: scores and softmax in fp32, as fused kernels
    have them; a group's queries side by side."""
    shape, heads, keys = q.shape, k.shape[0] * k.shape[1], k.shape[2]
    group = shape[1] // k.shape[1]
    q = q.reshape(heads, group, *shape[2:]).float()  # (B * K, H / K, T, D)
    k, v = k.reshape(heads, keys, -1).float(), v.reshape(heads, keys, -1)  # the pattern meets v in bf16
    z = torch.empty(q.shape, dtype=v.dtype)
    for start, end, seen in _borders(shape[2], keys, True, SIDE // 2):
        later = torch.full((end - start, seen), float("-inf")).triu_(1 + start).repeat(group, 1)
        scores = torch.baddbmm(later, q[:, :, start:end].flatten(1, 2), k[:, :seen].mT, alpha=scale)
        part = torch.bmm(scores.softmax(-1).to(v.dtype), v[:, :seen])
        z[:, :, start:end] = part.view(heads, group, end - start, -1)
    return z.view(shape)


def sparse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: Tensor | None,
    scale: float,
    softcap: float | None = None,
    dropout: float = 0.0,
    look: Look = unwatched,
) -> Tensor:
    """Time and memory by the pairs that are visited (``sparse.py``); with a bias (of all pairs), ``eager``."""
    if bias is not None:
        return eager(q, k, v, mask, bias, scale, softcap, dropout)
    return visit(q, k, v, mask, scale, softcap, dropout)


def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: Tensor | None,
    scale: float,
    softcap: float | None = None,
    dropout: float = 0.0,
    look: Look = unwatched,
) -> Tensor:
    """PyTorch's FlexAttention where it runs: on a GPU, and forward on a CPU; else ``sparse``, with a bias ``eager``."""
    training = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if bias is not None or dropout > 0 or (training and q.device.type == "cpu"):
        return sparse(q, k, v, mask, bias, scale, softcap, dropout)
    return flexed(q, k, v, mask, scale, softcap)


def _sparse_pays(q: Tensor, mask: Mask, most: float) -> bool:
    """Long rows on a CPU of which the blocks to be visited hold at most that share."""
    if q.shape[2] < 512 or q.device.type != "cpu" or torch.compiler.is_compiling() or mask.fast is not None:
        return False
    return share(mask) <= most


SIDE = 128
"""Queries in a block: enough for the matrix kernels, few enough that little is computed in vain."""


def _blocks_pay(q: Tensor, k: Tensor, dropout: float = 0.0) -> bool:
    """Training in bf16 on a CPU: there PyTorch's fused backward takes two to three times as long up to 1,024 keys.

    With dropout there is no fused kernel on a CPU at all.
    """
    training = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)
    kind = q.dtype == k.dtype == torch.bfloat16 or (dropout > 0 and q.dtype == k.dtype)
    here = q.device.type == "cpu" and kind and k.shape[2] <= 1024
    return training and here and not torch.compiler.is_compiling()


def _wide_pays(q: Tensor, k: Tensor, mask: Mask, dropout: float) -> bool:
    """Prompts in bf16 on a CPU: PyTorch's fused kernel takes 1.2 to 1.8 times as long there."""
    if q.device.type != "cpu" or q.dtype != torch.bfloat16 or dropout > 0 or torch.compiler.is_compiling():
        return False
    reading = not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad))
    return reading and q.shape[2] >= SIDE // 2 and mask.fast == "causal"


class _Blocks(torch.autograd.Function):
    """Attention whose pattern is kept for the gradient, block by block of queries."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, forbidden: Tensor | None, causal: bool, scale: float, dropout: float
    ) -> Tensor:
        shape, keys = q.shape, k.shape[2]  # (B, H, T, D)
        q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))  # (B * H, T or S, D)
        z, patterns, alive = torch.empty_like(q), [], []
        survive = 1 / (1 - dropout)
        for start, end, seen in _borders(shape[2], keys, causal):
            if causal:  # the diagonal's mask and the scale go into the product itself
                corner = torch.full((end - start, seen), float("-inf"), dtype=q.dtype, device=q.device)
                scores = torch.baddbmm(corner.triu_(1 + start), q[:, start:end], k[:, :seen].mT, alpha=scale)
            else:
                scores = torch.bmm(q[:, start:end], k.mT).mul_(scale)
            if forbidden is not None:
                scores.view(*shape[:2], end - start, seen).masked_fill_(forbidden[:, :, start:end], float("-inf"))
            pattern = scores.softmax(dim=-1)  # adds up in fp32 inside
            patterns.append(pattern)
            if dropout:
                alive.append(keep_mask(pattern, dropout))
                pattern = (pattern * alive[-1]).mul_(survive)
            z[:, start:end] = torch.bmm(pattern, v[:, :seen])
        ctx.save_for_backward(q, k, v, *patterns, *alive)
        ctx.shape, ctx.causal, ctx.scale, ctx.survive = shape, causal, scale, survive
        return z.view(shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, *saved = ctx.saved_tensors
        borders = list(_borders(q.shape[1], k.shape[1], ctx.causal))
        patterns, alive = saved[: len(borders)], saved[len(borders) :]
        grad = grad.reshape(q.shape)
        to_q, to_k, to_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for number, (start, end, seen) in enumerate(borders):
            part, pattern = grad[:, start:end], patterns[number]
            to_pattern = torch.bmm(part, v[:, :seen].mT)
            used = pattern
            if alive:
                used = (pattern * alive[number]).mul_(ctx.survive)
                to_pattern.mul_(alive[number]).mul_(ctx.survive)
            to_v[:, :seen] += torch.bmm(used.mT, part)
            to_scores = torch._softmax_backward_data(to_pattern, pattern, -1, pattern.dtype)
            to_q[:, start:end] = torch.bmm(to_scores, k[:, :seen])
            to_k[:, :seen] += torch.bmm(to_scores.mT, q[:, start:end])
        inner = (*ctx.shape[:2], *k.shape[1:])
        return (
            to_q.mul_(ctx.scale).view(ctx.shape),
            to_k.mul_(ctx.scale).view(inner),
            to_v.view(inner),
            None,
            None,
            None,
            None,
        )


def _borders(queries: int, keys: int, causal: bool, side: int = SIDE) -> Iterator[tuple[int, int, int]]:
    """The first query of each block, the one after its last, and how many keys it sees."""
    for start in range(0, queries, side):
        end = min(queries, start + side)
        yield start, end, end if causal else keys


ENGINES: dict[str, Engine] = {"eager": eager, "sdpa": sdpa, "blocks": blocks, "sparse": sparse, "flex": flex}
