"""FlexAttention: PyTorch's own attention over blocks, compiled into one kernel where a compiler for it exists.

B batch, T queries, S keys; R rows of positions (B or 1).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..config.visible import Side
from .build import build
from .mask import Mask
from .plan import Term, touching

SIDE = 128
"""Tokens in a block of PyTorch's kernels."""


def flexed(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, softcap: float | None = None) -> Tensor:
    """q (B, H, T, D), k and v (B, K, S, D) -> (B, H, T, D); zero where a query may see nothing.

    On a GPU compiled, in time and memory by the blocks visited; elsewhere PyTorch's plain version, for comparison.
    """
    from torch.nn.attention import flex_attention as page

    plain: Any = page.flex_attention
    run = _compiled() if q.device.type == "cuda" else plain

    def cap(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert softcap is not None
        return softcap * torch.tanh(score / softcap)

    if mask.flexed is None:
        mask.flexed = _blocks(mask)
    z: Tensor = run(
        q,
        k,
        v,
        score_mod=None if softcap is None else cap,
        block_mask=mask.flexed,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return z


@functools.cache
def _compiled() -> Callable[..., Any]:
    from torch.nn.attention import flex_attention as page

    plain: Any = page.flex_attention
    compiled: Callable[..., Any] = torch.compile(plain, dynamic=False)
    return compiled


def _blocks(mask: Mask) -> Any:
    """The mask as PyTorch's BlockMask: which blocks, told from their least and greatest positions, and which pairs."""
    from torch.nn.attention.flex_attention import BlockMask

    rows = max(len(x) for side in mask.sides for x in side if x is not None)
    q, k = (side.map(lambda x: x.expand(rows, -1)) for side in mask.sides)
    rule = build(mask.rule, mask.causal)

    def may(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row = b if rows > 1 else 0
        return mask.may(q.map(lambda x: x[row, i]), k.map(lambda x: x[row, j]), rule)

    touch = touching(mask, Term(mask.rule), _cut(q), _cut(k))[:, None].int()  # (R, 1, Q, P)
    order = torch.sort(touch, dim=-1, descending=True, stable=True).indices.int()
    lengths = (q.pos.shape[1], k.pos.shape[1])
    return BlockMask.from_kv_blocks(touch.sum(-1).int(), order, BLOCK_SIZE=SIDE, mask_mod=may, seq_lengths=lengths)


def _cut(side: Side) -> Side:
    """What is known of the tokens, in blocks (R, N, SIDE), filled up with nothing."""
    whole = side.map(lambda x: F.pad(x, (0, -x.shape[1] % SIDE), value=0 if x.dtype == torch.bool else -1))
    return whole.map(lambda x: x.view(len(x), -1, SIDE))
