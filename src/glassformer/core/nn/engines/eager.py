"""Attention written out: the definition that every other engine must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from ..dropout import dropout as drop
from .inputs import AttentionInputs, fold_groups


def eager_attention(inputs: AttentionInputs) -> Tensor:
    """Attention as the paper writes it (Vaswani et al. 2017, section 3.2.1) -> (B, H, T, D)."""
    q, k, v, mask, bias, scale, softcap, dropout, look, _, heads = inputs
    kv_heads = k.shape[1]
    # (B, H, T, S)
    scores = (fold_groups(q, kv_heads) @ k.transpose(-1, -2)).view(*q.shape[:3], -1) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    scores = look("scores", scores.masked_fill(~mask.dense(), float("-inf")))
    pattern = look(
        "pattern", scores.softmax(-1, torch.promote_types(scores.dtype, torch.float32)).to(v.dtype)
    )
    dropped = drop(pattern, dropout, heads) if dropout > 0 else pattern
    return (fold_groups(dropped, kv_heads) @ v).view(*q.shape[:3], -1)
