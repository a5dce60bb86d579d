"""mT5 and umT5: T5 1.1 in a hundred languages.

mT5 never scales its tied head. Each block of a umT5 has a table of biases; its head is scaled as its
config.json says, whereas transformers 5 scales that of every umT5.
"""

from __future__ import annotations

from typing import Any

from . import t5
from .recipe import Recipe

DEFAULTS: Any = {
    "feed_forward_proj": "gated-gelu",
    "n_positions": 1024,
    "decoder_start_token_id": 0,
}
MT5 = Recipe(
    name="mt5",
    paper="Xue et al. 2021, mT5: A massively multilingual pre-trained text-to-text transformer "
    "(arXiv 2010.11934)",
    sizes=t5.published(
        "M",
        """
        d_model num_layers num_heads d_ff tie_word_embeddings
        small         512  8  6  1024  false
        base          768  12 12 2048  false
        large         1024 24 16 2816  false
        xl            2048 24 32 5120  false
        xxl           4096 24 64 10240 false
        small-encoder 512  8  6  1024  -
        base-encoder  768  12 12 2048  -
        large-encoder 1024 24 16 2816  -
        xl-encoder    2048 24 32 5120  -
        xxl-encoder   4096 24 64 10240 -
        """,
        decoder_start_token_id=None,
        vocab_size=250_112,
        layer_norm_epsilon=1e-05,
    ),
    architectures=(f"M{t5.WHOLE}", f"M{t5.ENCODER}", "MT5Model"),
    model_type="mt5",
    tokenizer="google/mt5-small (Unigram)",
    words=t5.words("M", scales=False, **DEFAULTS),
    weights=t5.table,
)
UMT5 = Recipe(
    name="umt5",
    paper="Chung et al. 2023, UniMax: Fairer and more Effective Language Sampling (arXiv 2304.09151)",
    sizes=t5.published(
        "UM",
        """
        d_model num_layers num_heads d_ff tie_word_embeddings
        small         512  8  6  1024  false
        base          768  12 12 2048  false
        xl            2048 24 32 5120  false
        xxl           4096 24 64 10240 false
        small-encoder 512  8  6  1024  -
        base-encoder  768  12 12 2048  -
        xl-encoder    2048 24 32 5120  -
        xxl-encoder   4096 24 64 10240 -
        """,
        decoder_start_token_id=None,
        vocab_size=256_384,
        layer_norm_epsilon=1e-05,
    ),
    architectures=(f"UM{t5.WHOLE}", f"UM{t5.ENCODER}", "UMT5Model"),
    model_type="umt5",
    tokenizer="google/umt5-small (Unigram)",
    words=t5.words("UM", inside=True, **DEFAULTS),
    weights=t5.table,
)
