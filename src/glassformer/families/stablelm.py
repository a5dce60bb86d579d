"""StableLM 2: a Llama with LayerNorms, a quarter of each head turning."""

from __future__ import annotations

from ..core.config import Attention, Block, Decoder, GatedMLP, LayerNorm, Rotary
from .decoder_pages import LLAMA_TABLE, decoder, rotary, words
from .keys import Key, only
from .recipe import Recipe


def stablelm(dim: int, depth: int, hidden: int, vocab: int, bias: bool = False) -> Decoder:
    """The shape of StableLM: 32 heads, 4,096 positions."""
    block = Block(Attention(32, bias=bias, out_bias=False), GatedMLP(hidden), LayerNorm())
    return decoder(dim, depth, 4096, vocab, block, Rotary(fraction=0.25))


WORDS = words(
    stablelm(2560, 32, 6912, 50_304),
    only("qk_layernorm", False, "a norm of queries here has one gain for all heads"),
    Key(
        "use_parallel_residual",
        "place",
        lambda raw: "parallel" if raw.flag("use_parallel_residual", False) else "pre",
        lambda place: place == "parallel",
    ),
    rotary(fraction=0.25),
    without="head_dim",
    dropouts="hidden_dropout attention_dropout",
    max_position_embeddings=4096,
    num_key_value_heads=32,
    layer_norm_eps=1e-5,
    use_qkv_bias=(False, "attention.bias"),
)

STABLELM = Recipe(
    name="stablelm",
    paper="Bellagente et al. 2024, Stable LM 2 1.6B Technical Report (arXiv 2402.17834)",
    sizes={
        "3b-4e1t": stablelm(2560, 32, 6912, 50_304),
        "2-1.6b": stablelm(2048, 24, 5632, 100_352, bias=True),
    },
    tokenizer="stabilityai/stablelm-2-1_6b",
    words=WORDS,
    family="StableLm",
    weights=LLAMA_TABLE,
)
