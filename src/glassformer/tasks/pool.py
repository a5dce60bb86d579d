"""A vector for a whole sequence, and labels for it or for each token.

B batch, T tokens, D documents (one a row, or several packed in one), C model dim, L labels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core import config
from ..core.nn.build import builds, uncompiled
from ..core.nn.dropout import Dropout
from ..core.nn.flow import Flow, TracedModule, document_starts
from ..core.nn.layers import ACTIVATIONS, linear, norm


class LabelHead(TracedModule):
    """Base of Pool and TokenHead: (transform, norm), and for labels dropout and a projection."""

    exact: tuple[str, ...] = ("proj",)  # a few rows

    def __init__(self, cfg: config.Pool | config.TokenHead, dim: int) -> None:
        super().__init__()
        self.transform = linear(dim, dim, cfg.transform_bias) if cfg.transform else None
        self.act = ACTIVATIONS[cfg.transform] if cfg.transform else None
        self.norm = norm(cfg.norm, dim)
        self.drop = Dropout(cfg.dropout) if cfg.dropout else nn.Identity()
        self.proj = linear(dim, cfg.labels, cfg.bias) if cfg.labels else None

    def transformed(self, x: Tensor) -> Tensor:
        """x (..., C) through the dense layer, its activation and norm, where there is one."""
        if self.transform is not None and self.act is not None:
            x = self.act(self.transform(x))
        return self.norm(x)  # type: ignore[no-any-return]

    def labels(self, x: Tensor) -> Tensor:
        """x (..., C) -> (..., L); x itself without labels."""
        return x if self.proj is None else self.proj(self.drop(x))


def probabilities(logits: Tensor, cfg: config.Pool) -> Tensor:
    """Logits (..., L) -> the probability of each label; a single label's value stays as it is."""
    if cfg.sigmoid:
        return logits.sigmoid()
    return logits if cfg.labels == 1 else logits.softmax(-1)


@builds(config.Pool)
class Pool(LabelHead):
    """Hidden states to a vector a document, or its labels' logits: one or a mean, (transform),
    (drop, project)."""

    exact = ("query", "proj")

    def __init__(self, cfg: config.Pool, dim: int) -> None:
        super().__init__(cfg, dim)
        self.mode, self.normalize = cfg.mode, cfg.normalize
        self.late, self.eos, self.pad = cfg.late, cfg.eos, cfg.pad
        self.query = linear(dim, 1, bias=False) if cfg.mode == "attention" else None

    @uncompiled  # how many documents there are is not known before
    def forward(self, hidden: Tensor, flow: Flow) -> Tensor:
        """hidden (B, T, C) -> (D, C), or (D, L) with labels; documents in the order of rows, then
        of columns."""
        pos = flow.pos.expand(hidden.shape[:2])
        hidden = self.transformed(hidden) if self.late else hidden
        x = flow.look(self, "vector", self.gather(hidden, pos, flow.tokens))
        x = x if self.late else self.transformed(x)
        return flow.look(
            self, "write", self.labels(nn.functional.normalize(x, dim=-1) if self.normalize else x)
        )

    def gather(self, hidden: Tensor, pos: Tensor, tokens: Tensor | None = None) -> Tensor:
        """The vector of each document (D, C) of ``pos`` (B, T); padding, -1, belongs to none.

        ``tokens`` (B, T) say which is the last where an id does; a text without ``eos`` ends where it
        ends, and of one of ``pad`` alone the first is taken, as in transformers.
        """
        token_index = (pos.flatten() >= 0).nonzero()[:, 0]
        first = document_starts(pos).flatten()[token_index]

        if self.mode in ("first", "last"):
            boundary = first
            if self.mode == "last" and self.pad is None:
                boundary = torch.cat((first[1:], first.new_ones(1)))
            index = boundary.nonzero()[:, 0]
            if tokens is not None and (self.eos, self.pad) != (None, None):
                ids, which = tokens.flatten()[token_index], first.cumsum(0) - 1
                fits: Any = ids != self.pad if self.eos is None else ids == self.eos
                places = fits.nonzero()[:, 0]
                index = index.scatter_reduce(0, which[fits], places, "amax", include_self=False)
            return hidden.flatten(0, 1)[token_index[index]]
        states, which = hidden.flatten(0, 1)[token_index], first.cumsum(0) - 1
        count = torch.bincount(which)
        if self.mode == "max":
            lowest = hidden.new_full((len(count), hidden.shape[-1]), float("-inf"))
            return lowest.scatter_reduce(0, which[:, None].expand_as(states), states, "amax")
        total = hidden.new_zeros(len(count), hidden.shape[-1])
        if self.query is not None:
            fit = self.query(states)[:, 0]
            fit = fit.to(torch.promote_types(fit.dtype, torch.float32))
            top = (
                fit.detach()
                .new_full((len(count),), float("-inf"))
                .scatter_reduce(0, which, fit.detach(), "amax")
            )
            # the softmax of each document, though all lie in one row
            shares = (fit - top[which]).exp()
            shares = shares / shares.new_zeros(len(count)).index_add(0, which, shares)[which]
            return total.index_add(0, which, shares[:, None].to(states.dtype) * states)
        return total.index_add_(0, which, states) / count[:, None].to(total.dtype)


@builds(config.TokenHead)
class TokenHead(LabelHead):
    """Hidden states to labels' logits for each token: (transform), drop, project."""

    def forward(self, hidden: Tensor, flow: Flow) -> Tensor:
        """hidden (B, T, C) -> (B, T, L)."""
        return flow.look(self, "write", self.labels(self.transformed(hidden)))
