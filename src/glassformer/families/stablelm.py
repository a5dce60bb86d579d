"""StableLM 2: a Llama with LayerNorms, a quarter of each head turning."""

from __future__ import annotations

from ..core.config import (
    Attention,
    Block,
    Decoder,
    Embed,
    GatedMLP,
    Head,
    LayerNorm,
    Rotary,
    Stack,
)
from . import decoders
from .decoders import ATTN, BLOCK
from .keys import Key
from .recipe import Recipe


def stablelm(dim: int, depth: int, hidden: int, vocab: int, bias: bool = False) -> Decoder:
    """The shape of StableLM: 32 heads, 4,096 positions."""
    block = Block(Attention(32, bias=bias, out_bias=False), GatedMLP(hidden), LayerNorm())
    stack = Stack(depth, (block,), Rotary(fraction=0.25), last_norm=LayerNorm())
    return Decoder(dim, 4096, Embed(vocab), stack, Head(tied=False), decoders.INIT)


KEYS = decoders.without(
    decoders.keys(
        Key.only("qk_layernorm", False, "a norm of queries here has one gain for all heads"),
        Key.flag("use_qkv_bias", f"{ATTN}.bias", False),
        Key(
            "use_parallel_residual",
            f"{BLOCK}.place",
            lambda raw: "parallel" if raw.flag("use_parallel_residual", False) else "pre",
            lambda place: place == "parallel",
        ),
        context=4096,
        kv_heads=32,
        eps=decoders.eps("layer_norm_eps", 1e-5),
        rotary=decoders.part_rotary(0.25),
        dropouts="hidden_dropout attention_dropout",
    ),
    "head_dim",
)
read_config = decoders.config_reader(stablelm(2560, 32, 6912, 50_304), KEYS)
write_config = decoders.writer(KEYS)

STABLELM = Recipe(
    name="stablelm",
    paper="Bellagente et al. 2024, Stable LM 2 1.6B Technical Report (arXiv 2402.17834)",
    sizes={
        "3b-4e1t": stablelm(2560, 32, 6912, 50_304),
        "2-1.6b": stablelm(2048, 24, 5632, 100_352, bias=True),
    },
    architectures=("StableLmForCausalLM", "StableLmModel"),
    model_type="stablelm",
    tokenizer="stabilityai/stablelm-2-1_6b",
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table({**decoders.ATTENTION, **decoders.GATED, **decoders.NORMS}),
)
