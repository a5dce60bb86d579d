"""Attention engines beside sdpa and eager, each with the calls it can compute and those where it
was measured to be the fastest.

block_sparse  FlashAttention's algorithm over the blocks that block_mask names
cpu_blocks    training on a CPU; and ``prefill``: prompts in bf16 there
"""

from __future__ import annotations

import torch

from ..core.nn.attention import AttentionEngine, AttentionInputs
from . import cpu_blocks
from .block_mask import density
from .block_sparse import block_sparse_attention
from .cpu_blocks import blocks_attention, prefill_attention


def _few_blocks(inputs: AttentionInputs) -> bool:
    """Long rows on a CPU whose blocks of pairs are few; fewer beside ``cpu_blocks``, which is fast
    as well."""
    if inputs.bias is not None or inputs.mask.fast_path is not None or not inputs.on_cpu:
        return False
    return density(inputs.mask) <= (
        0.15 if _supports_blocks(inputs) and inputs.slow_gradients and _few_keys(inputs) else 0.3
    )


def _few_keys(inputs: AttentionInputs) -> bool:
    return inputs.on_cpu and inputs.k.shape[2] <= 1024 and inputs.q.dtype == inputs.k.dtype


def _supports_blocks(inputs: AttentionInputs) -> bool:
    return inputs.bias is None and inputs.softcap is None


def _bf16_prompt(inputs: AttentionInputs) -> bool:
    """A causal prompt in bf16 on a CPU; no gradient."""
    fits = (
        inputs.bias is None
        and inputs.softcap is None
        and inputs.dropout == 0
        and not inputs.needs_grad
    )
    return (
        fits
        and inputs.on_cpu
        and inputs.q.dtype == torch.bfloat16
        and inputs.mask.fast_path == "causal"
    )


ENGINES = (
    # window(256) of 8,192 tokens, forward and backward: 10 times as fast as sdpa
    # (docs/masks.md)
    AttentionEngine(
        "block_sparse",
        block_sparse_attention,
        lambda inputs: inputs.bias is None,
        _few_blocks,
        min_queries=512,
    ),
    # PyTorch's bf16 backward takes 2 to 3 times as long on a CPU; with dropout it has no fused
    # kernel
    AttentionEngine(
        "cpu_blocks", blocks_attention, _supports_blocks, _few_keys, for_slow_gradients=True
    ),
    # PyTorch's fused kernel takes 1.2 to 1.8 times as long (benchmarks/limits.py), until the scores
    # of a block of queries leave the caches, which its own never do
    AttentionEngine(
        "prefill",
        prefill_attention,
        _bf16_prompt,
        lambda inputs: inputs.k.shape[2] <= 8192,
        min_queries=cpu_blocks.BLOCK // 2,
    ),
)
