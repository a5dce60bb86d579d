"""softmax(q k^T) v by several engines, one of which is chosen for each call. ``eager`` is the
definition.

inputs        what an engine is given: AttentionInputs
eager         written out; what a tape watches
sdpa          PyTorch's fused kernels
cpu_blocks    training on a CPU; and ``prefill``: prompts in bf16 there
block_sparse  FlashAttention's algorithm over the blocks that block_mask names
varlen        packed documents by their borders, for GPUs
flex          PyTorch's FlexAttention, for GPUs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ....fast import cpu_blocks
from ....fast.block_mask import density
from ....fast.block_sparse import block_sparse_attention
from ....fast.cpu_blocks import blocks_attention, prefill_attention
from ....fast.flex import flex_attention
from ....fast.varlen import supports_varlen, varlen_attention
from ...errors import UserError
from .eager import eager_attention
from .inputs import AttentionInputs
from .sdpa import sdpa_attention


class Engine(NamedTuple):
    """One way to compute ``AttentionInputs`` -> (B, H, T, D)."""

    name: str
    run: Callable[[AttentionInputs], Tensor]
    supports: Callable[[AttentionInputs], bool]  # whether it can compute them
    # whether it was measured to be the fastest of those that can
    preferred: Callable[[AttentionInputs], bool]


def _few_blocks(inputs: AttentionInputs) -> bool:
    """Long rows on a CPU whose blocks of pairs are few; fewer beside ``cpu_blocks``, which is fast
    as well."""
    if (
        inputs.q.shape[2] < 512
        or inputs.bias is not None
        or inputs.mask.fast_path is not None
        or not inputs.on_cpu
    ):
        return False
    return density(inputs.mask) <= (
        0.15 if _supports_blocks(inputs) and _slow_training(inputs) else 0.3
    )


def _slow_training(inputs: AttentionInputs) -> bool:
    """Training on a CPU in bf16 or with dropout, up to 1,024 keys."""
    if (
        not (inputs.needs_grad and inputs.on_cpu)
        or inputs.k.shape[2] > 1024
        or inputs.q.dtype != inputs.k.dtype
    ):
        return False
    return inputs.q.dtype == torch.bfloat16 or inputs.dropout > 0


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


def _supports_flex(inputs: AttentionInputs) -> bool:
    """No bias, no dropout; on a CPU PyTorch refuses its gradient."""
    untrained = not (inputs.needs_grad and inputs.q.device.type == "cpu")
    return inputs.bias is None and inputs.dropout == 0 and untrained


ENGINES = {
    engine.name: engine
    for engine in (
        # window(256) of 8,192 tokens, forward and backward: 10 times as fast as sdpa
        # (docs/masks.md)
        Engine(
            "block_sparse", block_sparse_attention, lambda inputs: inputs.bias is None, _few_blocks
        ),
        # PyTorch's bf16 backward takes 2 to 3 times as long on a CPU; with dropout it has no fused
        # kernel
        Engine("cpu_blocks", blocks_attention, _supports_blocks, _slow_training),
        # PyTorch's fused kernel takes 1.2 to 1.8 times as long (benchmarks/limits.py)
        Engine(
            "prefill",
            prefill_attention,
            _bf16_prompt,
            lambda inputs: inputs.q.shape[2] >= cpu_blocks.BLOCK // 2,
        ),
        # packed documents: PyTorch's fused kernels take a mask of T x T a row there, and none
        # beside grouped heads. Not measured on a GPU yet; on a CPU, one document after another,
        # only by name
        Engine(
            "varlen",
            varlen_attention,
            supports_varlen,
            lambda inputs: inputs.q.device.type != "cpu",
        ),
        # not measured on a GPU yet: only by name
        Engine("flex", flex_attention, _supports_flex, lambda inputs: False),
        # the fastest wherever no row above says otherwise
        Engine("sdpa", sdpa_attention, lambda inputs: inputs.softcap is None, lambda inputs: True),
        # scores that are capped: no fused kernel does that
        Engine("eager", eager_attention, lambda inputs: True, lambda inputs: True),
    )
}
"""The table that chooses, each row with what was measured: the first engine that is preferred and
supports a call."""


def engine_name(name: str | Engine) -> str | Engine:
    """Which engine a name means today: of ENGINES, or "auto", or an Engine itself; UserError where
    it means none."""
    if isinstance(name, Engine):
        return name
    if name != "auto" and name not in ENGINES:
        raise UserError(
            f'There is no engine of attention "{name}"; give auto, {", ".join(ENGINES)}.'
        )
    return name


def choose(inputs: AttentionInputs, name: str | Engine = "auto") -> Engine:
    """The engine of that name where it supports the call; otherwise, and for "auto", the table's
    first.

    An Engine from outside (``scale/ring.py``) is always taken.
    """
    if isinstance(name, Engine):
        return name
    if name != "auto" and ENGINES[name].supports(inputs):
        return ENGINES[name]
    for engine in ENGINES.values():
        # preferred first: it is false more often
        if engine.preferred(inputs) and engine.supports(inputs):
            return engine
    raise AssertionError("eager supports every call")


def attend(inputs: AttentionInputs, engine: str | Engine = "auto") -> Tensor:
    """Attention (B, H, T, D) by the engine that ``choose`` gives."""
    return choose(inputs, engine).run(inputs)
