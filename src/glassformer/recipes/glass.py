"""Our own default for training from scratch: what measured best at small sizes, not what is customary."""

from __future__ import annotations

from ..config import MLP, Attention, Block, Decoder, Embed, Head, Init, RMSNorm, Rotary, Stack
from .recipe import Recipe


def glass(dim: int, depth: int, heads: int, context: int, vocab: int) -> Decoder:
    """Rotary, RMSNorm, normalised queries and keys, a squared-ReLU MLP, a tied head; blocks start as the identity."""
    block = Block(Attention(heads, qk_norm=RMSNorm()), MLP(4 * dim, "relu2"), RMSNorm())
    stack = Stack(depth, (block,), Rotary(), last_norm=RMSNorm())
    return Decoder(dim, context, Embed(vocab), stack, Head(tied=True), Init(residual="zero"))


GLASS = Recipe(
    name="glass",
    paper="this library; So et al. 2021 (squared ReLU), Henry et al. 2020 (normalised queries and keys)",
    sizes={  # a training run sets the vocabulary to its tokenizer's
        "1m": glass(128, 4, 4, 256, 256),
        "3m": glass(192, 6, 6, 256, 4096),
        "10m": glass(384, 6, 6, 512, 8192),
        "30m": glass(512, 10, 8, 1024, 16_384),
        "124m": glass(768, 12, 12, 1024, 50_304),
        "350m": glass(1024, 24, 16, 2048, 50_304),
        "1b": glass(2048, 18, 16, 2048, 50_304),
    },
    tokenizer="train your own: characters, bytes or byte-level BPE",
)
