"""GPT-NeoX, whose shape Pythia has: attention and feed-forward side by side, each with a norm."""

from __future__ import annotations

from typing import Any

from ..core.config import MLP, Attention, Block, Decoder, LayerNorm, Model, Rotary
from ..core.errors import need
from . import gpt2
from .decoder_pages import (
    NORMS,
    decoder,
    first_block,
    read_rotary,
    stack,
    turned,
    words,
    write_scaling,
)
from .keys import Key, Section
from .names import Table
from .recipe import ConfigReader, Recipe, Settings


def gpt_neox(dim: int, depth: int, heads: int, vocab: int = 50_304) -> Decoder:
    """The shape of GPT-NeoX: a quarter of each head turns; 2,048 positions."""
    attention, mlp = Attention(heads, bias=True), MLP(4 * dim, "gelu", bias=True)
    block = Block(attention, mlp, LayerNorm(), place="parallel_norms")
    return decoder(dim, depth, 2048, vocab, block, Rotary(fraction=0.25))


def _position(raw: ConfigReader) -> Rotary:
    """Version 4 of transformers calls the numbers ``rotary_emb_base`` and ``rotary_pct``."""
    base, share = raw.number("rotary_emb_base", 10_000.0), raw.number("rotary_pct", 0.25)
    words = {"rope_theta": base, "partial_rotary_factor": share}
    return read_rotary(ConfigReader({**raw.table, **words}, raw.source), fraction=share)


def _write_position(model: Model) -> Settings:
    position: Any = stack(model).position
    need(isinstance(position, Rotary), "The gpt_neox layout holds only rotary positions.")
    return {
        "rotary_emb_base": position.theta,
        "rotary_pct": position.fraction,
        "rope_scaling": write_scaling(position.scaling),
    }


WORDS = words(
    gpt_neox(512, 6, 8),
    Key(
        "use_parallel_residual",
        "place",
        lambda raw: "parallel_norms" if raw.flag("use_parallel_residual", True) else "pre",
        lambda place: place == "parallel_norms",
    ),
    turned(_position),
    without="head_dim num_key_value_heads",
    dropouts="hidden_dropout attention_dropout",
    rope=Section(encode=_write_position),
    max_position_embeddings=2048,
    hidden_act="gelu",
    layer_norm_eps=1e-5,
    attention_bias=True,
)
LAYER = "gpt_neox.layers.{i}"


def weights(model: Model) -> Table:
    """The table of the model's weights: each head's queries, keys and values lie side by side."""
    fused = gpt2.fused(
        "attention.query_key_value",
        layer=LAYER,
        axes="(h 3 d) c -> (3 h d) c",
        heads=first_block(model).attention.heads,
    )
    return gpt2.table(
        NORMS,
        gpt2.DENSE,
        {"attn.out": "attention.dense"},
        layer=LAYER,
        token="embed_in",
        last_norm="final_layer_norm",
        prefix="gpt_neox.",
        head="embed_out",
        more=fused,
    )


GPT_NEOX = Recipe(
    name="gpt_neox",
    paper="Black et al. 2022, GPT-NeoX-20B (arXiv 2204.06745); Biderman et al. 2023, Pythia (arXiv "
    "2304.01373)",
    sizes={
        "pythia-14m": gpt_neox(128, 6, 4),
        "pythia-70m": gpt_neox(512, 6, 8),
        "pythia-160m": gpt_neox(768, 12, 12),
        "pythia-410m": gpt_neox(1024, 24, 16),
        "pythia-1b": gpt_neox(2048, 16, 8),
        "pythia-1.4b": gpt_neox(2048, 24, 16),
        "pythia-2.8b": gpt_neox(2560, 32, 32),
        "pythia-6.9b": gpt_neox(4096, 32, 32, vocab=50_432),
        "pythia-12b": gpt_neox(5120, 36, 40, vocab=50_688),
    },
    tokenizer="EleutherAI/pythia-70m",
    words=WORDS,
    family="GPTNeoX",
    weights=weights,
)
