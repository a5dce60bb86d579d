"""Continuations that a model in training draws of prompts, and their log-probabilities as training
computes them: the sampler's bits.

    sampler = Sampler(model, tokenizer, context)
    groups = sampler.draw(prompts, count=8, max_new=64, seeds=[1, 2, ..])
    logprobs, .. = sampler.score(model, prompts and continuations)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core import config
from ..core.generation.sample import Sampling, log_probability
from ..core.nn import Model, build_model, lora
from ..fast import kernels
from ..fast.training.sampled_order import (
    PackedDocuments,
    hidden_states,
    padded_states,
    sampled_order,
)
from ..scale.shard import full_weights
from ..tasks.objectives.documents import in_pieces
from .engine import Completion, Engine, Request

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer

EXACT = (config.Full, config.Causal, config.Window)  # rules that the kernels attend by


class Sampler:
    """An engine of a model's weights as they are now, a low-rank change in them, whole where several
    processes hold them in shards."""

    def __init__(self, model: Model, tokenizer: Tokenizer | None, context: int) -> None:
        weights = lora.weights(model, full_weights(model))
        with torch.device("meta"):
            self.model = build_model(model.config).eval()
        self.model.load_state_dict(weights, assign=True, strict=False)
        self.engine = Engine(self.model, tokenizer, max_context=context, max_queue=1 << 20)

    @property
    def exact(self) -> bool:
        """True where training can compute in the sampler's order: attention over pages, by compiled
        kernels."""
        plan = self.engine.memory_plan
        stack: Any = getattr(self.model.config, "decoder", None)
        return (
            plan.rewinds
            and kernels.path() != "torch"
            and all(isinstance(attention.mask, EXACT) for attention in stack.attentions)
        )

    def draw(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        max_new: int,
        seeds: Sequence[int] | None,
    ) -> list[list[Completion]]:
        """``count`` continuations of each prompt, drawn from the model's own distribution by ``seeds``
        (None: the likeliest); a prompt is read once."""
        sampling = Sampling(0.0 if seeds is None else 1.0)
        with self.engine as engine:
            requests = [
                Request(prompt, sampling=sampling, max_new=max_new, n=count, seed=seed)
                for prompt, seed in zip(prompts, seeds or [0] * len(prompts), strict=True)
            ]
            handles = [engine.submit(request) for request in requests]
            return [handle.result().completions for handle in handles]

    def score(
        self, model: Model, texts: Sequence[Sequence[int]], since: Sequence[int], exact: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The log-probabilities (N,) of each text's tokens from its ``since`` on, as training computes
        them, and the mixtures' loss; ``exact``: with the sampler's bits."""
        documents = PackedDocuments([text[:-1] for text in texts], self.engine.max_context)
        view: Any = sampled_order(model, self.engine.memory_plan.model) if exact else model
        hidden, losses = hidden_states(view, documents) if exact else padded_states(view, documents)
        first = torch.tensor(since)[documents.rows]
        places = (documents.pos >= first - 1).nonzero()[:, 0]
        targets = torch.tensor(
            [token for text, n in zip(texts, since, strict=True) for token in text[n:]]
        )

        def log_of(states: Tensor, tokens: Tensor) -> Tensor:
            return log_probability(view.head(states[None], view.embed)[0], tokens)

        logs = in_pieces(view, log_of, hidden[places], targets)
        aux = torch.stack([*losses.values()]).sum() if losses else None
        return torch.cat(logs), aux
