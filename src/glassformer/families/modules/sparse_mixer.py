"""The router of Phi-3.5 MoE: the best expert, then the best of all others."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.nn.build import builds
from ...core.nn.experts import MoE
from ..sparse_mixer import SparseMixerMoE


@builds(SparseMixerMoE)
class SparseMixerMoEModule(MoE):
    """A mixture of experts with the choice of a ``SparseMixerMoE``."""

    cfg: SparseMixerMoE

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, T, E) -> the weights and the numbers of each token's two experts (B, T, 2)."""
        first_weight, first = self.best(logits, logits)
        masked = logits.scatter(-1, first, float("-inf"))
        second_weight, second = self.best(masked, logits)
        return torch.cat((first_weight, second_weight), -1), torch.cat((first, second), -1)

    def best(self, candidates: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The best of the candidates (B, T, E): its share among those near it, its number (B, T, 1)."""
        top, chosen = candidates.max(-1, keepdim=True)
        distance = (top - logits) / logits.abs().maximum(top)
        near = candidates.masked_fill(distance > 2 * self.cfg.tolerance, float("-inf"))
        return near.softmax(-1).gather(-1, chosen), chosen
