"""What norms, position schemes, attention and feed-forward layers compute, as operations."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...core import config
from ...core.config.mask_arrays import TokenInfo, allowed
from ...core.nn import additive_position, attention, experts, layers, position
from ...core.nn.build import build
from ...core.nn.engines import eager_attention
from ...core.nn.flow import Flow
from .plan import Builder, Code, can_describe, describe, describes


def plain_flow(x: Tensor) -> Flow:
    """The flow of one unpadded text, for a part that is called by itself."""
    return Flow(torch.arange(x.shape[1], device=x.device)[None])


# ------------------------------------------------------------------------------------------------
# norms


@describes(config.LayerNorm)
def layer_norm(cfg: config.LayerNorm, b: Builder, id: str, x: str, module: str) -> str:
    """Centre, scale, gain and shift."""
    weights = b.of_module(module, weight="weight", bias="bias")
    code, op = (layers.LayerNorm.forward, "F.layer_norm"), b.plan[x]
    return b.add(id, "norm", (x,), op.axes, op.shape, code, weights, type="layer", eps=cfg.eps)


@describes(config.RMSNorm)
def rms_norm(cfg: config.RMSNorm, b: Builder, id: str, x: str, module: str) -> str:
    """Scale and gain."""
    weights = b.of_module(module, weight="weight")
    code, op = (layers.RMSNorm.forward, "F.rms_norm"), b.plan[x]
    return b.add(
        id,
        "norm",
        (x,),
        op.axes,
        op.shape,
        code,
        weights,
        type="rms",
        eps=cfg.eps,
        offset=cfg.offset,
    )


def any_norm(b: Builder, id: str, x: str, cfg: Any, module: str) -> str:
    """A norm of ours, or a user's own as a closed part."""
    if cfg is None or can_describe(cfg):
        return b.norm(id, x, cfg, module)
    norm, op = b.model.get_submodule(module), b.plan[x]
    return b.generic(id, (x,), op.axes, op.shape, norm, norm)


# -------------------------------------------------------------------------------------------
# positions


def position_embedding(b: Builder, x: str, embed_path: str) -> str:
    """Position vectors added to the embeddings."""
    op, id = b.plan[x], f"{embed_path}.position"
    match b.position:
        case config.Learned():
            table = {"table": b.weight(f"{b.position_module}.weight")}
            code: Code = (additive_position.Learned.embed, "embedding(")
            added = b.add(id, "lookup", (b.pos,), op.axes, op.shape, code, table)
        case config.Sinusoidal() as cfg:
            params: dict[str, Any] = {
                "theta": cfg.theta,
                "halves": cfg.halves,
                "endpoint": cfg.endpoint,
                "first": cfg.offset,
            }
            code = (additive_position.Sinusoidal.wave, "angle =")
            dtype = next(b.model.parameters()).dtype
            added = b.add(id, "pos_sin", (b.pos,), op.axes, op.shape, code, dtype=dtype, **params)
        case _:
            scheme: Any = b.model.get_submodule(b.position_module)
            if type(scheme).embed is position.Position.embed:
                return x
            return b.generic(
                id, (x,), op.axes, op.shape, scheme, lambda h: scheme.embed(h, plain_flow(h))
            )
    return b.add_like(f"{embed_path}.with_position", "add", x, added, code=code)


def rotated(b: Builder, id: str, x: str) -> str:
    """Queries or keys as the scheme turns them."""
    scheme: Any = b.model.get_submodule(b.position_module)
    if isinstance(b.position, config.Rotary) and type(scheme) is position.Rotary:
        turned = int(b.plan[x].shape[-1] * b.position.fraction)
        params = {"turned": turned, "table": scheme.table, "interleaved": b.position.interleaved}
        return b.add_like(id, "rope", x, b.pos, code=(position.Rotary.turn, "x * cos"), **params)
    if type(scheme).rotate is position.Position.rotate:
        return b.name(x, id)
    op = b.plan[x]
    return b.generic(
        id, (x,), op.axes, op.shape, scheme, lambda h: scheme.rotate(h, plain_flow(h[:, 0]))
    )


def biased(b: Builder, path: str, scores: str) -> str:
    """Scores with the scheme's bias for each head and distance."""
    scheme: Any = b.model.get_submodule(b.position_module)
    if type(scheme).bias is position.Position.bias:
        return scores

    op, params = b.plan[scores], dict[str, Any]()
    weights = {}
    if isinstance(scheme, additive_position.RelativeBias):
        weights = {"table": b.weight(f"{b.position_module}.weight")}
        params = {"type": "relative", "bucket": lambda away: int(scheme.bucket(torch.tensor(away)))}
    elif isinstance(scheme, additive_position.Alibi):
        params = {"type": "alibi", "slopes": tuple(scheme.slopes)}
    kind, code = "bias" if params else "generic", (type(scheme).bias, "return")
    bias_id = b.add(
        f"{path}.bias",
        kind,
        (b.pos, b.key_pos),
        op.axes,
        op.shape,
        code,
        weights,
        call=scheme.bias,
        **params,
    )
    return b.add_like(
        f"{path}.biased", "add", scores, bias_id, code=(eager_attention, "scores + bias")
    )


@describes(config.Attention)
def attended(
    cfg: config.Attention, b: Builder, path: str, x: str, causal: bool, cross: bool
) -> str:
    """Queries, keys, values; scores, mask, softmax; values summed, heads merged, projected."""
    forward, scores_code = attention.Attention.forward, eager_attention
    H, K, D = cfg.heads, cfg.kv_heads or cfg.heads, cfg.width(b.model.config.dim)
    T, keys_from = b.tokens, b.memory if cross else x
    S = b.plan[keys_from].shape[1]
    joined = (attention.Attention.qkv, "fused_linear(x, self.q, self.k, self.v)")
    memory = (attention.Attention.memory_keys, "self.k(hidden)")
    q = b.linear(
        f"{path}.q_proj", x, f"{path}.q", "HD", (forward, "self.q(x)") if cross else joined
    )
    k, v = (
        b.linear(f"{path}.{n}_proj", keys_from, f"{path}.{n}", "KD", memory if cross else joined)
        for n in "kv"
    )
    begins = (0, 0, 0)
    if not cross:
        sizes = (H * D, K * D, K * D)
        side_by_side = (attention.Attention.qkv, "torch.cat((q, k, v), -1)")
        sides = (("B", "T", "QKV"), (1, T, sum(sizes)), side_by_side)
        q = k = v = b.add(f"{path}.qkv", "concat", (q, k, v), *sides, sizes=sizes)
        begins = (0, H * D, (H + K) * D)

    def split(
        id: str, of: str, start: int, n: int, length: int, axes: tuple[str, ...], name: str = ""
    ) -> str:
        code = (attention.Attention.split, "x.view(")
        section = b.add(
            f"{path}.{id}", "split", (of,), axes, (1, n, length, D), code, begin=start, width=n * D
        )
        return (
            any_norm(b, f"{path}.{name}ed", section, cfg.qk_norm, f"{path}.{name}")
            if name and cfg.qk_norm
            else section
        )

    queries, keys = ("B", "H", "T", "D"), ("B", "K", "S", "D")
    q = split("q_heads", q, begins[0], H, T, queries, "q_norm")
    k = split("k_heads", k, begins[1], K, S, keys, "k_norm")
    if cross:
        q, k = b.name(q, f"{path}.q"), b.name(k, f"{path}.k")
    else:
        q, k = rotated(b, f"{path}.q", q), rotated(b, f"{path}.k", k)
    v = split("v", v, begins[2], K, S, keys)
    square: dict[str, Any] = {"axes": ("B", "H", "T", "S"), "shape": (1, H, T, S)}
    s = b.add(
        f"{path}.qk", "qk", (q, k), code=(scores_code, "fold_groups(q"), group=H // K, **square
    )
    scale = D**-0.5 if cfg.scale is None else cfg.scale
    why = f" = 1 / sqrt({D})" if cfg.scale is None else ""
    s = b.add_like(f"{path}.scaled", "scale", s, code=(scores_code, "* scale"), by=scale, why=why)
    if cfg.softcap is not None:
        s = b.add_like(
            f"{path}.capped", "softcap", s, code=(scores_code, "torch.tanh"), cap=cfg.softcap
        )
    if not cross:
        s = biased(b, path, s)
    rule, see_ahead = config.Full() if cross else cfg.mask, not causal or cross
    may = partial(
        _allowed, build(rule, not see_ahead), 0 if see_ahead else rule.prefix_length, not see_ahead
    )
    k_pos = b.memory_pos if cross else b.key_pos
    code: Code = (scores_code, "masked_fill")
    s = b.add_like(
        f"{path}.scores",
        "mask",
        s,
        b.pos,
        k_pos,
        code=code,
        allowed=may,
        rule=str(rule),
        causal=not see_ahead,
    )
    dtype = next(b.model.parameters()).dtype
    p = b.add_like(
        f"{path}.pattern", "softmax", s, code=(scores_code, "scores.softmax"), dtype=dtype
    )
    z = b.add(
        f"{path}.z",
        "av",
        (p, v),
        queries,
        (1, H, T, D),
        (scores_code, "fold_groups(dropped"),
        group=H // K,
    )
    code = (forward, "z.transpose(1, 2)")
    merged = b.add(f"{path}.merged", "concat", (z,), ("B", "T", "HD"), (1, T, H * D), code, heads=H)
    return b.linear(f"{path}.write", merged, f"{path}.out", "C", (forward, "self.out("))


def _allowed(rule: Any, prefix_length: int, causal: bool, q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """Booleans (B, 1, T, S) from the positions of queries (B, T) and keys (B, S)."""
    q, k = TokenInfo(q_pos[:, :, None]), TokenInfo(k_pos[:, None, :])
    visible: Tensor = allowed(q, k, causal, prefix_length, rule)
    return visible.expand(len(q_pos), q_pos.shape[1], k_pos.shape[1])[:, None]


# ------------------------------------------------------------------------------------------
# feed-forward


@describes(config.MLP)
def mlp(cfg: config.MLP, b: Builder, path: str, x: str) -> str:
    """Up, activation, down."""
    forward = layers.MLP.forward
    x = b.name(x, f"{path}.in")
    pre = b.linear(f"{path}.pre", x, f"{path}.up", "F", (forward, "self.up(x)"))
    hidden = b.add_like(f"{path}.hidden", "act", pre, code=(forward, "self.act("), act=cfg.act)
    return b.linear(f"{path}.write", hidden, f"{path}.down", "C", (forward, "self.down("))


@describes(config.GatedMLP)
def gated_mlp(cfg: config.GatedMLP, b: Builder, path: str, x: str) -> str:
    """Up times an activated gate, down."""
    forward = layers.GatedMLP.forward
    x = b.name(x, f"{path}.in")
    pre = b.linear(f"{path}.pre", x, f"{path}.gate", "F", (forward, "fused_linear("))
    up = b.linear(f"{path}.up", x, f"{path}.up", "F", (forward, "fused_linear("))
    gate = b.add_like(f"{path}.gate", "act", pre, code=(forward, "self.act("), act=cfg.act)
    hidden = b.add_like(f"{path}.hidden", "glu", gate, up, code=(forward, "gate * flow.look"))
    return b.linear(f"{path}.write", hidden, f"{path}.down", "C", (forward, "self.down("))


@describes(config.MoE)
def mixture(cfg: config.MoE, b: Builder, path: str, x: str) -> str:
    """A router, its chosen experts, their sum; and the shared one."""
    forward, activation = experts.MoE.forward, experts.MoE.activation
    k, F, C, T = cfg.top_k, cfg.expert.hidden, b.plan[x].shape[-1], b.tokens
    router = {"weight": b.weight(f"{path}.router.weight")}
    code: Code = (experts.MoE.route, "F.linear(wide, self.router")
    logits = b.add(
        f"{path}.router", "router", (x,), ("B", "T", "E"), (1, T, cfg.experts), code, router
    )
    chooses = (forward, "topk(")
    probs = b.add_like(f"{path}.router_probs", "softmax", logits, code=chooses)
    sides: dict[str, Any] = {"axes": ("B", "T", "k"), "shape": (1, T, k), "code": chooses}
    weight = b.add(
        f"{path}.weight", "topk", (probs,), gives="weight", normalize=cfg.normalize, **sides
    )
    chosen = b.add(f"{path}.chosen", "topk", (probs,), gives="chosen", normalize=False, **sides)

    def product(id: str, of: str, table: str, width: int, axis: str) -> str:
        weights = {"weight": b.weight(f"{path}.{table}.weight", f"{path}.{table}")}
        if f"{path}.{table}_bias" in b.parameters:
            weights["bias"] = b.weight(f"{path}.{table}_bias")
        code, sides = (experts.MoE.product, "F.linear"), ("B", "T", "k", axis)
        return b.add(
            f"{path}.{id}",
            "expert",
            (of, chosen),
            sides,
            (1, T, k, width),
            code,
            weights,
            first=of == x,
        )

    x = b.plan[x].id
    if isinstance(cfg.expert, config.GatedMLP):
        pre, up = product("pre", x, "gate", F, "F"), product("up", x, "up", F, "F")
        gate = b.add_like(
            f"{path}.gate",
            "act",
            pre,
            code=(activation, 'self.act(look("pre", gate'),
            act=cfg.expert.act,
        )
        hidden = b.add_like(f"{path}.hidden", "glu", gate, up, code=(activation, 'look("up", up)'))
    else:
        pre = product("pre", x, "up", F, "F")
        hidden = b.add_like(
            f"{path}.hidden", "act", pre, code=(activation, "self.act("), act=cfg.expert.act
        )
    answers = product("answers", hidden, "down", C, "C")
    code = (experts.MoE.reference, "write.index_add(")
    id = f"{path}.write" if cfg.shared is None else f"{path}.combined"
    write = b.add(id, "combine", (answers, weight), ("B", "T", "C"), (1, T, C), code)
    if cfg.shared is None:
        return write
    shared = describe(cfg.shared, b, f"{path}.shared", x)
    return b.add_like(f"{path}.write", "add", write, shared, code=(forward, "self.shared(x, flow)"))
