"""The name and shape of every parameter that a config describes, in plain Python: what costs need, without torch.

The modules in ``nn`` are the law; a test holds this page to them for every family and every recipe.
B, C and so on as there: C model dim, E experts, H hidden.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from .. import config as c
from ..errors import UserError

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = dict[str, Shape]
MOST_PARTS = 100_000  # blocks times experts; the largest published model has some 15,000


def countable(model: c.Model) -> None:
    """Raise UserError for more parts than any machine could hold."""
    parts = sum(
        stack.depth * (block.feedforward.experts if isinstance(block.feedforward, c.MoE) else 1)
        for stack in c.stacks(model).values()
        for block in stack.pattern
    )
    if parts > MOST_PARTS:
        raise UserError(f"The config describes {parts:,} blocks and experts; fix its depth or its number of experts.")


def shapes(model: c.Model) -> Shapes | None:
    """Every parameter of a model; None where a part of it is a user's own, whose module alone knows."""
    dim, bodies = model.dim, {}
    for name, part in c.bodies(model).items():
        width = c.embed_dim(model, name)
        bodies[name] = part, width, {} if width == dim else _linear(width, dim)
    try:
        return _join(
            embed=_of(model.embed, c.embed_dim(model)),
            source_embed=_of(getattr(model, "source_embed", None), c.embed_dim(model, "encoder")),
            head=_of(model.head, dim, model.embed.vocab),
            pool=_of(model.pool, dim),
            token_head=_of(getattr(model, "token_head", None), dim),
            **{name: _of(part, dim, width) | _join(project=more) for name, (part, width, more) in bodies.items()},
        )
    except NotImplementedError:
        return None


def _join(**parts: Shapes | Shape) -> Shapes:
    """Parts under their names; an empty one is left out."""
    joined: Shapes = {}
    for name, part in parts.items():
        if isinstance(part, dict):
            joined |= {f"{name}.{inside}": shape for inside, shape in part.items()}
        elif part:
            joined[name] = part
    return joined


def _linear(inputs: int, outputs: int, bias: bool = True) -> Shapes:
    return _join(weight=(outputs, inputs), bias=(outputs,) if bias else ())


def _each(name: str, parts: list[Shapes]) -> Shapes:
    return {f"{name}.{index}.{inside}": shape for index, part in enumerate(parts) for inside, shape in part.items()}


def _of(cfg: Any, C: int, other: int = 0) -> Shapes:
    """Parameters of one part; ``other``: a head's vocabulary, a position's heads, a cell's width, a stack's input."""
    if cfg is not None and not type(cfg).__module__.startswith("glassformer."):
        raise NotImplementedError
    match cfg:
        case None | c.NoPosition() | c.Sinusoidal() | c.Rotary() | c.Alibi():
            return {}
        case c.LayerNorm():
            return _join(weight=(C,), bias=(C,) if cfg.bias else ())
        case c.RMSNorm():
            return _join(weight=(C,) if cfg.gain else ())
        case c.Learned():
            return _join(weight=(cfg.length, C))
        case c.RelativeBias():
            return _join(weight=(cfg.buckets, other))
        case c.Embed():
            segments = _join(weight=(cfg.segments, C)) if cfg.segments else {}
            previous_token_embeddings = _each(
                "lag", [_join(weight=(cfg.vocab + 1, C)) for _ in range(cfg.previous_token_embeddings)]
            )
            return _join(token=_join(weight=(cfg.vocab, C)), segment=segments) | previous_token_embeddings
        case c.Head():
            proj = _join(weight=() if cfg.tied else (other, C), bias=(other,) if cfg.bias else ())
            return _join(transform=_linear(C, C) if cfg.transform else {}, norm=_of(cfg.norm, C), proj=proj)
        case c.Pool():
            return _join(
                transform=_linear(C, C) if cfg.transform else {}, proj=_linear(C, cfg.labels) if cfg.labels else {}
            )
        case c.TokenHead():
            return _join(transform=_linear(C, C) if cfg.transform else {}, proj=_linear(C, cfg.labels))
        case c.Attention():
            size = c.head_dim(cfg, C)
            q, kv = cfg.heads * size, (cfg.kv_heads or cfg.heads) * size
            out = _linear(q, C, cfg.bias if cfg.out_bias is None else cfg.out_bias)
            norm = _of(cfg.qk_norm, size)
            key, value = _linear(C, kv, cfg.bias), _linear(C, kv, cfg.bias)
            return _join(q=_linear(C, q, cfg.bias), k=key, v=value, out=out, q_norm=norm, k_norm=norm)
        case c.MLP() | c.GatedMLP():
            gate = _linear(C, cfg.hidden, cfg.bias) if isinstance(cfg, c.GatedMLP) else {}
            return _join(gate=gate, up=_linear(C, cfg.hidden, cfg.bias), down=_linear(cfg.hidden, C, cfg.bias))
        case c.MoE():
            E, H, gated, bias = cfg.experts, cfg.expert.hidden, isinstance(cfg.expert, c.GatedMLP), cfg.expert.bias
            tables = _join(gate=(E, H, C) if gated else (), up=(E, H, C), down=(E, C, H))
            biases = _join(gate_bias=(E, H) if gated else (), up_bias=(E, H), down_bias=(E, C)) if bias else {}
            noise = _linear(C, E, False) if cfg.noise else {}
            return _join(router=_linear(C, E, False), noise=noise, shared=_of(cfg.shared, C)) | tables | biases
        case c.Block():
            norm, after = _of(cfg.norm, C), cfg.place == "sandwich"
            parts = {"attn": cfg.attention, "cross": cfg.cross, "ffn": cfg.feedforward}
            there = {name: _of(part, C) for name, part in parts.items() if part is not None}
            before = {f"{name}_norm": norm for name in there if name != "ffn" or cfg.place != "parallel"}
            return _join(**there, **before, **{f"{name}_post_norm": norm for name in there if after})
        case c.Stack():
            position = _of(cfg.position, other, cfg.pattern[0].attention.heads)
            made = [_of(block, C) for block in cfg.pattern]
            blocks = _each("blocks", [made[index % len(made)] for index in range(cfg.depth)])
            norms = {"first_norm": _of(cfg.first_norm, other), "last_norm": _of(cfg.last_norm, C)}
            return _join(position=position, **norms) | blocks
        case c.GRU() | c.LSTM():
            wide = (4 if isinstance(cfg, c.LSTM) else 3) * other
            return _join(input=_linear(C, wide), state=_linear(other, wide))
        case c.Summary():
            return _join(whole=_linear(2 * C, C))
        case c.Additive():
            score = _linear(cfg.width, 1, False)
            return _join(whole=_linear(2 * C, C), q=_linear(C, cfg.width), k=_linear(C, cfg.width, False), score=score)
        case c.Recurrent():
            width = C if cfg.causal else C // 2
            inputs = [C if cfg.cross is None else 2 * C] + [C] * (cfg.depth - 1)
            cells = [_of(cfg.cell, size, width) for size in inputs]
            both = _each("cells", cells) | _each("back", [] if cfg.causal else cells)
            return both | _join(cross=_of(cfg.cross, C), merge=_linear(3 * C, C) if cfg.cross is not None else {})
    raise NotImplementedError
