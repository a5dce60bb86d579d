"""Attention of packed documents by their borders: no mask is made, and time goes with each
document's own pairs.

B batch, T queries, S keys, H heads, K key-value heads, D head dim; N documents and stretches of
padding of all rows.
"""

from __future__ import annotations

import functools
import inspect
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core import config
from ..core.nn.engines import AttentionInputs
from ..core.nn.mask import Mask

Span: TypeAlias = tuple[int, int]
"""How far before and after its own place a query looks; -1: to the end (PyTorch's ``window_size``).
The last query of a document stands at the place of its last key."""


def varlen_attention(inputs: AttentionInputs) -> Tensor:
    """PyTorch's ``varlen_attn`` (FlashAttention) over documents -> (B, H, T, D); on a CPU one after
    another, to the same result. No bias, softcap or dropout."""
    q, k, v, mask = inputs[:4]
    span, borders = span_of(mask), mask.borders
    assert span is not None and borders is not None
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B * T or S, H or K, D)
    if q.is_cpu:
        out = _attend_documents(q, k, v, *borders, span, inputs.scale)
    else:
        attention, grouped = kernel()
        if not grouped:
            k, v = (x.repeat_interleave(inputs.group_size, 1) for x in (k, v))
        more = {"enable_gqa": inputs.group_size > 1} if grouped else {}
        longest = inputs.q.shape[2], inputs.k.shape[2]
        out = attention(q, k, v, *borders, *longest, scale=inputs.scale, window_size=span, **more)
    return out.view(-1, inputs.q.shape[2], *out.shape[1:]).transpose(1, 2)


@functools.cache
def kernel() -> tuple[Any, bool]:
    """PyTorch's function, and whether it takes fewer heads of keys than of queries (torch 2.11's
    does not say so)."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn, "enable_gqa" in inspect.signature(varlen_attn).parameters


def supports_varlen(inputs: AttentionInputs) -> bool:
    """True where document borders are known and equal the mask with a span; on a GPU the kernel
    must also support the call."""
    q, mask = inputs.q, inputs.mask
    if (
        mask.borders is None
        or inputs.bias is not None
        or inputs.softcap is not None
        or inputs.dropout > 0
    ):
        return False
    fits = q.dtype in (torch.bfloat16, torch.float16) and q.shape[3] % 8 == 0 and q.shape[3] <= 256
    return (q.device.type == "cpu" or fits) and span_of(mask) is not None


def span_of(mask: Mask) -> Span | None:
    """The span that says the same as direction and rule within a document; None where none does."""
    if mask.prefix is not None or mask.prefix_length:
        return None
    match mask.rule:
        case config.Full():
            return (-1, 0) if mask.causal else (-1, -1)
        case config.Causal():
            return -1, 0
        case config.Window(size):
            return size - 1, 0 if mask.causal else size - 1
    return None


def _attend_documents(
    q: Tensor, k: Tensor, v: Tensor, q_borders: Tensor, k_borders: Tensor, span: Span, scale: float
) -> Tensor:
    """The same in a loop: q (B * T, H, D), k and v (B * S, K, D)."""
    outputs = []
    for q_span, k_span in zip(
        pairwise(q_borders.tolist()), pairwise(k_borders.tolist()), strict=True
    ):
        queries, keys, values = q[slice(*q_span)], k[slice(*k_span)], v[slice(*k_span)]
        if not len(queries) or not len(keys):  # padding beside which there is none
            outputs.append(torch.zeros_like(queries))
            continue
        # both end together
        away = torch.arange(len(keys) - len(queries), len(keys))[:, None] - torch.arange(len(keys))
        before, after = (len(queries) + len(keys) if side < 0 else side for side in span)
        visible = (away <= before) & (-away <= after)
        queries, keys, values = (x.transpose(0, 1)[None] for x in (queries, keys, values))
        grouped = q.shape[1] > k.shape[1]
        out = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=visible, scale=scale, enable_gqa=grouped
        )
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)
