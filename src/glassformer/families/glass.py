"""The default for training from scratch: what measured best at small sizes (ablations:
docs/decisions.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..core.config.layers import Embed, GatedMLP, Head, Init, RMSNorm
from ..core.config.model import (
    Attention,
    Block,
    Decoder,
    Encoder,
    EncoderDecoder,
    Model,
    Stack,
)
from ..core.config.position import Rotary
from .pair_pages import pair
from .recipe import page

HEAD = Head(tied=False, softcap=15.0)
INIT = Init(std=None, embed_std=1.0, head_std=0.0, residual="zero")


def _stack(dim: int, depth: int, heads: int, **options: Any) -> Stack:
    norm = RMSNorm(gain=False)
    hidden = -(-dim * 8 // 3 // 8) * 8
    block = Block(Attention(heads, qk_norm=RMSNorm()), GatedMLP(hidden), norm)
    return Stack(depth, (block,), Rotary(), first_norm=norm, last_norm=norm, **options)


def glass(
    dim: int, depth: int, heads: int, context: int, vocab: int, previous_token_embeddings: int = 1
) -> Decoder:
    """Rotary, gated MLP, normalised queries and keys, norms without gains; blocks start as the
    identity, the head at 0.

    The token before goes straight into the embedding too (``previous_token_embeddings``), where the
    vocabulary is small enough for it.
    """
    stack = _stack(dim, depth, heads)
    embed = Embed(vocab, previous_token_embeddings=previous_token_embeddings)
    return Decoder(dim, context, embed, stack, HEAD, INIT)


def glass_qwen3(**sizes: Any) -> Decoder:
    """A glass decoder that Qwen3's layout holds: norms have gains, none stands before the blocks,
    logits are not capped, and the embedding reads one token."""
    model = glass(**sizes)
    stack: Any = model.decoder
    (block,), norm = stack.pattern, RMSNorm()
    pattern = (replace(block, norm=norm),)
    stack = replace(stack, pattern=pattern, first_norm=None, last_norm=norm)
    embed = replace(model.embed, previous_token_embeddings=0)
    return replace(model, embed=embed, decoder=stack, head=Head(tied=False))


def glass_pair(
    dim: int, depth: int, heads: int, hidden: int, context: int, vocab: int, dropout: float
) -> EncoderDecoder:
    """The same blocks in an encoder and a decoder that read one embedding; the head is its table
    too."""
    norm = RMSNorm(gain=False)
    return pair(
        dim,
        context,
        Embed(vocab),
        (depth, depth),
        Block(Attention(heads, qk_norm=norm), GatedMLP(hidden), norm),
        Rotary(),
        Head(scale=dim**-0.5),
        Init(std=None, embed_std=1.0, residual="zero"),
        first_norm=norm,
        last_norm=norm,
        dropout=dropout,
    )


def glass_encoder(
    dim: int, depth: int, heads: int, context: int, vocab: int, dropout: float
) -> Encoder:
    """The same blocks as an encoder, with a head for hidden words."""
    stack = _stack(dim, depth, heads, causal=False, dropout=dropout)
    return Encoder(dim, context, Embed(vocab, segments=2), stack, HEAD, INIT)


SHAPES: dict[str, Callable[..., Model]] = {
    "decoder": glass,
    "qwen3": glass_qwen3,
    "pair": glass_pair,
    "encoder": glass_encoder,
}


def shaped(shape: str, **sizes: Any) -> Model:
    """The model of a shape, of these sizes; a training run sets the vocabulary to its tokenizer's."""
    return SHAPES[shape](**sizes)


page("glass", make=shaped)
