"""Rotary frequencies changed so that a model reads more tokens than it was trained on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core import config
from ..core.nn.build import builds
from ..core.nn.position import RopeScaling


@builds(config.LinearScaling)
def linear_scaling(cfg: config.LinearScaling) -> RopeScaling:
    """Every frequency divided by the factor (Chen et al. 2023)."""
    return lambda frequencies, theta: (frequencies / cfg.factor, 1.0)


@builds(config.Llama3Scaling)
def llama3_scaling(cfg: config.Llama3Scaling) -> RopeScaling:
    """Wavelengths above length/low stretched by the factor, those below length/high unchanged."""

    def scaling(frequencies: Tensor, theta: float) -> tuple[Tensor, float]:
        # full turns within the original length
        turns = cfg.original_context * frequencies / (2 * math.pi)
        keep = ((turns - cfg.low_freq_factor) / (cfg.high_freq_factor - cfg.low_freq_factor)).clamp(
            0, 1
        )
        return keep * frequencies + (1 - keep) * frequencies / cfg.factor, 1.0

    return scaling


@builds(config.YarnScaling)
def yarn_scaling(cfg: config.YarnScaling) -> RopeScaling:
    """Frequencies above ``fast`` turns in the original length unchanged, below ``slow`` divided.

    As published code has it, the blend is linear in the frequency's index, and its two ends are
    integers where ``truncate`` says so.
    """

    def scaling(frequencies: Tensor, theta: float) -> tuple[Tensor, float]:
        count = len(frequencies)

        # of the frequency with so many turns in the original length
        def index(turns: float) -> float:
            return count * math.log(cfg.original_context / (turns * 2 * math.pi)) / math.log(theta)

        first, last = index(cfg.beta_fast), index(cfg.beta_slow)
        if cfg.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * count - 1)  # dim - 1, as published
        slowed = (
            (torch.arange(count, device=frequencies.device) - first) / max(last - first, 1e-3)
        ).clamp(0, 1)
        size = (
            0.1 * math.log(max(cfg.factor, 1.0)) + 1
            if cfg.attention_factor is None
            else cfg.attention_factor
        )
        return slowed * frequencies / cfg.factor + (1 - slowed) * frequencies, size

    return scaling


@builds(config.LongRopeScaling)
def long_rope_scaling(cfg: config.LongRopeScaling) -> RopeScaling:
    """Every frequency divided by its own factor (Ding et al. 2024)."""

    def scaling(frequencies: Tensor, theta: float) -> tuple[Tensor, float]:
        factors = torch.tensor(cfg.long if cfg.use_long else cfg.short).to(
            frequencies.device, non_blocking=True
        )
        exponent = torch.arange(0, 2 * len(frequencies), 2, device=frequencies.device).float() / (
            2 * len(frequencies)
        )
        grown = math.sqrt(1 + math.log(max(cfg.factor, 1.0)) / math.log(cfg.original_context))
        return 1.0 / (
            factors * theta**exponent
        ), grown if cfg.attention_factor is None else cfg.attention_factor  # rounded as published

    return scaling
