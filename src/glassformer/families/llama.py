"""Llama 2, 3, 3.1 and 3.2: RMSNorm, rotary positions, grouped queries, a SiLU gate, no biases."""

from __future__ import annotations

from typing import Any

from ..core.config.embed_head import Embed, Head
from ..core.config.feedforward import GatedMLP
from ..core.config.model import Attention, Block, Decoder, Model, Stack
from ..core.config.norm import RMSNorm
from ..core.config.position import Rotary
from ..core.config.scaling import Llama3Scaling, RopeScaling
from . import decoders
from .decoders import ATTN, FFN
from .keys import Key
from .recipe import Recipe


def llama2(dim: int, depth: int, heads: int, kv_heads: int, hidden: int) -> Decoder:
    """The shape of Llama 2: 32,000 tokens, 4,096 positions."""
    block = Block(Attention(heads, kv_heads), GatedMLP(hidden), RMSNorm())
    stack = Stack(depth, (block,), Rotary(), last_norm=RMSNorm())
    return Decoder(dim, 4096, Embed(32_000), stack, Head(tied=False), decoders.INIT)


def llama3(
    dim: int,
    depth: int,
    heads: int,
    hidden: int,
    scaling: RopeScaling | None = None,
    tied: bool = False,
) -> Decoder:
    """The shape of Llama 3: 8 key-value heads, 128,256 tokens, 8,192 positions or, with a scaling,
    131,072."""
    block = Block(Attention(heads, 8), GatedMLP(hidden), RMSNorm())
    stack = Stack(depth, (block,), Rotary(500_000.0, scaling=scaling), last_norm=RMSNorm())
    return Decoder(
        dim, 131_072 if scaling else 8192, Embed(128_256), stack, Head(tied=tied), decoders.INIT
    )


def stories(dim: int, depth: int, heads: int, kv_heads: int, hidden: int) -> Decoder:
    """The shape of the TinyStories models of llama2.c: 512 tokens, 512 positions."""
    block = Block(Attention(heads, kv_heads), GatedMLP(hidden), RMSNorm())
    return Decoder(
        dim,
        512,
        Embed(512),
        Stack(depth, (block,), Rotary(), last_norm=RMSNorm()),
        Head(),
        decoders.INIT,
    )


KEYS = decoders.keys(
    Key.flag("attention_bias", f"{ATTN}.bias", False),
    Key.flag("mlp_bias", f"{FFN}.bias", False),
    context=2048,
)
read_config = decoders.config_reader(stories(64, 5, 8, 4, 172), KEYS)


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a Llama config.json, as far as that can say it."""
    decoders.even_heads(model, "llama")
    return decoders.write(model, KEYS)


_31, _32 = Llama3Scaling(8.0), Llama3Scaling(32.0)

LLAMA = Recipe(
    name="llama",
    paper="Touvron et al. 2023, Llama 2; Grattafiori et al. 2024, The Llama 3 Herd of Models "
    "(arXiv 2407.21783)",
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
    checkpoint="HuggingFaceTB/SmolLM2-135M",
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table({**decoders.ATTENTION, **decoders.GATED, **decoders.NORMS}),
)
