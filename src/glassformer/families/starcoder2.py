"""StarCoder2: LayerNorm, few key-value heads, a sliding window, biases, a plain GELU
feed-forward."""

from __future__ import annotations

from dataclasses import replace

from ..core.config import MLP, Attention, Block, Decoder, Head, Init, LayerNorm, Rotary, Window
from .decoder_pages import ATTENTION, NORMS, decoder, table, window, words
from .keys import only
from .recipe import Recipe


def starcoder2(
    dim: int, depth: int, kv_heads: int, theta: float, std: float, tied: bool = True
) -> Decoder:
    """The shape of StarCoder2: heads of 128, windows of 4,096, 49,152 tokens, 16,384 positions."""
    attention = Attention(dim // 128, kv_heads, bias=True, mask=Window(4096))
    block = Block(attention, MLP(4 * dim, bias=True), LayerNorm())
    model = decoder(dim, depth, 16_384, 49_152, block, Rotary(theta), Head(tied=tied), dropout=0.1)
    return replace(model, init=Init(std, std, "plain"))


WORDS = words(
    starcoder2(3072, 30, 2, 1e5, 0.02),
    only("norm_type", "layer_norm", "only LayerNorm is published"),
    only("mlp_type", "default", "only the plain feed-forward is published"),
    window(),
    dropouts="residual_dropout embedding_dropout attention_dropout",
    max_position_embeddings=4096,
    num_key_value_heads=2,
    tie_word_embeddings=True,
    hidden_act="gelu_pytorch_tanh",
    norm_epsilon=1e-5,
    use_bias=(True, "attention.bias feedforward.bias"),
)

STARCODER2 = Recipe(
    name="starcoder2",
    paper="Lozhkov et al. 2024, StarCoder 2 and The Stack v2: The Next Generation (arXiv "
    "2402.19173)",
    sizes={
        "3b": starcoder2(3072, 30, 2, 999_999.4420358813, 0.018042),
        "7b": starcoder2(4608, 32, 4, 1e6, 0.018042),
        "15b": starcoder2(6144, 40, 4, 1e5, 0.01275, tied=False),
    },
    tokenizer="bigcode/starcoder2-3b",
    words=WORDS,
    family="Starcoder2",
    weights=table(ATTENTION, NORMS, {"ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"}),
)
