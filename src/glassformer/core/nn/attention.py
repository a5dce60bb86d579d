"""Multi-head attention: project, split into heads, attend by one of several engines, merge, project.

``eager`` is softmax(q k^T) v written out: the definition, which every other engine must equal;
``sdpa`` is PyTorch's fused kernels. Rooms register theirs (``fast/attention_engines.py``).

B batch, T queries, S keys, H heads, K key-value heads, D head dim, C model dim.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import config, registry
from ..errors import UserError, need
from .build import build, builds
from .cache import KV, ExternalKV
from .dropout import dropout as drop
from .flow import Flow, TracedModule
from .layers import fused_linear, linear
from .mask import Mask
from .position import Position

Look = Callable[[str, Tensor], Tensor]
"""(name of a value, the value) -> what is used instead (see ``Flow.look``)."""


def unwatched(name: str, x: Tensor) -> Tensor:
    """``x`` itself: the ``Look`` of a pass without a tape."""
    return x


class AttentionInputs(NamedTuple):
    """One attention call: dropout(softmax(cap(q k^T * scale) + bias, where ``mask`` allows)) v."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, K, S, D); query head h reads key-value head h // (H / K)
    v: Tensor  # (B, K, S, D)
    mask: Mask
    bias: Tensor | None  # (B or 1, H, T, S), added to the scores
    scale: float
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    dropout: float = 0.0  # share of the attention pattern set to 0
    look: Look = unwatched  # given "scores" and "pattern" (B, H, T, S), by the eager engine alone
    # the scheme whose ``bias`` that is: for an engine that asks for some pairs at a time
    position: Any = None
    # which heads q holds, where other processes hold other heads (scale/tensor.py)
    heads: Any = None

    @property
    def group_size(self) -> int:
        """Query heads to a key-value head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def needs_grad(self) -> bool:
        return torch.is_grad_enabled() and (
            self.q.requires_grad or self.k.requires_grad or self.v.requires_grad
        )

    @property
    def slow_gradients(self) -> bool:
        """A gradient in bf16 or with dropout: there PyTorch has no fast kernel for a CPU."""
        return (self.dropout > 0 or self.q.dtype == torch.bfloat16) and self.needs_grad

    @property
    def on_cpu(self) -> bool:
        """On a CPU and not under torch.compile, which can follow no engine written for it."""
        return self.q.device.type == "cpu" and not torch.compiler.is_compiling()


def fold_groups(x: Tensor, kv_heads: int) -> Tensor:
    """(B, H, T, ..) -> (B, K, H / K * T, ..): a group's queries, as if they were one head's."""
    return x.reshape(x.shape[0], kv_heads, x.shape[1] * x.shape[2] // kv_heads, x.shape[3])


def eager_attention(inputs: AttentionInputs) -> Tensor:
    """Attention as the paper writes it (Vaswani et al. 2017, section 3.2.1) -> (B, H, T, D)."""
    q, k, v, mask, bias, scale, softcap, dropout, look, _, heads = inputs
    kv_heads = k.shape[1]
    qk = (fold_groups(q, kv_heads) @ k.transpose(-1, -2)).view(*q.shape[:3], -1)  # (B, H, T, S)
    scaled = qk * scale
    capped = scaled if softcap is None else softcap * torch.tanh(scaled / softcap)
    biased = capped if bias is None else capped + bias
    scores = look("scores", biased.masked_fill(~mask.dense(), float("-inf")))
    pattern = look(
        "pattern", scores.softmax(-1, torch.promote_types(scores.dtype, torch.float32)).to(v.dtype)
    )
    dropped = drop(pattern, dropout, heads) if dropout > 0 else pattern
    return (fold_groups(dropped, kv_heads) @ v).view(*q.shape[:3], -1)


FOLD_UP_TO = 8
"""Queries a head up to which a dense mask is repeated for each head of a group, which then pays."""


def sdpa_attention(inputs: AttentionInputs) -> Tensor:
    """``F.scaled_dot_product_attention`` -> (B, H, T, D); it cannot cap scores."""
    q, k, v, mask, bias, scale, _, dropout, *_ = inputs
    group, queries = inputs.group_size, q.shape[2]
    fast = mask.fast_path if bias is None else None
    dense = None
    if fast is None:
        dense = (
            mask.dense()
            if bias is None
            else bias.to(q.dtype).masked_fill(~mask.dense(), float("-inf"))
        )
    if inputs.heads is not None and dropout > 0:
        result: Tensor = inputs.heads.attend(inputs, dense)
        return result
    if group > 1 and (fast == "full" or (fast is None and queries <= FOLD_UP_TO)):
        # (B, H, T, D) -> (B, K, H / K * T, D): the queries of a group of heads become queries of
        # its one key-value head
        if dense is not None:
            # where all heads have one mask: one for each of a group
            heads = max(group, dense.shape[1])
            dense = fold_groups(dense.expand(-1, heads, -1, -1), heads // group)
        grouped = F.scaled_dot_product_attention(
            fold_groups(q, k.shape[1]), k, v, attn_mask=dense, dropout_p=dropout, scale=scale
        )
        return grouped.reshape(*q.shape[:3], -1)
    if (
        fast == "full"
        and queries == 1
        and dropout == 0
        and q.dtype == torch.bfloat16
        and q.device.type == "cpu"
    ):
        # a second row takes the kernel from its slow products of one row: half the time
        twice = q.expand(-1, -1, 2, -1)
        return F.scaled_dot_product_attention(twice, k, v, scale=scale)[:, :, :1]
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=dense,
        dropout_p=dropout,
        is_causal=fast == "causal",
        scale=scale,
        enable_gqa=group > 1,
    )


class AttentionEngine(NamedTuple):
    """One way to compute ``AttentionInputs`` -> (B, H, T, D)."""

    name: str
    run: Callable[[AttentionInputs], Tensor]
    supports: Callable[[AttentionInputs], bool]  # True where it can compute them
    # True where it was measured to be the fastest of those that can; None: taken by name alone
    preferred: Callable[[AttentionInputs], bool] | None
    min_queries: int = 1  # asked for calls of so many queries and more
    for_slow_gradients: bool = False  # asked only where the fused kernels' backward pass is slow


ENGINES: dict[str, AttentionEngine] = {
    engine.name: engine
    for engine in (
        *(engine for module in registry.load("engines") for engine in module.ENGINES),
        # the fastest wherever no row before it says otherwise
        AttentionEngine(
            "sdpa", sdpa_attention, lambda inputs: inputs.softcap is None, lambda inputs: True
        ),
        # scores that are capped: no fused kernel does that
        AttentionEngine("eager", eager_attention, lambda inputs: True, lambda inputs: True),
    )
}
"""The table that chooses: the first engine that is preferred and supports a call."""


def engine_name(name: str | AttentionEngine) -> str | AttentionEngine:
    """The engine of that name, of ENGINES or "auto", or the engine itself; else UserError."""
    if isinstance(name, AttentionEngine):
        return name
    if name != "auto" and name not in ENGINES:
        raise UserError(
            f'There is no engine of attention "{name}"; give auto, {", ".join(ENGINES)}.'
        )
    return name


def choose(inputs: AttentionInputs, name: str | AttentionEngine = "auto") -> AttentionEngine:
    """The engine of that name where it supports the call; else, and for "auto", the table's.

    An engine from outside (``scale/ring.py``) is always taken.
    """
    if isinstance(name, AttentionEngine):
        return name
    if name != "auto" and ENGINES[name].supports(inputs):
        return ENGINES[name]
    queries, slow_gradients = inputs.q.shape[2], inputs.slow_gradients
    for engine in ENGINES.values():
        if queries < engine.min_queries or (engine.for_slow_gradients and not slow_gradients):
            continue
        # preferred first: it is false more often
        if engine.preferred and engine.preferred(inputs) and engine.supports(inputs):
            return engine
    raise AssertionError("eager supports every call")


def attend(inputs: AttentionInputs, engine: str | AttentionEngine = "auto") -> Tensor:
    """Attention (B, H, T, D) by the engine that ``choose`` gives."""
    return choose(inputs, engine).run(inputs)


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
        self.add_layers(cfg, dim)

    def add_layers(self, cfg: Any, dim: int) -> None:
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

        Fused engines hold no pattern: for a tape that records it, the eager engine computes it beside
        the chosen one, whose output is used; a tape that edits it gets the eager engine's output.
        """
        dropout = self.dropout if self.training else 0.0
        outside = isinstance(flow.engine, AttentionEngine)  # it asks the scheme itself
        bias = None if position is None or outside else mask.bias(position)  # once for all layers
        inputs = AttentionInputs(
            q, k, v, mask, bias, self.scale, self.softcap, dropout, position=position
        )
        inputs = inputs._replace(heads=self.head_shard)
        if flow.watches(self, "scores", "pattern"):
            need(
                not outside,
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
