"""Continuations that a model in training draws of prompts, and their log-probabilities as training
computes them: the sampler's bits.

    sampler = Sampler(model, tokenizer, context)
    groups = sampler.draw(prompts, count=8, max_new=64, seeds=[1, 2, ..])
    logprobs, .. = sampler.score(model, prompts and continuations)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..core import config
from ..core.generation.sample import Sampling, log_probability
from ..core.nn import Model, build_model, lora
from ..core.training.loss import ONE_SHOT
from ..fast import kernels
from ..fast.training.sampled_order import Documents, hidden_states, sampled_order
from .engine import Completion, Engine, Request

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer

EXACT = (config.Full, config.Causal, config.Window)  # rules that the kernels attend by


class Sampler:
    """An engine of a model's weights as they are now, a low-rank change in them."""

    def __init__(self, model: Model, tokenizer: Tokenizer | None, context: int) -> None:
        weights = lora.weights(model)
        with torch.device("meta"):
            self.model = build_model(model.config).eval()
        self.model.load_state_dict(weights, assign=True, strict=False)
        self.engine = Engine(self.model, tokenizer, max_context=context)

    @property
    def exact(self) -> bool:
        """True where training can compute in the sampler's order: attention over pages, by compiled
        kernels."""
        plan, cfg = self.engine.memory_plan, self.model.config
        return (
            plan.rewinds
            and kernels.path() != "torch"
            and all(isinstance(each.mask, EXACT) for each in cfg.decoder.attentions)
        )
