"""Our own default for training from scratch: what measured best at small sizes (docs/log.md has the ablations)."""

from __future__ import annotations

from ..config import Attention, Block, Decoder, Embed, GatedMLP, Head, Init, RMSNorm, Rotary, Stack
from .recipe import Recipe


def glass(dim: int, depth: int, heads: int, context: int, vocab: int, lags: int = 1) -> Decoder:
    """Rotary, gated MLP, normalised queries and keys, norms without gains; blocks start as the identity, the head at 0.

    The token before goes straight into the embedding too (``lags``), where the vocabulary is small enough for it.
    """
    norm = RMSNorm(gain=False)
    block = Block(Attention(heads, qk_norm=RMSNorm()), GatedMLP(-(-dim * 8 // 3 // 8) * 8), norm)
    stack = Stack(depth, (block,), Rotary(), first_norm=norm, last_norm=norm)
    init = Init(std=None, embed_std=1.0, head_std=0.0, residual="zero")
    return Decoder(dim, context, Embed(vocab, lags=lags), stack, Head(tied=False, softcap=15.0), init)


GLASS = Recipe(
    name="glass",
    paper="this library; after Jordan et al. 2024 (modded-nanogpt) and Huang et al. 2025 (n-gram inputs)",
    sizes={  # a training run sets the vocabulary to its tokenizer's
        "1m": glass(128, 4, 4, 256, 256),
        "4m": glass(192, 6, 6, 256, 4096),
        "10m": glass(320, 6, 5, 512, 4096),
        "30m": glass(512, 8, 8, 1024, 8192),
        "160m": glass(768, 12, 12, 1024, 50_304, lags=0),
        "400m": glass(1024, 24, 16, 2048, 50_304, lags=0),
        "1b": glass(2048, 18, 16, 2048, 50_304, lags=0),
    },
    tokenizer="train your own: characters, bytes or byte-level BPE",
)
