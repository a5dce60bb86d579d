"""Blocks on one residual stream, with one position scheme."""

from __future__ import annotations

from torch import Tensor, nn

from .. import config
from .build import build, builds
from .cache import Cache
from .dropout import Dropout
from .flow import Flow, TracedModule
from .linear import linear
from .norm import norm
from .position import Position


@builds(config.Stack)
class Stack(TracedModule):
    """Embeddings in, hidden states out; an encoder or a decoder is a stack that is causal or not."""

    def __init__(self, cfg: config.Stack, dim: int, width: int) -> None:
        super().__init__()
        heads = cfg.pattern[0].attention.heads
        self.position: Position = build(cfg.position, width, heads, cfg.causal)
        self.first_norm = norm(cfg.first_norm, width)
        self.project = linear(width, dim, bias=True) if width != dim else nn.Identity()
        self.blocks = nn.ModuleList(build(cfg.block(i), dim, cfg.causal, cfg.dropout) for i in range(cfg.depth))
        self.last_norm = norm(cfg.last_norm, dim)
        self.drop = Dropout(cfg.dropout)

    def forward(self, x: Tensor, flow: Flow, cache: Cache | None = None) -> Tensor:
        """x (B, T, C or the embeddings' width), embedded tokens -> (B, T, C)."""
        x = self.project(self.drop(self.first_norm(self.position.embed(x, flow))))
        x = flow.look(self, "embed", x)
        for index, block in enumerate(self.blocks):
            x = block(x, flow, self.position, cache.layers[index] if cache is not None else None)
        return flow.look(self, "out", self.last_norm(x))
