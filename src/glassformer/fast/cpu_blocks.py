"""Batched matrix products over blocks of queries, each with the keys it may attend to: where
PyTorch's kernels are slow on a CPU. For training, which keeps the pattern for the gradient, and for
prompts in bf16.

B batch, T queries, S keys, H heads, K key-value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..core.nn.attention import AttentionInputs
from ..core.nn.dropout import keep_mask

BLOCK = 128
"""Queries in a block: enough for the matrix kernels, few enough that little is computed in vain."""
SCORES = 1 << 22
"""Scores of a prompt in memory at once, in fp32. More leave the caches, and the system
takes and gives their pages anew for each block."""


def blocks_attention(inputs: AttentionInputs) -> Tensor:
    """Attention for training, its gradient written out -> (B, H, T, D); no bias, no softcap."""
    mask, group = inputs.mask, inputs.group_size
    k, v = (x.repeat_interleave(group, dim=1) for x in (inputs.k, inputs.v))
    masked = None if mask.fast_path else ~mask.dense()
    out: Tensor = _Blocks.apply(  # type: ignore[no-untyped-call]
        inputs.q,
        k,
        v,
        masked,
        mask.fast_path == "causal",
        inputs.scale,
        inputs.dropout,
        inputs.heads,
    )
    return out


def prefill_attention(inputs: AttentionInputs) -> Tensor:
    """Causal attention of a bf16 prompt, without gradient -> (B, H, T, D): scores and softmax in
    fp32, as fused kernels have them; a group's queries side by side."""
    q, k, v, group = inputs.q, inputs.k, inputs.v, inputs.group_size
    heads = k.shape[0] * k.shape[1]
    keys = k.shape[2]
    q = q.reshape(heads, group, *q.shape[2:]).float()  # (B * K, H / K, T, D)
    # the pattern meets v in bf16
    k = k.reshape(heads, keys, -1).float()
    v = v.reshape(heads, keys, -1)
    out = torch.empty(q.shape, dtype=v.dtype)
    heads_at_once = max(1, SCORES // (group * BLOCK // 2 * keys))
    head_groups = [slice(i, i + heads_at_once) for i in range(0, heads, heads_at_once)]
    for start, end, seen in _query_blocks(q.shape[2], keys, True, BLOCK // 2):
        # oneDNN keeps what it makes for each size it meets, so there are eight sizes an octave
        size = max(BLOCK // 2, 1 << (seen.bit_length() - 4))
        visible = min(keys, -(-seen // size) * size)
        causal_bias = (
            torch.full((end - start, visible), float("-inf")).triu_(1 + start).repeat(group, 1)
        )
        for head_group in head_groups:
            queries = q[head_group, :, start:end].flatten(1, 2)
            seen_keys = k[head_group, :visible].mT
            scores = torch.baddbmm(causal_bias, queries, seen_keys, alpha=inputs.scale)
            output = torch.bmm(scores.softmax(-1).to(v.dtype), v[head_group, :visible])
            out[head_group, :, start:end] = output.view(-1, group, end - start, output.shape[-1])
    return out.view(inputs.q.shape)


class _Blocks(torch.autograd.Function):
    """q, k and v (B, H, T or S, D); ``masked`` (B or 1, 1, T, S) is true for pairs that are not
    computed."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        masked: Tensor | None,
        causal: bool,
        scale: float,
        dropout: float,
        heads: Any,
    ) -> Tensor:
        shape, kv_shape = q.shape, k.shape
        q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))  # (B * H, T or S, D)
        out, patterns, keep = torch.empty_like(q), [], []
        rescale = 1 / (1 - dropout)
        blocks = list(_query_blocks(q.shape[1], k.shape[1], causal, BLOCK))
        for start, end, visible in blocks:
            if causal:  # the diagonal's mask and the scale go into the product itself
                corner = torch.full(
                    (end - start, visible), float("-inf"), dtype=q.dtype, device=q.device
                )
                scores = torch.baddbmm(
                    corner.triu_(1 + start), q[:, start:end], k[:, :visible].mT, alpha=scale
                )
            else:
                scores = torch.bmm(q[:, start:end], k.mT).mul_(scale)
            if masked is not None:
                scores.view(*shape[:2], end - start, visible).masked_fill_(
                    masked[:, :, start:end], float("-inf")
                )
            pattern = scores.softmax(dim=-1)  # adds up in fp32 inside
            patterns.append(pattern)
            if dropout:
                by_head = pattern.view(*shape[:2], *pattern.shape[1:])
                keep.append(keep_mask(by_head, dropout, heads).reshape(pattern.shape))
                pattern = (pattern * keep[-1]).mul_(rescale)
            out[:, start:end] = torch.bmm(pattern, v[:, :visible])
        ctx.save_for_backward(q, k, v, *patterns, *keep)
        ctx.shape, ctx.kv_shape, ctx.blocks, ctx.scale, ctx.rescale = (
            shape,
            kv_shape,
            blocks,
            scale,
            rescale,
        )
        return out.view(shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (q, k, v, *saved), blocks = ctx.saved_tensors, ctx.blocks
        patterns = saved[: len(blocks)]
        keep = saved[len(blocks) :]
        grad = grad.reshape(q.shape)
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for number, (start, end, visible) in enumerate(blocks):
            dout = grad[:, start:end]
            pattern = patterns[number]
            dpattern = torch.bmm(dout, v[:, :visible].mT)
            dropped_pattern = pattern
            if keep:
                dropped_pattern = (pattern * keep[number]).mul_(ctx.rescale)
                dpattern.mul_(keep[number]).mul_(ctx.rescale)
            dv[:, :visible] += torch.bmm(dropped_pattern.mT, dout)
            dscores = torch._softmax_backward_data(dpattern, pattern, -1, pattern.dtype)
            dq[:, start:end] = torch.bmm(dscores, k[:, :visible])
            dk[:, :visible] += torch.bmm(dscores.mT, q[:, start:end])
        dq, dk = dq.mul_(ctx.scale), dk.mul_(ctx.scale)
        return (
            dq.view(ctx.shape),
            dk.view(ctx.kv_shape),
            dv.view(ctx.kv_shape),
            None,
            None,
            None,
            None,
            None,
        )


def _query_blocks(
    queries: int, keys: int, causal: bool, size: int
) -> Iterator[tuple[int, int, int]]:
    """The first query of each block, the one after its last, and how many keys it attends to."""
    for start in range(0, queries, size):
        end = min(queries, start + size)
        yield start, end, end if causal else keys
