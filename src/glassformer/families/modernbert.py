"""ModernBERT: an encoder of 8,192 tokens, of whose blocks two in three see a window alone and turn
faster; gated, with norms before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.embed_head import Embed, Head
from ..core.config.feedforward import GatedMLP
from ..core.config.model import Attention, Block, Encoder, Model, Stack
from ..core.config.norm import LayerNorm
from ..core.config.position import Rotary
from . import decoders
from .decoders import ATTN, BLOCK, FFN, THEIRS
from .encoders import (
    ANSWERS,
    CHOICE,
    LABELS,
    MASKED,
    TOKENS,
    architectures,
    read_heads,
    write_heads,
)
from .keys import MOST_POSITIONS, Key, read_keys, write_keys
from .mechanisms import FirstBlock
from .names import NameRule, Table, rules
from .recipe import ConfigReader, Recipe

LOCAL, GLOBAL = 10_000.0, 160_000.0  # theta of blocks with a window, and of the others
NORMS = f"{BLOCK}.norm decoder.first_norm decoder.last_norm".split()
ACT = Key.activation("classifier_activation", "", "gelu")
KEYS = decoders.for_encoder(
    decoders.keys(
        Key.only("sparse_prediction", False, "logits here are of all tokens"),
        Key.only("rope_scaling", None, "blocks of two kinds turn by rope_parameters"),
        Key.flag("attention_bias", f"{ATTN}.bias", False),
        Key.flag("mlp_bias", f"{FFN}.bias", False),
        Key.flag("norm_bias", " ".join(f"{norm}.bias" for norm in NORMS), False),
        context=8192,
        act="gelu",
        act_names="hidden_activation",
        eps=decoders.eps("norm_eps", 1e-5, NORMS[1] + ".eps"),
        rotary=Key("", "decoder.position", lambda raw: _positions(raw)[1]),
        dropouts="mlp_dropout attention_dropout embedding_dropout",
    ),
    "num_key_value_heads head_dim tie_word_embeddings",
)


def modernbert(dim: int, depth: int, heads: int, hidden: int) -> Encoder:
    """The shape of ModernBERT as pretrained, for words under masks."""
    norm = LayerNorm(bias=False)
    block = Block(Attention(heads), GatedMLP(hidden, "gelu"), norm)
    stack = Stack(depth, (block,), Rotary(GLOBAL), False, first_norm=norm, last_norm=norm)
    head = Head(bias=True, transform="gelu", norm=norm, transform_bias=False)
    model = Encoder(dim, 8192, Embed(50_368), stack, head, decoders.INIT)
    return _slide(model, ConfigReader({}), Rotary(LOCAL))


def _slide(model: Encoder, raw: ConfigReader, local: Rotary) -> Encoder:
    """The model with its windows, and without a norm before the first attention."""
    every = raw.integer("global_attn_every_n_layers", 3)
    slides = [i % every != 0 for i in range(decoders.stack(model).depth)]
    size = raw.integer("local_attention", 128, most=MOST_POSITIONS) // 2 + 1
    masks = decoders.read_windows(raw, size, slides)
    blocks = decoders.with_local(model, decoders.with_masks(model, masks), local)
    kinds = (FirstBlock, *[Block] * (len(blocks) - 1))
    blocks = [kind(**vars(block)) for kind, block in zip(kinds, blocks, strict=True)]
    return decoders.with_blocks(model, blocks)


def _positions(raw: ConfigReader) -> tuple[Rotary, Rotary]:
    """The schemes of blocks with a window and of the others."""
    thetas = (raw.number("local_rope_theta", LOCAL), raw.number("global_rope_theta", GLOBAL))
    if raw.inside("rope_parameters") is not None:
        return decoders.read_schemes(raw, *thetas)
    return Rotary(thetas[0]), Rotary(thetas[1])


def read_config(raw: ConfigReader) -> Model:
    """A ModernBERT config.json as our config: the architecture says which head there is."""
    model = read_keys(raw, replace(modernbert(768, 1, 12, 1152), head=None), KEYS)
    model = _slide(model, raw, _positions(raw)[0])
    act = ACT.parse(raw)
    layer: Any = {
        "transform": act,
        "transform_bias": raw.flag("classifier_bias", False),
        "norm": decoders.stack(model).first_norm,
    }
    words = Head(bias=raw.flag("decoder_bias", True), **layer)
    dropout = raw.number("classifier_dropout", 0.0, most=0.99)
    model = read_heads(raw, model, words, act, dropout)
    if model.token_head is not None:
        return replace(model, token_head=replace(model.token_head, **layer))
    if model.pool is None:
        return model
    layer["mode"] = raw.choice("classifier_pooling", {"cls": "first", "mean": "mean"}, "cls")
    return replace(model, pool=replace(model.pool, **layer))


def write_config(model: Encoder) -> dict[str, Any]:
    """Our config as a ModernBERT config.json, as far as that can say it."""
    decoders.even_heads(model, "modernbert")
    head: Any = model.head or model.token_head or model.pool
    layer = {}
    if head is not None:
        mean = model.pool is not None and model.pool.mode == "mean"
        layer = {
            "classifier_activation": ACT.write(head.transform),
            "classifier_bias": head.transform_bias,
            "classifier_pooling": "mean" if mean else "cls",
            "decoder_bias": getattr(head, "bias", True),
        }
    schemes = decoders.stack(model).position, decoders.local_scheme(model) or Rotary(LOCAL)
    kinds = ("full_attention", "sliding_attention")
    return {
        **write_heads(model, "ModernBert"),
        **write_keys(model, KEYS),
        **layer,
        "pad_token_id": None,  # a tokenizer's follows, where there is one
        "local_attention": 2 * ((decoders.window_size(model) or 65) - 1),
        "layer_types": decoders.write_windows(model),
        "rope_parameters": dict(zip(kinds, map(decoders.write_scheme, schemes), strict=True)),
    }


_LAYER = {
    "attn_norm": "attn_norm",
    "attn.Wo": "attn.out",
    "mlp_norm": "ffn_norm",
    "mlp.Wo": "ffn.down",
}
_TOKENS = "model.embeddings.tok_embeddings.weight"
_BLOCK = "encoder.blocks.{i}"


def table(model: Encoder) -> Table:
    """The names of the weights, queries, keys and values in one; those of the head by its kind."""
    head = "head" if model.head else "token_head" if model.token_head else "pool"
    layers = {
        "model.embeddings.norm": "encoder.first_norm",
        "model.final_norm": "encoder.last_norm",
        "head.dense": f"{head}.transform",
        "head.norm": f"{head}.norm",
        "decoder" if model.head else "classifier": f"{head}.proj",
        **{f"{THEIRS}.{name}": f"{_BLOCK}.{param_name}" for name, param_name in _LAYER.items()},
    }
    joint = {"attn.Wqkv": ("attn.q", "attn.k", "attn.v"), "mlp.Wi": ("ffn.gate", "ffn.up")}
    fused = [
        NameRule(f"{THEIRS}.{name}.{kind}", tuple(f"{_BLOCK}.{layer}.{kind}" for layer in pieces))
        for name, pieces in joint.items()
        for kind in ("weight", "bias")
    ]
    return Table(
        (NameRule(_TOKENS, "embed.token.weight"), *fused, *rules(layers)),
        copies=(("decoder.weight", _TOKENS),),
        prefix="model.",
    )


MODERNBERT = Recipe(
    name="modernbert",
    paper="Warner et al. 2024, Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder "
    "(arXiv 2412.13663)",
    sizes={"base": modernbert(768, 22, 12, 1152), "large": modernbert(1024, 28, 16, 2624)},
    architectures=architectures("ModernBert", MASKED, LABELS, CHOICE, TOKENS, ANSWERS),
    model_type="modernbert",
    tokenizer="answerdotai/ModernBERT-base (byte-level BPE)",
    read_config=read_config,
    write_config=write_config,
    weights=table,
    bare=("ModernBertModel",),
)
