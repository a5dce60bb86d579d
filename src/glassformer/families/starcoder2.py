"""StarCoder2: LayerNorm, few key-value heads, a sliding window, biases, a plain GELU
feed-forward."""

from __future__ import annotations

from .decoder_pages import ATTENTION, GPT2_LAYERS, NORMS, decoder, table, window, words
from .recipe import page

page(
    "starcoder2",
    words=words(
        decoder(*GPT2_LAYERS),
        window(),
        dropouts="residual_dropout embedding_dropout attention_dropout",
        max_position_embeddings=4096,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        hidden_act="gelu_pytorch_tanh",
        norm_epsilon=1e-5,
        use_bias=(True, "attention.bias feedforward.bias"),
    ),
    weights=table(ATTENTION, NORMS, {"ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"}),
)
