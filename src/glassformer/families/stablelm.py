"""StableLM 2: a Llama with LayerNorms, a quarter of each head turning."""

from __future__ import annotations

from ..core.config import Attention, Block, GatedMLP, LayerNorm, Rotary
from .decoder_pages import LLAMA_TABLE, decoder, rotary, words
from .keys import Key, only
from .recipe import Recipe, sizes

WORDS = words(
    decoder(Block(Attention(1, out_bias=False), GatedMLP(1), LayerNorm()), Rotary()),
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
    sizes=sizes(
        """
        hidden_size num_hidden_layers intermediate_size vocab_size use_qkv_bias
        3b-4e1t 2560 32 6912 50304  -
        2-1.6b  2048 24 5632 100352 true
        """,
        num_attention_heads=32,
    ),
    tokenizer="stabilityai/stablelm-2-1_6b",
    words=WORDS,
    family="StableLm",
    weights=LLAMA_TABLE,
)
