"""The router of DeepSeek-V3 and its kin: scores, a correction that only chooses, groups of experts.

logits (B, T, E) --sigmoid--> scores --+ correction, best groups, top k--> chosen (B, T, K)
                                |                                           |
                                +--- gathered, normed, scaled <-------------+--> weight (B, T, K)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.nn.build import builds
from ...core.nn.experts import Dispatch, MoE
from ...core.nn.flow import Flow
from ..routed import RoutedMoE, ScaledInputMoE
from .scan import ShapedModule, split_heads


@builds(RoutedMoE)
class RoutedMoEModule(ShapedModule, MoE):
    """A mixture of experts with the choice of a ``RoutedMoE``."""

    def choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, T, E) -> the weights and the numbers of each token's experts (B, T, K)."""
        cfg = self.cfg
        if cfg.score == "sigmoid":
            router_probs = whole_vectors(logits).sigmoid()[..., : cfg.experts]
        else:
            router_probs = logits.softmax(-1)
        ranks = router_probs + self.correction.detach() if cfg.correction else router_probs
        if cfg.top_groups < cfg.groups:
            ranks = self.best_groups(ranks)
        chosen = ranks.topk(cfg.top_k, dim=-1).indices
        # a gather, in functions that a browser computes as well
        rows = torch.arange(
            router_probs.shape[0] * router_probs.shape[1], device=router_probs.device
        )
        index = chosen.flatten(0, 1) + rows[:, None] * cfg.experts
        weight = router_probs.flatten().index_select(0, index.flatten()).view(chosen.shape)
        if cfg.normalize:
            # sigmoids may all be 0
            weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
        return weight * cfg.scale if cfg.scale != 1.0 else weight, chosen

    def best_groups(self, ranks: Tensor) -> Tensor:
        """The ranks (B, T, E) of experts in each token's best groups, -inf for all others."""
        groups = split_heads(ranks, self.cfg.groups)
        best = groups.topk(self.cfg.group_best, dim=-1).values.sum(-1)  # (B, T, groups)
        chosen = best.topk(self.cfg.top_groups, dim=-1).indices
        numbers = torch.arange(self.cfg.groups, device=ranks.device)
        out = (chosen[..., None] == numbers).sum(-2) == 0  # (B, T, groups)
        return groups.masked_fill(out[..., None], float("-inf")).flatten(-2)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RoutedMoEModule:
        """Leaves the correction in single precision at least: one of 9 has steps of 0.06 in bf16, and
        scores are shares of 1."""

        def move(x: Tensor) -> Tensor:
            moved = fn(x)
            kind = torch.promote_types(moved.dtype, torch.float32)
            is_whole = not self.cfg.correction or x is not self.correction or moved.dtype == kind
            return moved if is_whole else x.to(moved.device, kind)

        return super()._apply(move, recurse)  # type: ignore[no-any-return, no-untyped-call]

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        if self.cfg.correction:
            nn.init.zeros_(self.correction)


@builds(ScaledInputMoE)
class ScaledInputMoEModule(RoutedMoEModule):
    """expert(weight * x): each of the three ways to compute it, with weights of 1 behind it."""

    def decode(self, x: Tensor, weight: Tensor, chosen: Tensor, flow: Flow) -> Tensor:
        return super().decode(x * weight.to(x.dtype), torch.ones_like(weight), chosen, flow)

    def reference(self, x: Tensor, choices: Dispatch) -> Tensor:
        return super().reference(*scaled(x, choices))

    def grouped_forward(self, x: Tensor, choices: Dispatch, flow: Flow) -> Tensor:
        return super().grouped_forward(*scaled(x, choices), flow)


def scaled(x: Tensor, choices: Dispatch) -> tuple[Tensor, Dispatch]:
    """x (B, T, C) times the weight of each token's expert, and choices that weigh 1."""
    weight = choices.weight.view(*x.shape[:2], 1).to(x.dtype)
    return x * weight, replace(choices, weight=torch.ones_like(choices.weight))


def whole_vectors(x: Tensor) -> Tensor:
    """x (..., E) padded to whole vectors: torch's scalar loop at a tensor's end rounds a sigmoid or a
    logarithm otherwise, and what a token is answered would depend on the tokens beside it."""
    return F.pad(x, (0, -x.shape[-1] % 32))
