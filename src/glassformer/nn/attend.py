"""softmax(q k^T) v by several engines under one signature. ``eager`` is written out and is the law.

B batch, T queries, S keys, H heads, K key-value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from .mask import Mask

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
    group = q.shape[1] // k.shape[1]  # queries of one group share a key-value head
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = (q @ k.transpose(-1, -2)) * scale  # (B, H, T, S)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    scores = look("scores", scores.masked_fill(~mask.dense(), float("-inf")))
    pattern = look("pattern", scores.softmax(dim=-1, dtype=torch.float32).to(v.dtype))
    return F.dropout(pattern, dropout, training=dropout > 0) @ v


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
    """PyTorch's fused kernels; no mask is built where the kernel knows its shape by name."""
    if softcap is not None:
        return eager(q, k, v, mask, bias, scale, softcap, dropout)  # no fused kernel caps scores
    fast = mask.fast if bias is None else None
    if fast == "none" and q.shape[1] != k.shape[1] and dropout == 0:
        folded = q.reshape(q.shape[0], k.shape[1], -1, q.shape[-1])  # a group's queries side by side: (B, K, H/K*T, D)
        return F.scaled_dot_product_attention(folded, k, v, scale=scale).reshape(q.shape)
    allowed = None
    if fast is None:
        allowed = mask.dense()
        if bias is not None:
            allowed = bias.to(q.dtype).masked_fill(~allowed, float("-inf"))
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=allowed,
        dropout_p=dropout,
        is_causal=fast == "causal",
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


ENGINES: dict[str, Engine] = {"eager": eager, "sdpa": sdpa}
