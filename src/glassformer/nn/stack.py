"""Blocks on one residual stream, with one position scheme."""

from __future__ import annotations

from torch import Tensor, nn

from .. import config
from .build import build, builds
from .cache import Cache
from .dropout import Dropout
from .flow import Flow, Part
from .norm import norm
from .position import Position


@builds(config.Stack)
class Stack(Part):
    """Embeddings in, hidden states out; an encoder or a decoder is a stack that is causal or not."""

    def __init__(self, cfg: config.Stack, dim: int) -> None:
        super().__init__()
        heads = cfg.pattern[0].attention.heads
        self.position: Position = build(cfg.position, dim, heads, cfg.causal)
        self.first_norm = norm(cfg.first_norm, dim)
        self.blocks = nn.ModuleList(build(cfg.block(i), dim, cfg.causal, cfg.dropout) for i in range(cfg.depth))
        self.last_norm = norm(cfg.last_norm, dim)
        self.drop = Dropout(cfg.dropout)

    def forward(self, x: Tensor, flow: Flow, cache: Cache | None = None) -> Tensor:
        """x (B, T, C), embedded tokens -> (B, T, C)."""
        x = flow.look(self, "embed", self.drop(self.first_norm(self.position.embed(x, flow))))
        for index, block in enumerate(self.blocks):
            x = block(x, flow, self.position, cache.layers[index] if cache is not None else None)
        return flow.look(self, "out", self.last_norm(x))
