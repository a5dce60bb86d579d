"""PyTorch's fused kernels; a dense mask is passed only where neither ``is_causal`` nor no mask is
right."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .inputs import AttentionInputs, fold_groups

FOLD_UP_TO = 8
"""Queries a head up to which a dense mask is repeated for each head of a group: beyond, that costs
more than folding saves."""


def sdpa_attention(inputs: AttentionInputs) -> Tensor:
    """``F.scaled_dot_product_attention`` -> (B, H, T, D); it cannot cap scores."""
    q, k, v, mask, bias, scale, _, dropout, *_ = inputs
    group, queries = inputs.group_size, q.shape[2]
    fast = mask.fast_path if bias is None else None
    dense = None
    if fast is None:
        dense = (
            mask.dense()
            if bias is None
            else bias.to(q.dtype).masked_fill(~mask.dense(), float("-inf"))
        )
    if inputs.heads is not None and dropout > 0:
        return _with_sharded_dropout(inputs, dense)
    if group > 1 and (fast == "full" or (fast is None and queries <= FOLD_UP_TO)):
        # (B, H, T, D) -> (B, K, H / K * T, D): the queries of a group of heads become queries of
        # its one key-value head
        if dense is not None:
            # where all heads have one mask: one for each of a group
            heads = max(group, dense.shape[1])
            dense = fold_groups(dense.expand(-1, heads, -1, -1), heads // group)
        options: dict[str, Any] = {"attn_mask": dense, "dropout_p": dropout, "scale": scale}
        return F.scaled_dot_product_attention(fold_groups(q, k.shape[1]), k, v, **options).reshape(
            *q.shape[:3], -1
        )
    if (
        fast == "full"
        and queries == 1
        and dropout == 0
        and q.dtype == torch.bfloat16
        and q.device.type == "cpu"
    ):
        # a second row takes the kernel from its slow products of one row: half the time
        twice = q.expand(-1, -1, 2, -1)
        return F.scaled_dot_product_attention(twice, k, v, scale=scale)[:, :, :1]
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=dense,
        dropout_p=dropout,
        is_causal=fast == "causal",
        scale=scale,
        enable_gqa=group > 1,
    )


def _with_sharded_dropout(inputs: AttentionInputs, dense: Tensor | None) -> Tensor:
    """PyTorch's attention with dropout on a CPU, written out: its kernel cannot take a shard of the
    random numbers."""
    assert inputs.heads is not None
    k, v = (x.repeat_interleave(inputs.group_size, 1) for x in (inputs.k, inputs.v))
    scores = inputs.q @ k.mT * inputs.scale
    if dense is None and inputs.mask.fast_path == "causal":
        dense = inputs.mask.dense()
    if dense is not None:
        scores = (
            scores.masked_fill(~dense, float("-inf"))
            if dense.dtype == torch.bool
            else scores + dense
        )
    keep = inputs.heads.draw_shard(
        scores, lambda full: torch.empty_like(full).bernoulli_(1 - inputs.dropout)
    )
    return (scores.softmax(-1) * keep / (1 - inputs.dropout)) @ v
