"""GPT-BigCode (SantaCoder, StarCoder): a GPT-2 whose heads share one head of keys and values."""

from __future__ import annotations

from ..core.config import Model
from ..core.errors import need
from . import gpt2
from .decoder_pages import QKV, first_block
from .keys import Key, Section
from .names import Table
from .recipe import Settings, page


def _shares(model: Model) -> bool:
    attention = first_block(model).attention
    return attention.kv_heads == 1 and attention.heads > 1


def _write_heads(model: Model) -> Settings:
    attention, shared = first_block(model).attention, _shares(model)
    need(
        shared or attention.kv_heads in (None, attention.heads),
        f"The gpt_bigcode layout holds 1 or {attention.heads} heads of keys and values.",
    )
    return {"multi_query": shared}


def weights(model: Model) -> Table:
    """The table of the model's weights: where each head has keys of its own, it has all three."""
    axes = "" if _shares(model) else "(h 3 d) c -> (3 h d) c"
    heads = first_block(model).attention.heads
    return gpt2.table(gpt2.NORMS, gpt2.MATRICES, fused={QKV: "attn.c_attn"}, axes=axes, heads=heads)


page(
    "gpt_bigcode",
    words=gpt2.words(
        gpt2.SHAPE,
        Key("", "attention.kv_heads", lambda raw: 1 if raw.flag("multi_query", True) else None),
        Section(encode=_write_heads),
        dropouts="resid_pdrop attn_pdrop embd_pdrop",
        dropout=0.1,
        activation_function="gelu_pytorch_tanh",
    ),
    weights=weights,
)
