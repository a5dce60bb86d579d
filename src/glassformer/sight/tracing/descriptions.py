"""What the modules of ``nn/`` compute, as operations: one function beside each config type
(recurrent.py has the rest).

A description says again, in small steps with names, what a module's ``forward`` says; the law of
``tests/sight/tracing/test_plan.py`` holds the two together, number by number.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from ...core import config
from ...core.nn import model
from ...core.nn.layers import Embed, Head
from ...tasks import pool
from .plan import Builder, can_describe, describe, describes
from .sublayers import any_norm, plain_flow, position_embedding

# --------------------------------------------------------------------------------------- the whole
# model


@describes(config.Decoder)
def decoder(cfg: config.Decoder, b: Builder) -> str:
    """Tokens to logits."""
    leaves(b)
    return heads(cfg, b, body(cfg, b, "decoder"))


@describes(config.Encoder)
def encoder(cfg: config.Encoder, b: Builder) -> str:
    """Tokens to logits, labels or vectors."""
    leaves(b)
    return heads(cfg, b, body(cfg, b, "encoder"))


@describes(config.EncoderDecoder)
def encoder_decoder(cfg: config.EncoderDecoder, b: Builder) -> str:
    """Source to memory, tokens and memory to logits."""
    tokens, b.tokens = b.tokens, b.source or 0
    b.ids, b.pos, b.key_pos = "source", "source_pos", "source_pos.keys"
    leaves(b)
    b.memory = body(cfg, b, "encoder", "source_embed")
    b.memory_pos = b.key_pos
    b.tokens, b.ids, b.pos, b.key_pos = tokens, "tokens", "pos", "pos.keys"
    leaves(b)
    return heads(cfg, b, body(cfg, b, "decoder"))


def leaves(b: Builder) -> None:
    """Token ids and their positions, as queries and as keys."""
    for name, axis in ((b.ids, "T"), (b.pos, "T"), (b.key_pos, "S")):
        b.add(name, "leaf", (), ("B", axis), (1, b.tokens))


def body(cfg: config.Model, b: Builder, name: str, embed_path: str = "embed") -> str:
    """Embeddings and the encoder or decoder over them."""
    stack = config.bodies(cfg)[name]
    has_source_embed = (
        embed_path == "source_embed" and getattr(cfg, "source_embed", None) is not None
    )
    embed = config.source_embed(cfg) if has_source_embed else cfg.embed
    x = describe(
        embed,
        b,
        embed_path,
        "source_embed" if has_source_embed else "embed",
        config.embed_dim(cfg, name),
    )
    return describe(stack, b, name, x, embed_path)


def heads(cfg: config.Model, b: Builder, x: str) -> str:
    """Pool, labels of tokens and logits, whichever the model has; probabilities end it."""
    if cfg.pool is not None:
        if can_describe(cfg.pool):
            describe(cfg.pool, b, "pool", x)
        else:
            pool_module = b.model.get_submodule("pool")
            vectors = (1, getattr(cfg.pool, "labels", 0) or cfg.dim)
            b.generic(
                "pool.write",
                (x,),
                ("N", "L"),
                vectors,
                pool_module,
                lambda h: pool_module(h, plain_flow(h)),
            )
    token_head = getattr(cfg, "token_head", None)
    if token_head is not None:
        describe(token_head, b, "token_head", x)
    if cfg.head is None:
        return x
    logits = describe(cfg.head, b, "head", x)
    return b.add_like("probs", "softmax", logits, code=(model.Model.finish, "logits"))


# -------------------------------------------------------------------------------------------------
# ends


@describes(config.Embed)
def embed(cfg: config.Embed, b: Builder, path: str, module: str, dim: int) -> str:
    """Rows of tables, added up."""
    code = (Embed.forward, "self.token(tokens)")
    T, axes = b.tokens, ("B", "T", "C")

    def row(id: str, table: str, needle: str, **params: Any) -> str:
        role = {"table": b.weight(f"{module}.{table}.weight")}
        return b.add(
            id, "lookup", (b.ids,), axes, (1, T, dim), (Embed.forward, needle), role, **params
        )

    x = row(f"{path}.token", "token", "self.token(tokens)")
    for back in range(1, cfg.previous_token_embeddings + 1):
        earlier = row(
            f"{path}.lag.{back - 1}",
            f"lag.{back - 1}",
            "table(previous_tokens(",
            back=back,
            nothing=cfg.vocab,
        )
        x = b.add_like(
            f"{path}.lags.{back}", "add", x, earlier, code=(Embed.forward, "x + flow.look")
        )
    if cfg.scale != 1.0:
        x = b.add_like(
            f"{path}.scaled",
            "scale",
            x,
            code=(Embed.forward, "self.scale"),
            by=cfg.scale,
            rounded=True,
        )
    if cfg.segments:
        segment = row(f"{path}.segment", "segment", "self.segment(", row=0)
        x = b.add_like(f"{path}.with_segment", "add", x, segment, code=code)
    return x


@describes(config.Stack)
def stacked(cfg: config.Stack, b: Builder, path: str, x: str, embed_path: str) -> str:
    """Position, first norm, projection, blocks, last norm."""
    code, dim = (model.Stack.project_input, "self.project("), b.model.config.dim
    b.position = cfg.position
    b.position_module = f"{path}.position"
    x = position_embedding(b, x, embed_path)
    x = (
        b.norm(f"{path}.first_normed", x, cfg.first_norm, f"{path}.first_norm")
        if cfg.first_norm is not None
        else x
    )
    if b.plan[x].shape[-1] != dim:
        x = b.linear(f"{path}.projected", x, f"{path}.project", "C", code)
    x = b.name(x, f"{path}.embed")
    for index in range(cfg.depth):
        config_of_block, place = cfg.block(index), f"{path}.blocks.{index}"
        if can_describe(config_of_block):
            x = describe(config_of_block, b, place, x, cfg.causal)
        else:
            module, stack_position = (
                b.model.get_submodule(place),
                b.model.get_submodule(b.position_module),
            )
            op = b.plan[x]
            call = partial(_call_block, module, stack_position)
            x = b.generic(f"{place}.resid", (x,), op.axes, op.shape, module, call)
    return b.norm(f"{path}.out", x, cfg.last_norm, f"{path}.last_norm")


def _call_block(module: Any, stack_position: Any, x: Tensor) -> Tensor:
    output: Tensor = module(x, plain_flow(x), stack_position, None)
    return output


@describes(config.Head)
def head(cfg: config.Head, b: Builder, path: str, x: str) -> str:
    """(Transform, activation, norm, scale,) a product with the table, (cap)."""
    prepare = Head.prepare
    if cfg.transform is not None:
        x = b.linear(
            f"{path}.dense", x, f"{path}.transform", "C", (prepare, "self.transform(hidden)")
        )
        x = b.add_like(f"{path}.hidden", "act", x, code=(prepare, "self.act("), act=cfg.transform)
    if cfg.norm is not None:
        x = b.norm(f"{path}.normed", x, cfg.norm, f"{path}.norm")
    if cfg.scale != 1.0:
        x = b.add_like(f"{path}.scaled", "scale", x, code=(prepare, "self.scale"), by=cfg.scale)
    table = "embed.token.weight" if cfg.tied else f"{path}.proj.weight"
    weights = {"weight": b.weight(table)} | b.of_module(f"{path}.proj", bias="bias")
    op, id = b.plan[x], "logits" if cfg.softcap is None else f"{path}.uncapped"
    sides = {"axes": ("B", "T", "V"), "shape": (*op.shape[:2], b.parameters[table][0])}
    x = b.add(id, "lm_head", (x,), code=(Head.forward, "self.proj("), weights=weights, **sides)  # type: ignore[arg-type]
    if cfg.softcap is None:
        return x
    return b.add_like(
        "logits", "softcap", x, code=(Head.forward, "self.softcap *"), cap=cfg.softcap
    )


@describes(config.Pool)
def pooled(cfg: config.Pool, b: Builder, path: str, x: str) -> str:
    """One vector for the text, and its labels."""
    lines = {"mean": "index_add_(0, which, states) /", "attention": "shares[:, None]"}
    code, inputs = (pool.Pool.gather, lines.get(cfg.mode, "self.mode ==")), [x]
    if cfg.mode == "attention":
        inputs += (
            b.linear(
                f"{path}.fit", x, f"{path}.query", "1", (pool.Pool.gather, "self.query(states)")
            ),
        )
    x = b.add(
        f"{path}.vector",
        "pool",
        tuple(inputs),
        ("N", "C"),
        (1, b.plan[x].shape[-1]),
        code,
        of=cfg.mode,
    )
    x = transformed(cfg, b, path, x)
    if cfg.normalize:
        x = b.add_like(
            f"{path}.unit", "norm", x, code=(pool.Pool.forward, "normalize"), type="unit"
        )
    return labels(cfg, b, path, x)


@describes(config.TokenHead)
def token_head(cfg: config.TokenHead, b: Builder, path: str, x: str) -> str:
    """Labels for each token."""
    return labels(cfg, b, path, transformed(cfg, b, path, x))


def transformed(cfg: config.Pool | config.TokenHead, b: Builder, path: str, x: str) -> str:
    """A dense layer and its activation, where there is one."""
    if cfg.transform is None:
        return x
    code = (pool.LabelHead.transformed, "self.act(self.transform(x))")
    x = b.linear(f"{path}.dense", x, f"{path}.transform", "C", code)
    return b.add_like(f"{path}.hidden", "act", x, code=code, act=cfg.transform)


def labels(cfg: config.Pool | config.TokenHead, b: Builder, path: str, x: str) -> str:
    """Scores of labels, or the vector itself."""
    if not cfg.labels:
        return b.name(x, f"{path}.write")
    code = (pool.LabelHead.labels, "self.proj(")
    return b.linear(f"{path}.write", x, f"{path}.proj", "L", code, kind="classify")


# -----------------------------------------------------------------------------------------------
# blocks


@describes(config.Block)
def one_block(cfg: config.Block, b: Builder, path: str, x: str, causal: bool) -> str:
    """Sublayers on the residual stream, with their norms where ``place`` says."""
    sublayers = [("attn", cfg.attention), ("cross", cfg.cross), ("ffn", cfg.feedforward)]
    if cfg.place == "parallel":
        writes = []
        for name, sublayer_cfg in (sublayers[0], sublayers[2]):
            normed = any_norm(b, f"{path}.{name}.in", x, cfg.norm, f"{path}.attn_norm")
            writes.append(sublayer(sublayer_cfg, b, f"{path}.{name}", normed, causal))
        return b.add_like(
            f"{path}.resid",
            "residual",
            x,
            *writes,
            code=(model.Block.forward, "x + self.drop(self.attn("),
        )
    last = "ffn" if cfg.feedforward is not None else "cross" if cfg.cross is not None else "attn"
    for name, sublayer_cfg in sublayers:
        if sublayer_cfg is None:
            continue
        after = (
            {"attn": "mid", "cross": "mid_cross", "ffn": "resid"}[name] if name != last else "resid"
        )
        x = sublayer_residual(cfg, sublayer_cfg, b, path, name, x, causal, after)
    return x


def sublayer_residual(
    cfg: config.Block,
    sublayer_cfg: Any,
    b: Builder,
    path: str,
    name: str,
    x: str,
    causal: bool,
    after: str,
) -> str:
    """x plus what one sublayer writes; ``after`` is the stream's next name."""
    residual, place = model.Block.residual, f"{path}.{name}"
    normed = (
        b.name(x, f"{place}.in")
        if cfg.place == "post"
        else any_norm(b, f"{place}.in", x, cfg.norm, f"{place}_norm")
    )
    write = sublayer(sublayer_cfg, b, place, normed, causal)
    if cfg.place == "post":
        summed = b.add_like(
            f"{path}.{after}_sum", "residual", x, write, code=(residual, "norm(x + self.drop")
        )
        return any_norm(b, f"{path}.{after}", summed, cfg.norm, f"{place}_norm")
    if cfg.place == "sandwich":
        write = any_norm(b, f"{place}.normed_write", write, cfg.norm, f"{place}_post_norm")
    return b.add_like(
        f"{path}.{after}", "residual", x, write, code=(residual, "return x + self.drop(write)")
    )


def sublayer(cfg: Any, b: Builder, path: str, x: str, causal: bool) -> str:
    """Token mixer or feed-forward; a user's own as a closed part."""
    if isinstance(cfg, config.Attention) and can_describe(cfg):
        return describe(cfg, b, path, x, causal, path.endswith(".cross"))
    if can_describe(cfg):
        return describe(cfg, b, path, x)
    module, op = b.model.get_submodule(path), b.plan[x]
    scheme = (b.model.get_submodule(b.position_module),) if path.endswith(".attn") else ()
    return b.generic(
        f"{path}.write",
        (x,),
        op.axes,
        op.shape,
        module,
        lambda h: module(h, plain_flow(h), *scheme),
    )
