"""GPT-J and CodeGen: attention and feed-forward side by side, neighbouring dimensions of a head
turned as pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import MLP, Attention, Head, LayerNorm, Model, Rotary
from ..core.errors import need
from . import gpt2
from .decoder_pages import attention, decoder, first_block, stack
from .keys import MOST_HEADS, Key, Section
from .recipe import ConfigReader, Settings, page


def _fraction(raw: ConfigReader) -> float:
    width = raw.integer("n_embd") // raw.integer("n_head", most=MOST_HEADS)
    raw.must(raw.table.get("rotary_dim", 64) is not None, "rotary_dim", "a number of dimensions")
    turned: int = raw.integer("rotary_dim", 64)
    raw.must(turned <= width, "rotary_dim", f"at most the width of a head ({width})")
    return turned / float(width)


def _write_turned(model: Model) -> Settings:
    position: Any = stack(model).position
    need(isinstance(position, Rotary), "The gptj layout holds only rotary positions.")
    width = first_block(model).attention.width(model.dim)
    return {"rotary_dim": round(width * position.fraction)}


WORDS = gpt2.words(
    decoder(
        Attention(1),
        MLP(1, bias=True),
        LayerNorm(),
        Rotary(interleaved=True),
        Head(tied=False, bias=True),
        "parallel",
    ),
    Key("", "position.fraction", _fraction),
    gpt2.length(context=2048),
    Section(encode=_write_turned),
    tie_word_embeddings=False,
)

LAYERS = {"attn_norm": "ln_1", "ffn.up": "mlp.fc_in", "ffn.down": "mlp.fc_out"}
page(
    "gptj",
    words=WORDS,
    weights=gpt2.table(
        LAYERS,
        attention("attn", "out_proj"),
    ),
)


def _pieces(raw: ConfigReader) -> None:
    heads = raw.integer("n_head", most=MOST_HEADS)
    raw.must(heads % 4 == 0, "n_head", "a multiple of 4, the pieces of its fused weights")


page(
    "codegen",
    words=replace(WORDS, entries=(Key("", "", _pieces), *WORDS.entries)),
    weights=gpt2.table(
        LAYERS,
        {"attn.out": "attn.out_proj"},
        # four pieces, each with its queries, values and keys
        fused={"attn.q attn.v attn.k": "attn.qkv_proj"},
        axes="(4 3 d) c -> (3 4 d) c",
    ),
)
