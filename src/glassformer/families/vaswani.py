"""The Transformer of 2017: encoder and decoder, norms after, sines for positions, one table for all
three ends.

How it was trained stands in a run file: ``label_smoothing = 0.1``, a schedule of the type
``InverseSqrt`` with 4,000 steps of warmup, AdamW with betas 0.9 and 0.98; the paper averages the
last checkpoints and searches with 4 beams.

Its published layout is transformers' Marian, whose sines come before the cosines (``halves``); the
paper, and so the sizes here, lets them take turns. Marian itself, tensor2tensor and OpenNMT-tf also
space the waves in another way, which no published layout can say: ``Sinusoidal`` has them all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import serial
from ..core.config.embed_head import Embed, Head
from ..core.config.feedforward import MLP
from ..core.config.init import Init
from ..core.config.model import Attention, Block, EncoderDecoder, Model, Stack
from ..core.config.norm import LayerNorm
from ..core.config.position import Position, Sinusoidal
from .keys import (
    MOST_TOKENS,
    Key,
    fill,
    key,
    keys,
    only,
    read_keys,
    read_start,
    write_keys,
    write_start,
)
from .names import NameRule, Table, rules
from .recipe import ConfigReader, Recipe, Settings


def vaswani(
    dim: int, depth: int, heads: int, hidden: int, vocab: int, dropout: float
) -> EncoderDecoder:
    """The paper's shape: biases everywhere but in the head, embeddings scaled by sqrt(dim)."""
    block = Block(Attention(heads, bias=True), MLP(hidden, "relu", bias=True), LayerNorm(), "post")
    init, embed = Init(None, dim**-0.5, "plain"), Embed(vocab, scale=dim**0.5)
    return pair(dim, 1024, embed, (depth, depth), block, Sinusoidal(), init=init, dropout=dropout)


def pair(
    dim: int,
    context: int,
    embed: Embed,
    depths: tuple[int, int],
    block: Block,
    position: Position,
    head: Head = Head(),
    init: Init = Init(0.02, 0.02, "plain"),
    **stack: Any,
) -> EncoderDecoder:
    """An encoder and a decoder of the same blocks, which look across as they look back."""
    encoder = Stack(depths[0], (block,), position, causal=False, **stack)
    crossed = replace(block, cross=block.attention)
    decoder = Stack(depths[1], (crossed,), position, **stack)
    return EncoderDecoder(dim, context, embed, encoder, decoder, head, init)


BOTH_SIDES = keys(
    "d_model vocab_size",
    max_position_embeddings=1024,
    dropout=key("dropout attention_dropout", 0.1, "dropout"),
    init_std=0.02,
    encoder_layers=(12, "encoder.depth"),
    decoder_layers=(12, "decoder.depth"),
    encoder_attention_heads=(16, "encoder.pattern.attention.heads"),
    decoder_attention_heads=(16, "decoder.pattern.attention.heads cross.heads"),
    encoder_ffn_dim=(4096, "encoder.pattern.feedforward.hidden"),
    decoder_ffn_dim=(4096, "decoder.pattern.feedforward.hidden"),
)


def scale_key(default: bool) -> Key:
    """Embeddings multiplied by sqrt(dim), or not; ``default`` where the file says nothing."""

    def scale(raw: ConfigReader) -> float:
        dim: float = raw.integer("d_model")
        return dim**0.5 if raw.flag("scale_embedding", default) else 1.0

    return Key("scale_embedding", "embed.scale", scale, lambda factor: factor != 1.0)


KEYS = (
    only("share_encoder_decoder_embeddings", True, "both sides share one table here"),
    only("tie_word_embeddings", True, "the head shares that table too"),
    only("normalize_before", False, "norms come after here"),
    only("normalize_embedding", False, "embeddings are not normed here"),
    only("add_final_layer_norm", False, "the stacks end without a norm here"),
    only("static_position_embeddings", True, "positions are sines here"),
    *BOTH_SIDES,
    scale_key(False),
    # head_bias is a word of our own
    *keys(activation_function="gelu", head_bias=(True, "head.bias")),
)


def read_config(raw: ConfigReader) -> Any:
    """A Marian config.json as our config; ``dropout`` is the stacks' one dropout."""
    raw.only(
        "decoder_vocab_size",
        raw.integer("vocab_size", most=MOST_TOKENS),
        "both sides share one vocabulary here",
    )
    sines = fill(vaswani(64, 1, 1, 1, 1, 0.1), [("position.halves", True)])
    model = read_keys(raw, sines, KEYS)
    return replace(model, start=read_start(raw))


def write_config(model: Model) -> Settings:
    """Our config as a Marian config.json, as far as that can say it."""
    raw = {
        **write_keys(model, KEYS),
        **write_start(model),
        "tie_word_embeddings": True,
        "share_encoder_decoder_embeddings": True,
    }
    return {name: value for name, value in raw.items() if (name, value) != ("head_bias", True)}


def layout(model: Model) -> Model:
    """The same model with a bias in its head: what the published files hold."""
    return serial.change(model, {"head.bias": True})


def _rules(stack: str) -> tuple[NameRule, ...]:
    attention = {f"{name}_proj": name for name in ("q", "k", "v", "out")}
    names = {"fc1": "ffn.up", "fc2": "ffn.down", "final_layer_norm": "ffn_norm"}
    for file_name, param_name in (("self_attn", "attn"), ("encoder_attn", "cross")):
        names |= {f"{file_name}.{a}": f"{param_name}.{b}" for a, b in attention.items()}
        names[f"{file_name}_layer_norm"] = f"{param_name}_norm"
    return rules(
        {f"model.{stack}.layers.{{i}}.{a}": f"{stack}.blocks.{{i}}.{b}" for a, b in names.items()}
    )


def are_sines(table: Any) -> bool:
    """True where a table (position, width) holds the sines of its positions, then their cosines."""
    import torch

    if table.ndim != 2 or not table.is_floating_point():
        return False
    count, width = table.shape
    waves = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(count, dtype=torch.float64)[:, None] * waves
    expected = torch.cat((angle.sin(), angle.cos()), -1)[:, :width]
    error = (table.double() - expected).abs().amax()
    return bool(error <= 1e-4 + torch.finfo(table.dtype).eps)


SIDES = ("encoder", "decoder")
_POSITIONS = tuple(f"model.{side}.embed_positions.weight" for side in SIDES)
_SHARED = "model.shared.weight"
_TWINS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")


def pair_table(*layers: NameRule, sines: bool = True, prefix: str = "") -> Table:
    """The names of Marian's weights and those of its kin, ``layers`` what the family has besides."""
    return Table(
        (
            NameRule(_SHARED, "embed.token.weight"),
            *_rules("encoder"),
            *_rules("decoder"),
            *layers,
            NameRule("final_logits_bias", "head.proj.bias", unsqueeze=True),
        ),
        ignore=_POSITIONS if sines else (),
        constants=tuple((name, are_sines) for name in _POSITIONS if sines),
        copies=tuple((name, _SHARED) for name in (*_TWINS, "lm_head.weight")),
        prefix=prefix,
        renamed=tuple((name, _SHARED) for name in _TWINS),
    )


VASWANI = Recipe(
    name="vaswani",
    paper="Vaswani et al. 2017, Attention Is All You Need; Junczys-Dowmunt et al. 2018, Marian "
    "(the layout)",
    sizes={
        # Wu et al. 2021 (arXiv 2105.14462), for Multi30k
        "tiny": vaswani(128, 4, 4, 256, 10_000, 0.3),
        "base": vaswani(512, 6, 8, 2048, 37_000, 0.1),
        "big": vaswani(1024, 6, 16, 4096, 37_000, 0.3),
    },
    architectures=("MarianMTModel",),
    model_type="marian",
    tokenizer="train your own, one for both languages",
    checkpoint="Helsinki-NLP/opus-mt-en-de",
    read_config=read_config,
    write_config=write_config,
    weights=pair_table(),
    layout=layout,
)
