"""EuroBERT: Llama's blocks as an encoder, for words under masks and labels of tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.embed_head import Embed, Head
from ..core.config.feedforward import GatedMLP
from ..core.config.init import Init
from ..core.config.model import Attention, Block, Encoder, Model, Stack, stacks
from ..core.config.norm import RMSNorm
from ..core.config.pool import TokenHead
from ..core.config.position import Rotary
from ..core.errors import need
from . import decoders
from .decoders import ATTN, FFN
from .encoders import MASKED, TOKENS, architectures, head_name, head_of, read_labels, write_labels
from .keys import Key, read_keys, write_keys
from .names import NameRule, Table, rules
from .recipe import ConfigReader, Recipe

KEYS = decoders.for_encoder(
    decoders.keys(
        Key.only("pretraining_tp", 1, "matrices lie in one piece here"),
        Key.flag("attention_bias", f"{ATTN}.bias", False),
        Key.flag("mlp_bias", f"{FFN}.bias", False),
        context=8192,
        eps=decoders.eps("rms_norm_eps", 1e-5),
        dropouts="attention_dropout",
    ),
    "tie_word_embeddings",
)


def eurobert(dim: int, depth: int, heads: int, hidden: int, kv_heads: int | None = None) -> Encoder:
    """The shape of EuroBERT as pretrained, for words under masks."""
    block = Block(Attention(heads, kv_heads), GatedMLP(hidden), RMSNorm(1e-5))
    stack = Stack(depth, (block,), Rotary(250_000.0), causal=False, last_norm=RMSNorm(1e-5))
    return Encoder(dim, 8192, Embed(128_256), stack, Head(tied=False), Init(0.02, 0.02, "plain"))


def read_config(raw: ConfigReader) -> Model:
    """A EuroBERT config.json as our config: the architecture says which head there is."""
    model = read_keys(raw, replace(eurobert(768, 12, 12, 3072), head=None), KEYS)
    head = head_of(raw)
    if head == MASKED:
        bias, tied = raw.flag("mlp_bias", False), raw.flag("tie_word_embeddings", False)
        return replace(model, head=Head(tied=tied, bias=bias))
    return replace(model, token_head=TokenHead(read_labels(raw))) if head == TOKENS else model


def write_config(model: Encoder) -> dict[str, Any]:
    """Our config as a EuroBERT config.json, as far as that can say it."""
    need(model.pool is None, "The eurobert layout holds no pool; keep it beside the model.")
    position, head = stacks(model)["encoder"].position, head_name(model)
    raw = {
        "architectures": [f"EuroBertFor{head}" if head else "EuroBertModel"],
        **write_keys(model, KEYS),
        "pad_token_id": None,  # a tokenizer's follows, where there is one
        "rope_parameters": decoders.write_scheme(position),
    }
    if model.token_head is not None:
        return {**raw, "id2label": write_labels(model)["id2label"]}
    return raw if model.head is None else {**raw, "tie_word_embeddings": model.head.tied}


_LAYER = {
    **{f"self_attn.{param_name}_proj": f"attn.{param_name}" for param_name in "qkv"},
    "self_attn.o_proj": "attn.out",
    **{f"mlp.{param_name}_proj": f"ffn.{param_name}" for param_name in ("gate", "up", "down")},
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_TOKENS = "model.embed_tokens.weight"
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
    weights=Table(
        (
            NameRule(_TOKENS, "embed.token.weight"),
            *rules(
                {
                    f"model.layers.{{i}}.{file_name}": f"encoder.blocks.{{i}}.{param_name}"
                    for file_name, param_name in _LAYER.items()
                }
            ),
            *rules(
                {
                    "model.norm": "encoder.last_norm",
                    "lm_head": "head.proj",
                    "classifier": "token_head.proj",
                }
            ),
        ),
        copies=(("lm_head.weight", _TOKENS),),
        prefix="model.",
    ),
    bare=("EuroBertModel",),
)
