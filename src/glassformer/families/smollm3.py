"""SmolLM3: a Llama whose every fourth block knows no positions."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.config import (
    NoPosition,
)
from .decoder_pages import (
    LLAMA_TABLE,
    LayerChoice,
    decoder,
    read_turning,
    read_windows,
    rotary,
    variant,
    words,
)
from .recipe import ConfigReader, Settings, page


def _still(raw: ConfigReader, depth: int) -> list[bool]:
    """True for each block that knows no positions; none slides a window."""
    read_windows(raw, None, [False] * depth)
    return [not turns for turns in read_turning(raw, depth)]


def _write_still(still: Sequence[bool]) -> Settings:
    return {"no_rope_layers": [int(not is_still) for is_still in still]}


page(
    "smollm3",
    words=words(
        decoder(),
        rotary(2e6),
        variant("position", NoPosition(), LayerChoice(_still, _write_still)),
        max_position_embeddings=32_768,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        attention_bias=False,
        mlp_bias=False,
    ),
    weights=LLAMA_TABLE,
)
