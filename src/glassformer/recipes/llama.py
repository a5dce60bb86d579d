"""Llama 2, 3, 3.1 and 3.2: RMSNorm, rotary positions, grouped queries, a SiLU gate, no biases."""

from __future__ import annotations

from typing import Any

from ..config import (
    Attention,
    Block,
    Decoder,
    Embed,
    GatedMLP,
    Head,
    Init,
    LinearStretch,
    Llama3Stretch,
    Model,
    RMSNorm,
    Rotary,
    Stack,
    Stretch,
)
from ..errors import UserError
from .gpt2 import ACTIVATIONS, plain_mlp
from .recipe import Raw, Recipe, Rule, Table

INIT = Init(0.02, 0.02, "plain")
STRETCHES = ("default", "linear", "llama3")


def llama2(dim: int, depth: int, heads: int, kv_heads: int, hidden: int) -> Decoder:
    """The shape of Llama 2: 32,000 tokens, 4,096 positions."""
    block = Block(Attention(heads, kv_heads), GatedMLP(hidden), RMSNorm())
    stack = Stack(depth, (block,), Rotary(), last_norm=RMSNorm())
    return Decoder(dim, 4096, Embed(32_000), stack, Head(tied=False), INIT)


def llama3(
    dim: int, depth: int, heads: int, hidden: int, stretch: Stretch | None = None, tied: bool = False
) -> Decoder:
    """The shape of Llama 3: 8 key-value heads, 128,256 tokens, 8,192 positions or, stretched, 131,072."""
    block = Block(Attention(heads, 8), GatedMLP(hidden), RMSNorm())
    stack = Stack(depth, (block,), Rotary(500_000.0, stretch=stretch), last_norm=RMSNorm())
    return Decoder(dim, 131_072 if stretch else 8192, Embed(128_256), stack, Head(tied=tied), INIT)


def stories(dim: int, depth: int, heads: int, kv_heads: int, hidden: int) -> Decoder:
    """The shape of the TinyStories models of llama2.c: 512 tokens, 512 positions."""
    block = Block(Attention(heads, kv_heads), GatedMLP(hidden), RMSNorm())
    return Decoder(dim, 512, Embed(512), Stack(depth, (block,), Rotary(), last_norm=RMSNorm()), Head(), INIT)


def read(raw: Raw) -> Model:
    """A Llama config.json as our config."""
    raw.only("attention_dropout", 0.0, "dropout here is one number for the whole stack")
    raw.only("partial_rotary_factor", 1.0, "a Llama turns all of each head")
    heads = raw.whole("num_attention_heads", most=1 << 14)
    norm = RMSNorm(raw.number("rms_norm_eps", 1e-6, most=1.0))
    attention = Attention(
        heads,
        raw.whole("num_key_value_heads", heads),
        raw.whole("head_dim", None, most=1 << 14),
        bias=raw.flag("attention_bias", False),
    )
    hidden, act = raw.whole("intermediate_size", most=1 << 22), raw.choice("hidden_act", ACTIVATIONS, "silu")
    block = Block(attention, GatedMLP(hidden, act, raw.flag("mlp_bias", False)), norm)
    stack = Stack(raw.whole("num_hidden_layers", most=2000), (block,), read_rotary(raw), last_norm=norm)
    std = raw.number("initializer_range", 0.02, most=10.0)
    return Decoder(
        raw.whole("hidden_size"),
        raw.whole("max_position_embeddings", 2048, most=1 << 28),
        Embed(raw.whole("vocab_size", most=1 << 24)),
        stack,
        Head(tied=raw.flag("tie_word_embeddings", False)),
        Init(std, std, "plain"),
    )


def read_rotary(raw: Raw) -> Rotary:
    """The rotary positions of ``rope_theta`` and ``rope_scaling``, or of transformers 5's ``rope_parameters``."""
    theta = raw.number("rope_theta", 10_000.0, least=1.0)
    rope = raw.inside("rope_parameters") or raw.inside("rope_scaling")
    if rope is None:
        return Rotary(theta)
    rope.only("partial_rotary_factor", 1.0, "a Llama turns all of each head")
    theta = rope.number("rope_theta", theta, least=1.0)
    kind = rope.value("rope_type", rope.value("type", "default"))
    if kind not in STRETCHES:
        raise UserError(
            f'{rope.source} is "{kind}", which is not built here; this model needs one of {", ".join(STRETCHES)}.'
        )
    if kind == "default":
        return Rotary(theta)
    factor = rope.number("factor", least=1.0)
    if kind == "linear":
        return Rotary(theta, stretch=LinearStretch(factor))
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    rope.must(low < high, "low_freq_factor", f"below high_freq_factor ({high:g})")
    length = rope.whole("original_max_position_embeddings", most=1 << 28)
    return Rotary(theta, stretch=Llama3Stretch(factor, low, high, length))


def write(model: Model) -> dict[str, Any]:
    """Our config as a Llama config.json, as far as that can say it."""
    if not isinstance(model, Decoder):
        raise UserError("The llama layout holds only decoders.")
    block = model.decoder.pattern[0]
    position, attention, mlp = model.decoder.position, block.attention, plain_mlp(block.feedforward)
    if model.dim % attention.heads:
        raise UserError(f"The llama layout needs heads ({attention.heads}) that divide dim ({model.dim}).")
    rotary = position if isinstance(position, Rotary) else Rotary()
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    return {
        "hidden_size": model.dim,
        "num_hidden_layers": model.decoder.depth,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads or attention.heads,
        "head_dim": attention.head_dim or model.dim // attention.heads,
        "intermediate_size": mlp.hidden,
        "max_position_embeddings": model.context,
        "vocab_size": model.embed.vocab,
        "hidden_act": names[mlp.act],
        "rms_norm_eps": block.norm.eps,
        "rope_theta": rotary.theta,
        "rope_scaling": write_stretch(rotary.stretch),
        "attention_bias": attention.bias,
        "mlp_bias": mlp.bias,
        "tie_word_embeddings": model.head.tied,
        "initializer_range": 0.02 if model.init.std is None else model.init.std,
    }


def write_stretch(stretch: Stretch | None) -> dict[str, Any] | None:
    """A stretch as the ``rope_scaling`` table."""
    if stretch is None:
        return None
    if isinstance(stretch, LinearStretch):
        return {"rope_type": "linear", "factor": stretch.factor}
    return {
        "rope_type": "llama3",
        "factor": stretch.factor,
        "low_freq_factor": stretch.low,
        "high_freq_factor": stretch.high,
        "original_max_position_embeddings": stretch.length,
    }


_OURS, _THEIRS = "decoder.blocks.{i}", "model.layers.{i}"
_PARTS = {
    "self_attn.q_proj": "attn.q",
    "self_attn.k_proj": "attn.k",
    "self_attn.v_proj": "attn.v",
    "self_attn.o_proj": "attn.out",
    "mlp.gate_proj": "ffn.gate",
    "mlp.up_proj": "ffn.up",
    "mlp.down_proj": "ffn.down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}

TABLE = Table(
    (
        Rule("model.embed_tokens.weight", "embed.token.weight"),
        *(
            Rule(f"{_THEIRS}.{theirs}.{part}", f"{_OURS}.{ours}.{part}")
            for theirs, ours in _PARTS.items()
            for part in ("weight", "bias")
        ),
        Rule("model.norm.weight", "decoder.last_norm.weight"),
        Rule("lm_head.weight", "head.proj.weight"),
    ),
    ignore=(f"{_THEIRS}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"),  # follows from the config
    copies=(("lm_head.weight", "model.embed_tokens.weight"),),
    prefix="model.",
)

_31, _32 = Llama3Stretch(8.0), Llama3Stretch(32.0)

LLAMA = Recipe(
    name="llama",
    paper="Touvron et al. 2023, Llama 2; Grattafiori et al. 2024, The Llama 3 Herd of Models (arXiv 2407.21783)",
    sizes={
        "2-7b": llama2(4096, 32, 32, 32, 11_008),
        "2-13b": llama2(5120, 40, 40, 40, 13_824),
        "2-70b": llama2(8192, 80, 64, 8, 28_672),
        "3-8b": llama3(4096, 32, 32, 14_336),
        "3-70b": llama3(8192, 80, 64, 28_672),
        "3-405b": llama3(16_384, 126, 128, 53_248, _31),  # published as 3.1 only
        "3.1-8b": llama3(4096, 32, 32, 14_336, _31),
        "3.1-70b": llama3(8192, 80, 64, 28_672, _31),
        "3.1-405b": llama3(16_384, 126, 128, 53_248, _31),
        "3.2-1b": llama3(2048, 16, 32, 8192, _32, tied=True),
        "3.2-3b": llama3(3072, 28, 24, 8192, _32, tied=True),
        "stories260k": stories(64, 5, 8, 4, 172),
    },
    architectures=("LlamaForCausalLM", "LlamaModel"),
    model_type="llama",
    tokenizer="the tokenizer.model beside the published weights",
    read=read,
    write=write,
    weights=TABLE,
)
