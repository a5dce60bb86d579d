"""MPT: ALiBi in place of positions, no bias anywhere, the exact GELU.

A text may be longer than ``max_seq_len``: ALiBi falls on at the same slopes, as in transformers with a
larger number there. transformers itself makes biases of so many tokens alone, and fails.
"""

from __future__ import annotations

from ..core.config import MLP, Alibi, Attention, LayerNorm
from . import gpt2
from .decoder_pages import QKV, decoder
from .keys import Section, keys, read_keys, write_keys
from .recipe import ConfigReader, page

# "learned_pos_emb" beside it says nothing: ALiBi takes its place
ATTENTION = keys(softmax_scale=(None, "attention.scale"))


page(
    "mpt",
    words=gpt2.words(
        decoder(Attention(1), MLP(1, "gelu"), LayerNorm(bias=False), Alibi()),
        gpt2.wide("d_model"),
        gpt2.length("max_seq_len", 2048),
        gpt2.fixed_act("gelu", "mpt"),
        Section(
            lambda raw, model: read_keys(
                raw.inside("attn_config") or ConfigReader({}, raw.source), model, ATTENTION
            ),
            lambda model: {"attn_config": write_keys(model, ATTENTION)},
        ),
        without="activation_function",
        needed="d_model n_layers n_heads",
        dropouts="resid_pdrop emb_pdrop",
    ),
    weights=gpt2.table(
        {
            "attn_norm": "norm_1",
            "ffn_norm": "norm_2",
            QKV: "attn.Wqkv",
            "attn.out": "attn.out_proj",
            "ffn.up": "ffn.up_proj",
            "ffn.down": "ffn.down_proj",
        },
        layer="transformer.blocks.{i}",
        last_norm="norm_f",
    ),
)
