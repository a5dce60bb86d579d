"""GPT-Neo, whose shape the TinyStories models have: every other block sees a window only, and
scores are not scaled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.config import (
    MLP,
    Attention,
    LayerNorm,
    Learned,
    Window,
)
from . import gpt2
from .decoder_pages import LayerChoice, attention, decoder, variant
from .keys import MOST_BLOCKS
from .recipe import ConfigReader, Settings, page


def _slide(raw: ConfigReader, depth: int) -> list[bool]:
    """``attention_types``: groups of kinds, and how many times each repeats."""
    groups = raw.value("attention_types", [[["global", "local"], 12]])
    spread = _is_grouped(groups)
    kinds = [kind for group, times in groups for kind in group * times] if spread else []
    raw.must(
        len(kinds) == depth,
        "attention_types",
        f'groups such as [["global", "local"], {depth // 2}] for {depth} blocks',
    )
    return [kind == "local" for kind in kinds]


def _is_grouped(groups: Any) -> bool:
    """True for groups of blocks: each names the blocks, and says how many times they repeat."""
    return isinstance(groups, list) and all(
        isinstance(group, list)
        and len(group) == 2
        and isinstance(group[0], list)
        and all(kind in ("global", "local") for kind in group[0])
        and type(group[1]) is int
        and 0 < group[1] <= MOST_BLOCKS
        for group in groups
    )


def _write_kinds(slide: Sequence[bool]) -> Settings:
    return {"attention_types": [[[("global", "local")[is_local] for is_local in slide], 1]]}


page(
    "gpt_neo",
    words=gpt2.words(
        decoder(
            Attention(1, out_bias=True, scale=1.0), MLP(1, bias=True), LayerNorm(), Learned(64)
        ),
        gpt2.wide("hidden_size", "intermediate_size"),
        gpt2.length("max_position_embeddings", 2048),
        variant(
            "attention.mask", Window(256), LayerChoice(_slide, _write_kinds), window_size="size"
        ),
        needed="hidden_size num_layers num_heads",
        dropouts="resid_dropout embed_dropout attention_dropout",
    ),
    weights=gpt2.table(
        gpt2.NORMS,
        gpt2.MATRICES,
        attention("attn.attention", "out_proj"),
    ),
)
