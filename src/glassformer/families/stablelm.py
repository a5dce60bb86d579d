"""StableLM 2: a Llama with LayerNorms, a quarter of each head turning."""

from __future__ import annotations

from ..core.config import Attention, LayerNorm
from .decoder_pages import LLAMA_TABLE, decoder, rotary, words
from .keys import Key
from .recipe import page

page(
    "stablelm",
    words=words(
        decoder(Attention(1, out_bias=False), norm=LayerNorm()),
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
    ),
    weights=LLAMA_TABLE,
)
