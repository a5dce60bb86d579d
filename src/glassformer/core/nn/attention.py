"""Multi-head attention: project, split into heads, attend, merge, project.

B batch, T queries, S keys, H heads, K key-value heads, D head dim, C model dim.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import config
from ..errors import need
from .build import build, builds
from .cache import KV, ExternalKV
from .engines import AttentionEngine, AttentionInputs, attend, eager_attention
from .flow import Flow, TracedModule
from .layers import fused_linear, linear
from .mask import Mask
from .position import Position


@builds(config.Attention)
class Attention(TracedModule):
    """MHA, GQA and MQA by the number of key-value heads; to an encoder: cross_attention.py."""

    cross = False
    fused_projections: tuple[str, ...] = ("q", "k", "v")  # of one and the same x
    writes = ("out.weight",)

    def __init__(self, cfg: config.Attention, dim: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.kv_heads = cfg.heads, cfg.kv_heads or cfg.heads
        self.head_dim = cfg.width(dim)
        self.scale = self.head_dim**-0.5 if cfg.scale is None else cfg.scale
        self.softcap, self.mask, self.causal, self.dropout = cfg.softcap, cfg.mask, causal, dropout
        self.prefix_length = cfg.mask.prefix_length
        self.head_shard: Any = None  # the heads that are here, where other processes hold more
        width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.q = linear(dim, width, cfg.bias)
        self.k = linear(dim, kv_width, cfg.bias)
        self.v = linear(dim, kv_width, cfg.bias)
        self.out = linear(width, dim, cfg.bias if cfg.out_bias is None else cfg.out_bias)
        self.whole_norm = cfg.qk_norm_whole
        sizes = (width, kv_width) if self.whole_norm else (self.head_dim, self.head_dim)
        self.q_norm, self.k_norm = (
            build(cfg.qk_norm, size) if cfg.qk_norm else None for size in sizes
        )

    def forward(self, x: Tensor, flow: Flow, position: Position, kv: Any = None) -> Tensor:
        """x (B, T, C) -> what is added to the residual stream (B, T, C); ``kv``: its cache."""
        x = flow.look(self, "in", x)
        z = (
            kv.attention(self, x, flow, position)
            if isinstance(kv, ExternalKV)
            else self.mix(x, flow, position, kv)
        )
        z = flow.look(self, "z", self.finish(z, x))  # (B, H, T, D)
        return flow.look(self, "write", self.out(z.transpose(1, 2).flatten(2)))

    def finish(self, z: Tensor, x: Tensor) -> Tensor:
        """The mixture z of an attention to x, which a kind of attention may change."""
        return z

    def mix(self, x: Tensor, flow: Flow, position: Position, kv: KV | None) -> Tensor:
        """x (B, T, C) -> the mixture of values that each head makes for each token (B, H, T, D)."""
        q, k, v = self.qkv(x, flow, position)
        if kv is not None:
            k, v = kv.extend(k, v)  # the cached columns with these after them, (B, K, S, D)
        return self.attend(flow, q, k, v, self.self_mask(flow, kv), position)

    def qkv(self, x: Tensor, flow: Flow, position: Position) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, T, C) -> queries (B, H, T, D), keys and values (B, K, T, D), turned by position."""
        # self.q(x), self.k(x), self.v(x); prepacked: one product
        q, k, v = fused_linear(x, self.q, self.k, self.v)
        if flow.watches(self, "qkv"):
            # before heads are normed and turned
            qkv = flow.look(self, "qkv", torch.cat((q, k, v), -1))
            q, k, v = torch.split(qkv, [q.shape[-1], k.shape[-1], v.shape[-1]], -1)
        q = flow.look(self, "q", position.rotate(self.split(q, self.q_norm), flow))
        k = flow.look(self, "k", position.rotate(self.split(k, self.k_norm), flow))
        return q, k, flow.look(self, "v", self.split(v))

    def attend(
        self,
        flow: Flow,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        position: Position | None = None,
    ) -> Tensor:
        """softmax(q k^T) v by the flow's engine -> (B, H, T, D).

        Fused engines never hold the pattern: a tape that records it has the eager engine compute it
        beside the chosen one, whose output is used; a tape that edits it gets the eager engine's
        output.
        """
        bias, dropout = None, self.dropout if self.training else 0.0
        # one from outside asks the scheme itself
        if position is not None and not isinstance(flow.engine, AttentionEngine):
            bias = mask.bias(position)  # T5, ALiBi: once for all layers
        inputs = AttentionInputs(
            q, k, v, mask, bias, self.scale, self.softcap, dropout, position=position
        )
        inputs = inputs._replace(heads=self.head_shard)
        if flow.watches(self, "scores", "pattern"):
            alone = not isinstance(flow.engine, AttentionEngine)
            need(
                alone,
                "Attention patterns lie on several processes here; look at them with one process.",
            )
            watched = inputs._replace(look=partial(flow.look, self))
            if flow.changes(self, "scores", "pattern"):
                flow.keys(mask.k_pos, mask.dense)
                return eager_attention(watched)
            eager_attention(watched._replace(dropout=0.0))
        return attend(inputs, flow.engine)

    def split(self, x: Tensor, norm: nn.Module | None = None) -> Tensor:
        """(B, T, heads * D) -> (B, heads, T, D), vectors of each head or all normed; a shard's heads."""
        if norm is not None and self.whole_norm:
            x, norm = norm(x), None
        x = x.view(*x.shape[:2], x.shape[2] // self.head_dim, self.head_dim)
        return (x if norm is None else norm(x)).transpose(1, 2)

    def self_mask(self, flow: Flow, kv: KV | None) -> Mask:
        """Which keys each query sees within the stack; made once a pass for layers of one rule."""
        k_pos = flow.pos if kv is None else kv.slots.k_pos
        document_ids = None if flow.document_ids is None else (flow.document_ids, flow.document_ids)
        prefix = flow.prefix
        # what a cache holds lies before all of it
        if prefix is not None and k_pos.shape[1] > prefix.shape[1]:
            prefix = F.pad(prefix, (k_pos.shape[1] - prefix.shape[1], 0))
        make_mask = partial(
            Mask,
            flow.pos,
            k_pos,
            self.causal,
            self.mask,
            document_ids,
            flow.contiguous,
            prefix,
            self.prefix_length,
        )
        return flow.cached(("self_mask", self.causal, self.mask), make_mask)
