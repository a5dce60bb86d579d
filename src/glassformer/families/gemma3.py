"""Gemma 3 for text: a Gemma 2 with normed queries and keys, without caps; five of six blocks slide a
window and turn faster."""

from __future__ import annotations

from ..core.config import Attention, Rotary
from . import gemma
from .decoder_pages import (
    ATTENTION,
    GATED,
    QK_NORMS,
    decoder,
    local_scheme,
    read_rotary,
    read_schemes,
    table,
    turned,
    windows,
    words,
)
from .keys import Section, key
from .recipe import ConfigReader, page

LOCAL, GLOBAL = 10_000.0, 1_000_000.0  # theta of blocks with a window, and of the others


def _positions(raw: ConfigReader) -> tuple[Rotary, Rotary]:
    """The schemes of blocks with a window and of the others."""
    schemes = read_schemes(raw, LOCAL, GLOBAL)
    return schemes or (
        Rotary(raw.number("rope_local_base_freq", LOCAL, least=1.0)),
        read_rotary(raw, GLOBAL),
    )


page(
    "gemma3",
    words=words(
        decoder(Attention(1, qk_norm=gemma.NORM), norm=gemma.NORM, place="sandwich"),
        key("hidden_activation", "gelu_pytorch_tanh"),
        *gemma.SHARED,
        gemma.QUERY_SCALE,
        key("final_logit_softcapping", None, "head.softcap"),
        turned(lambda raw: _positions(raw)[1]),
        Section(encode=lambda model: {"rope_local_base_freq": local_scheme(model, LOCAL).theta}),
        windows(every=6, word="sliding_window_pattern", schemes=_positions),
        even="gemma3",
        max_position_embeddings=131_072,
        num_key_value_heads=4,
        head_dim=256,
        tie_word_embeddings=True,
    ),
    weights=table(ATTENTION, GATED, QK_NORMS, gemma.SANDWICH),
)
