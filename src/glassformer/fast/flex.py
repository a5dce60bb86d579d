"""PyTorch's FlexAttention, compiled into one kernel for the blocks that a mask leaves.

B batch, T queries, S keys; R rows of positions (B or 1).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.config.mask_arrays import TokenInfo, allowed
from ..core.nn.build import build
from ..core.nn.engines import AttentionInputs
from ..core.nn.mask import Mask
from .block_mask import SubRule, visible_blocks

BLOCK = 128
"""Tokens in a block of PyTorch's kernels."""


def flex_attention(inputs: AttentionInputs) -> Tensor:
    """Attention -> (B, H, T, D), zero where a query may attend to nothing; no bias, no dropout.

    On a GPU compiled, in time and memory by the blocks; elsewhere PyTorch's plain version, forward
    only.
    """
    from torch.nn.attention.flex_attention import flex_attention as plain

    q, k, v, mask, _, scale, softcap, *_ = inputs

    def cap(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        assert softcap is not None
        return softcap * torch.tanh(score / softcap)

    if mask.flex_mask is None:
        mask.flex_mask = flex_mask(mask)
    run: Any = compiled() if q.device.type == "cuda" else plain
    options = {
        "score_mod": None if softcap is None else cap,
        "block_mask": mask.flex_mask,
        "scale": scale,
    }
    return run(q, k, v, enable_gqa=inputs.group_size > 1, **options)  # type: ignore[no-any-return]


@functools.cache
def compiled() -> Any:
    """PyTorch's function, compiled for each set of shapes."""
    from torch.nn.attention.flex_attention import flex_attention as plain

    return torch.compile(plain, dynamic=False)


def flex_mask(mask: Mask) -> Any:
    """The mask as PyTorch's BlockMask: which blocks, told from their least and greatest positions,
    and which pairs."""
    from torch.nn.attention.flex_attention import BlockMask

    q, k = mask.token_info(expand=True)
    rule, several = build(mask.rule, mask.causal), len(q.pos) > 1
    # not the mask, which holds what is made here
    causal, prefix_length = mask.causal, mask.prefix_length

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Any:
        row = b if several else 0
        q_info, k_info = q.map(lambda x: x[row, i]), k.map(lambda x: x[row, j])
        return allowed(q_info, k_info, causal, prefix_length, rule)

    # (R, 1, Q, P)
    blocks = visible_blocks(mask, SubRule(mask.rule), _in_blocks(q), _in_blocks(k))[:, None].int()
    order = torch.sort(blocks, dim=-1, descending=True, stable=True).indices.int()
    lengths = (q.pos.shape[1], k.pos.shape[1])
    return BlockMask.from_kv_blocks(
        blocks.sum(-1).int(), order, BLOCK_SIZE=BLOCK, mask_mod=mask_mod, seq_lengths=lengths
    )


def _in_blocks(info: TokenInfo) -> TokenInfo:
    """Token info in blocks (R, N / BLOCK, BLOCK), the last block filled up with padding."""
    padded = info.map(
        lambda x: F.pad(x, (0, -x.shape[1] % BLOCK), value=0 if x.dtype == torch.bool else -1)
    )
    return padded.map(lambda x: x.view(len(x), -1, BLOCK))
