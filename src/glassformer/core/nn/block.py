"""One block of the paper's figure: attention, (cross-attention,) feed-forward; and a stack of them
on one residual stream.

``norm(None, dim)`` is the identity, so a block or stack without some norm needs no case of its own.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .. import config
from .build import build, builds
from .cache import KV, Cache, CrossKV, MixerState
from .dropout import Dropout
from .flow import Flow, TracedModule
from .layers import linear, norm
from .position import Position


@builds(config.Block)
class Block(TracedModule):
    """One step of the residual stream; ``pre``, ``post``, ``sandwich`` and ``parallel`` differ in
    where norms stand."""

    def __init__(self, cfg: config.Block, dim: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.place = cfg.place
        self.attn_norm = norm(cfg.norm, dim)
        self.attn = build(cfg.attention, dim, causal, dropout)
        if cfg.cross is not None:
            self.cross_norm = norm(cfg.norm, dim)
        self.cross = build(cfg.cross, dim, False, dropout, True) if cfg.cross is not None else None
        if cfg.feedforward is not None and cfg.place != "parallel":
            self.ffn_norm = norm(cfg.norm, dim)
        self.ffn: Any = build(cfg.feedforward, dim) if cfg.feedforward is not None else None
        if cfg.place == "sandwich":
            self.attn_post_norm = norm(cfg.norm, dim)
            if cfg.feedforward is not None:
                self.ffn_post_norm = norm(cfg.norm, dim)
            if cfg.cross is not None:
                self.cross_post_norm = norm(cfg.norm, dim)
        self.drop = Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        flow: Flow,
        position: Position,
        layer_cache: tuple[KV | MixerState, CrossKV] | None,
    ) -> Tensor:
        """The residual stream x (B, T, C) -> the same with what the sublayers add to it."""
        kv, cross_kv = layer_cache or (None, None)
        if self.place == "parallel":
            h = self.attn_norm(x)
            x = x + self.drop(self.attn(h, flow, position, kv)) + self.drop(self.ffn(h, flow))
        else:
            x = self.residual(x, "attn", flow, position, kv)
            if self.cross is not None:
                x = self.residual(flow.look(self, "mid", x), "cross", flow, position, cross_kv)
            if self.ffn is not None:
                x = self.residual(
                    flow.look(self, "mid_cross" if self.cross else "mid", x), "ffn", flow
                )
        return flow.look(self, "resid", x)

    def residual(self, x: Tensor, name: str, *args: object) -> Tensor:
        """x (B, T, C) plus the output of the sublayer ``name``; ``place`` says what is h."""
        sublayer, norm = getattr(self, name), getattr(self, f"{name}_norm")
        if self.place == "post":
            return norm(x + self.drop(sublayer(x, *args)))  # type: ignore[no-any-return]
        write = sublayer(norm(x), *args)
        if self.place == "sandwich":
            write = getattr(self, f"{name}_post_norm")(write)
        return x + self.drop(write)  # type: ignore[no-any-return]


@builds(config.Stack)
class Stack(TracedModule):
    """Embeddings in, hidden states out; an encoder or a decoder is a stack that is causal or
    not."""

    def __init__(self, cfg: config.Stack, dim: int, width: int) -> None:
        super().__init__()
        self.position: Position = build(cfg.position, width, cfg.heads, cfg.causal)
        self.first_norm = norm(cfg.first_norm, width)
        self.project = linear(width, dim, bias=True) if width != dim else nn.Identity()
        self.blocks = nn.ModuleList(
            build(cfg.block(i), dim, cfg.causal, cfg.dropout) for i in range(cfg.depth)
        )
        self.last_norm = norm(cfg.last_norm, dim)
        self.drop = Dropout(cfg.dropout)

    def forward(self, x: Tensor, flow: Flow, cache: Cache | None = None) -> Tensor:
        """x (B, T, C or the embeddings' width), embedded tokens -> (B, T, C)."""
        x = self.project_input(x, flow)
        for index, block in enumerate(self.blocks):
            x = block(x, flow, self.position, cache.layers[index] if cache is not None else None)
        return flow.look(self, "out", self.last_norm(x))

    def project_input(self, x: Tensor, flow: Flow) -> Tensor:
        """Embedded tokens (B, T, C or their width) as the first block takes them, (B, T, C)."""
        x = self.project(self.drop(self.first_norm(self.position.embed(x, flow))))
        return flow.look(self, "embed", x)
