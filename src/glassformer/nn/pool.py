"""A vector for a whole sequence, and labels for it or for each token.

B batch, T tokens, D documents (one a row, or several packed in one), C model dim, L labels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .. import config
from .build import builds, uncompiled
from .dropout import Dropout
from .feedforward import ACTIVATIONS
from .flow import Flow, TracedModule
from .linear import linear


@builds(config.Pool)
class Pool(TracedModule):
    """Hidden states to a vector a document, or its labels' logits: (pick, mean, max), (transform), (drop, project)."""

    def __init__(self, cfg: config.Pool, dim: int) -> None:
        super().__init__()
        self.of, self.unit = cfg.of, cfg.unit
        self.transform = linear(dim, dim, bias=True) if cfg.transform else None
        self.act = ACTIVATIONS[cfg.transform] if cfg.transform else None
        self.drop = Dropout(cfg.dropout)
        self.proj = linear(dim, cfg.labels, bias=True) if cfg.labels else None

    @uncompiled  # how many documents there are is not known before
    def forward(self, hidden: Tensor, flow: Flow) -> Tensor:
        """hidden (B, T, C) -> (D, C), or (D, L) with labels; documents in the order of rows, then of columns."""
        x = flow.look(self, "vector", self.gather(hidden, flow.pos.expand(hidden.shape[:2])))
        if self.transform is not None and self.act is not None:
            x = self.act(self.transform(x))
        if self.unit:
            x = nn.functional.normalize(x, dim=-1)
        if self.proj is not None:
            x = self.proj(self.drop(x))
        return flow.look(self, "write", x)

    def gather(self, hidden: Tensor, pos: Tensor) -> Tensor:
        """The vector of each document (D, C); a document begins where the position is 0, -1 belongs to none."""
        there = pos.flatten() >= 0
        states, place = hidden.flatten(0, 1)[there], pos.flatten()[there]
        first = place == 0
        if self.of == "first":
            return states[first]
        if self.of == "last":
            return states[torch.cat((first[1:], first.new_ones(1)))]
        which = first.cumsum(0) - 1
        count = torch.bincount(which)
        if self.of == "max":
            lowest = hidden.new_full((len(count), hidden.shape[-1]), float("-inf"))
            return lowest.scatter_reduce(0, which[:, None].expand_as(states), states, "amax")
        total = hidden.new_zeros(len(count), hidden.shape[-1]).index_add_(0, which, states)
        return total / count[:, None].to(total.dtype)


@builds(config.TokenHead)
class TokenHead(TracedModule):
    """Hidden states to labels' logits for each token: (transform), drop, project."""

    def __init__(self, cfg: config.TokenHead, dim: int) -> None:
        super().__init__()
        self.transform = linear(dim, dim, bias=True) if cfg.transform else None
        self.act = ACTIVATIONS[cfg.transform] if cfg.transform else None
        self.drop = Dropout(cfg.dropout)
        self.proj = linear(dim, cfg.labels, bias=True)

    def forward(self, hidden: Tensor, flow: Flow) -> Tensor:
        """hidden (B, T, C) -> (B, T, L)."""
        if self.transform is not None and self.act is not None:
            hidden = self.act(self.transform(hidden))
        return flow.look(self, "write", self.proj(self.drop(hidden)))
