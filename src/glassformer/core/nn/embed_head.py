"""Both ends of the model: tokens to vectors, vectors to logits.

B batch, T tokens, C model dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import config
from .build import builds
from .feedforward import ACTIVATIONS
from .flow import Flow, TracedModule
from .linear import linear
from .norm import norm


@builds(config.Embed)
class Embed(TracedModule):
    """One vector per token, scaled, plus one per segment (BERT) and one for each of some tokens
    before it."""

    def __init__(self, cfg: config.Embed, dim: int) -> None:
        super().__init__()
        self.scale = cfg.scale
        self.token = make_table(cfg.vocab, dim)
        self.segment = make_table(cfg.segments, dim) if cfg.segments else None
        missing = cfg.vocab  # the last row of each table: there is no such token before
        self.lag = nn.ModuleList(
            make_table(missing + 1, dim) for _ in range(cfg.previous_token_embeddings)
        )
        # the further back, the more
        self.init_std_divisor = {f"lag.{back}.weight": back + 2 for back in range(len(self.lag))}
        self.products = ("token.weight", *self.init_std_divisor)

    def forward(self, tokens: Tensor, flow: Flow, segments: Tensor | None = None) -> Tensor:
        """tokens (B, T) -> (B, T, C); ``segments`` (B, T) are 0 where not given."""
        x = flow.look(flow.embed_path, "token", self.token(tokens))
        for back, table in enumerate(self.lag, start=1):
            earlier = table(previous_tokens(tokens, flow, back, nothing=self.token.num_embeddings))
            x = x + flow.look(flow.embed_path, f"lag.{back - 1}", earlier)
        if self.scale != 1.0:
            # rounded to x's precision, as published models do
            x = x * torch.tensor(self.scale, dtype=x.dtype)
        if self.segment is not None:
            segment_vectors = self.segment(
                torch.zeros_like(tokens) if segments is None else segments
            )
            x = x + flow.look(flow.embed_path, "segment", segment_vectors)
        return x


def make_table(rows: int, dim: int) -> nn.Embedding:
    """Vectors not drawn yet: PyTorch's own draw, on the "meta" device, imports its compiler, which
    takes seconds."""
    return nn.Embedding(rows, dim, _weight=torch.empty(rows, dim))


def previous_tokens(tokens: Tensor, flow: Flow, back: int, nothing: int) -> Tensor:
    """The token ``back`` positions before each one in its own document (B, T); ``nothing`` where
    there is none."""
    if flow.previous is not None:
        earlier = flow.previous[:, :, back - 1]
        return torch.where(earlier >= 0, earlier, nothing)
    pos, start = flow.pos.expand_as(tokens), 0
    context = (tokens, pos)
    if flow.history is not None:  # older ones before them
        start = flow.history[0].shape[1]
        context = (torch.cat((flow.history[0], tokens), 1), torch.cat((flow.history[1], pos), 1))
    earlier, place = (
        F.pad(x, (back, 0), value=-1)[:, start : start + tokens.shape[1]] for x in context
    )
    return torch.where((place == pos - back) & (place >= 0), earlier, nothing)


class Projection(nn.Module):
    """Hidden states times a table (V, C), plus a bias: the head's own table, or the embedding's
    where it is tied."""

    products = ("weight",)

    def __init__(self, dim: int, vocab: int, tied: bool, bias: bool) -> None:
        super().__init__()
        self.vocab = vocab
        self.weight = None if tied else nn.Parameter(torch.empty(vocab, dim))
        self.bias = nn.Parameter(torch.zeros(vocab)) if bias else None

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return F.linear(x, table, self.bias)


@builds(config.Head)
class Head(TracedModule):
    """Hidden states to logits over the vocabulary: (transform, activate, norm), scale, project,
    cap."""

    def __init__(self, cfg: config.Head, dim: int, vocab: int) -> None:
        super().__init__()
        self.scale, self.softcap = cfg.scale, cfg.softcap
        self.transform = linear(dim, dim, bias=True) if cfg.transform else None
        self.act = ACTIVATIONS[cfg.transform] if cfg.transform else None
        self.norm = norm(cfg.norm, dim)
        self.proj = Projection(dim, vocab, cfg.tied, cfg.bias)
        # where the vocabulary lies on several processes
        self.cross_entropy: Callable[..., Tensor] | None = None

    def forward(self, hidden: Tensor, embed: Embed) -> Tensor:
        """hidden (..., C) -> logits (..., V)."""
        logits: Tensor = self.proj(self.prepare(hidden), self.table(embed))
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits

    def prepare(self, hidden: Tensor) -> Tensor:
        """Hidden states as the table is multiplied with them, (..., C)."""
        if self.transform is not None and self.act is not None:
            hidden = self.act(self.transform(hidden))
        hidden = self.norm(hidden)
        return hidden * self.scale if self.scale != 1.0 else hidden

    def table(self, embed: Embed) -> Tensor:
        """A vector for each token of the vocabulary, (V, C): the head's own, or the embedding's
        when tied."""
        return embed.token.weight if self.proj.weight is None else self.proj.weight
