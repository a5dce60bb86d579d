"""EuroBERT: Llama's blocks as an encoder, for words under masks and labels of tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.embed_head import Embed, Head
from ..core.config.feedforward import GatedMLP
from ..core.config.init import Init
from ..core.config.model import Attention, Block, Encoder, Stack
from ..core.config.norm import RMSNorm
from ..core.config.pool import TokenHead
from ..core.config.position import Rotary
from ..core.errors import need
from . import decoders
from .decoders import ATTENTION, GATED, NORMS, read_rotary, write_rope_table
from .encoders import MASKED, TOKENS, architectures, head_name, head_of, read_labels, write_labels
from .keys import MOST_HEADS, Key, keys, only, read_keys, write_keys
from .recipe import ConfigReader, Recipe, Settings


def _kv_heads(raw: ConfigReader) -> Any:
    return raw.integer("num_key_value_heads", None, most=MOST_HEADS)


KEYS = (
    only("pretraining_tp", 1, "matrices lie in one piece here"),
    *keys(
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=Key("num_key_value_heads", "attention.kv_heads", _kv_heads),
        head_dim=None,
        intermediate_size=3072,
        max_position_embeddings=8192,
        vocab_size=128_256,
        hidden_act="silu",
        attention_bias=False,
        mlp_bias=False,
        rms_norm_eps=1e-5,
        attention_dropout=(0.0, "dropout"),
        position=Key("", "position", lambda raw: read_rotary(raw, 10_000.0)),
        initializer_range=0.02,
    ),
)


def eurobert(dim: int, depth: int, heads: int, hidden: int, kv_heads: int | None = None) -> Encoder:
    """The shape of EuroBERT as pretrained, for words under masks."""
    block = Block(Attention(heads, kv_heads), GatedMLP(hidden), RMSNorm(1e-5))
    stack = Stack(depth, (block,), Rotary(250_000.0), causal=False, last_norm=RMSNorm(1e-5))
    return Encoder(dim, 8192, Embed(128_256), stack, Head(tied=False), Init(0.02, 0.02, "plain"))


def read_config(raw: ConfigReader) -> Any:
    """A EuroBERT config.json as our config: the architecture says which head there is."""
    model = read_keys(raw, replace(eurobert(768, 12, 12, 3072), head=None), KEYS)
    head = head_of(raw)
    if head == MASKED:
        bias, tied = raw.flag("mlp_bias", False), raw.flag("tie_word_embeddings", False)
        return replace(model, head=Head(tied=tied, bias=bias))
    return replace(model, token_head=TokenHead(read_labels(raw))) if head == TOKENS else model


def write_config(model: Encoder) -> Settings:
    """Our config as a EuroBERT config.json, as far as that can say it."""
    need(model.pool is None, "The eurobert layout holds no pool; keep it beside the model.")
    head = head_name(model)
    raw = {
        "architectures": [f"EuroBertFor{head}" if head else "EuroBertModel"],
        **write_keys(model, KEYS),
        "pad_token_id": None,  # a tokenizer's follows, where there is one
        **write_rope_table(model, theta_first=True),
    }
    if model.token_head is not None:
        return {**raw, "id2label": write_labels(model)["id2label"]}
    return raw if model.head is None else {**raw, "tie_word_embeddings": model.head.tied}


EUROBERT = Recipe(
    name="eurobert",
    paper="Boizard et al. 2025, EuroBERT: Scaling Multilingual Encoders for European Languages "
    "(arXiv 2503.05500)",
    sizes={
        "210m": eurobert(768, 12, 12, 3072),
        "610m": eurobert(1152, 26, 18, 4096, 6),
        "2.1b": eurobert(2304, 32, 18, 6144, 6),
    },
    architectures=architectures("EuroBert", MASKED, TOKENS),
    model_type="eurobert",
    tokenizer="EuroBERT/EuroBERT-210m (byte-level BPE)",
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table(
        ATTENTION,
        GATED,
        NORMS,
        side="encoder",
        outside={"classifier": "token_head.proj"},
        ignore=(),
    ),
    bare=("EuroBertModel",),
)
