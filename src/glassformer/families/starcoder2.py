"""StarCoder2: LayerNorm, few key-value heads, a sliding window, biases, a plain GELU
feed-forward."""

from __future__ import annotations

from ..core.config import MLP, Attention, Block, LayerNorm, Rotary
from .decoder_pages import ATTENTION, NORMS, decoder, table, window, words
from .keys import only
from .recipe import Recipe, sizes

WORDS = words(
    decoder(Block(Attention(1, bias=True), MLP(1, bias=True), LayerNorm()), Rotary()),
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
    sizes=sizes(
        """
        hidden_size num_hidden_layers num_attention_heads intermediate_size initializer_range \
        rope_theta num_key_value_heads tie_word_embeddings
        3b  3072 30 24 12288 0.018042 999999.4420358813 - -
        7b  4608 32 36 18432 0.018042 1000000.0         4 -
        15b 6144 40 48 24576 0.01275  100000.0          4 false
        """,
        max_position_embeddings=16_384,
        vocab_size=49_152,
        residual_dropout=0.1,
        sliding_window=4096,
    ),
    tokenizer="bigcode/starcoder2-3b",
    words=WORDS,
    family="Starcoder2",
    weights=table(ATTENTION, NORMS, {"ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"}),
)
