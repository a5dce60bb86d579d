"""Attend, (look at the encoder,) think: one block of the paper's figure."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .. import config
from .build import build, builds
from .cache import KV, CrossKV
from .dropout import Dropout
from .flow import Flow, TracedModule
from .norm import norm
from .position import Position


@builds(config.Block)
class Block(TracedModule):
    """One step of the residual stream; ``pre``, ``post``, ``sandwich`` and ``parallel`` differ in where norms stand."""

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

    def forward(self, x: Tensor, flow: Flow, position: Position, kept: tuple[KV, CrossKV] | None) -> Tensor:
        """The residual stream x (B, T, C) -> the same with what the sublayers add to it."""
        kv, cross_kv = kept or (None, None)
        if self.place == "parallel":
            seen = self.attn_norm(x)
            x = x + self.drop(self.attn(seen, flow, position, kv)) + self.drop(self.ffn(seen, flow))
        else:
            x = self.residual(x, "attn", flow, position, kv)
            if self.cross is not None:
                x = self.residual(flow.look(self, "mid", x), "cross", flow, position, cross_kv)
            if self.ffn is not None:
                x = self.residual(flow.look(self, "mid_cross" if self.cross else "mid", x), "ffn", flow)
        return flow.look(self, "resid", x)

    def residual(self, x: Tensor, name: str, *args: object) -> Tensor:
        """x (B, T, C) plus the output of the sublayer ``name``; ``place`` says what is normed."""
        sublayer, norm = getattr(self, name), getattr(self, f"{name}_norm")
        if self.place == "post":
            return norm(x + self.drop(sublayer(x, *args)))  # type: ignore[no-any-return]
        write = sublayer(norm(x), *args)
        if self.place == "sandwich":
            write = getattr(self, f"{name}_post_norm")(write)
        return x + self.drop(write)  # type: ignore[no-any-return]
