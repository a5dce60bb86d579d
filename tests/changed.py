"""Models with a low-rank change beside them that says something, for tests."""

from __future__ import annotations

import torch

import tiny
from glassformer.core.config import objective as objectives
from glassformer.formats import tuning
from seeding import generator_from

LORA = objectives.LoRA(rank=3, alpha=6.0, target_modules=("*.attn.q", "*.attn.v"))


def moved(shape, options=LORA, seed=1):
    """A model with a change beside it that says something."""
    model = tiny.model(shape, seed=seed)
    tuning.tune(model, options)
    draw = generator_from(9)
    with torch.no_grad():
        for _, weight in tuning.trained(model):
            weight.add_(torch.randn(weight.shape, generator=draw) * 0.1)
    return model


def logits(model):
    with torch.no_grad():
        return model(tiny.tokens()).logits
