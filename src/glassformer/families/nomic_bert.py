"""Nomic BERT: an encoder of 2,048 tokens and more, with rotary positions, SwiGLU and no biases.

Files of the hub may say the same in GPT-2's words (``n_embd``), which are read as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.embed_head import Embed, Head
from ..core.config.feedforward import GatedMLP
from ..core.config.init import Init
from ..core.config.model import Attention, Block, Encoder, Model, Stack, stacks
from ..core.config.norm import LayerNorm
from ..core.config.pool import Pool
from ..core.config.position import Rotary
from . import decoders
from .bert import TRUNK
from .decoders import read_rotary
from .encoders import (
    LABELS,
    MASKED,
    TOKENS,
    architectures,
    head_name,
    head_of,
    read_heads,
    with_words,
    write_heads,
)
from .keys import (
    ACTIVATIONS,
    MOST_HEADS,
    MOST_POSITIONS,
    Key,
    read_keys,
    write_keys,
)
from .names import NameRule, Table
from .recipe import ConfigReader, Recipe

BLOCK = "encoder.pattern"
KEYS = (
    Key.only("activation_function", "swiglu", "the gate here is SwiGLU's"),
    Key.only("qkv_proj_bias", False, "this family has no biases"),
    Key.only("mlp_fc1_bias", False, "this family has no biases"),
    Key.only("mlp_fc2_bias", False, "this family has no biases"),
    Key.only("prenorm", False, "the norms of this family come after"),
    Key.only("parallel_block", False, "the layers of this family come one after the other"),
    Key.only("use_rms_norm", False, "the norms of this family are LayerNorms"),
    Key.only("causal", False, "this family sees both sides of every token"),
    Key.only("rotary_emb_fraction", 1.0, "this family turns all of each head"),
    Key.only("rotary_emb_interleaved", False, "this family pairs halves"),
    Key.only("rotary_scaling_factor", None, "positions here are not scaled by the length"),
    Key.only("moe_every_n_layers", 0, "mixtures of experts are not read for this family"),
    *decoders.without(TRUNK, "max_position_embeddings"),
    Key.integer("head_dim", f"{BLOCK}.attention.head_dim", None, most=MOST_HEADS),
    Key.integer("max_position_embeddings", "context", 2048, most=MOST_POSITIONS),
    Key.activation("hidden_act", f"{BLOCK}.feedforward.act", "silu"),
    Key.number(
        "hidden_dropout_prob attention_probs_dropout_prob", "encoder.dropout", 0.0, most=0.99
    ),
    Key("", "encoder.position", lambda raw: read_rotary(raw, 1000.0)),
)
OLDER = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
    "resid_pdrop": "hidden_dropout_prob",
}


def nomic_bert() -> Encoder:
    """The shape of Nomic's text encoders as pretrained, for words under masks."""
    norm = LayerNorm(1e-12)
    block = Block(Attention(12), GatedMLP(3072), norm, "post")
    stack = Stack(12, (block,), Rotary(1000.0), causal=False, first_norm=norm)
    head = Head(bias=True, transform="silu", norm=norm)
    return Encoder(
        768, 2048, Embed(30_528, segments=2), stack, head, Init(0.02, 0.02, "plain"), None
    )


def read_config(raw: ConfigReader) -> Model:
    """A Nomic BERT config.json as our config: the architecture says which head there is."""
    renamed = {OLDER[name]: value for name, value in raw.table.items() if name in OLDER}
    raw = replace(raw, table={**renamed, **raw.table})
    model = read_keys(raw, replace(nomic_bert(), head=None), KEYS)
    act = ACTIVATIONS[raw.value("hidden_act", "silu")]
    words = Head(bias=True, transform=act, norm=stacks(model)["encoder"].first_norm)
    model, pooled = read_heads(raw, model, words, "tanh"), raw.flag("add_pooling_layer", False)
    held = any(raw.holds(f"{prefix}pooler.dense.weight") for prefix in ("", "nomic_bert."))
    bare = not head_of(raw) and (pooled or held)
    return replace(model, pool=Pool("first", "tanh")) if bare else model


def write_config(model: Encoder) -> dict[str, Any]:
    """Our config as a Nomic BERT config.json, as far as that can say it."""
    raw = {
        **write_heads(model, "NomicBert"),
        **write_keys(model, KEYS),
        "rope_parameters": decoders.write_scheme(stacks(model)["encoder"].position),
        "pad_token_id": 0,  # transformers takes no null; where a weight starts is all it says
    }
    return raw if head_name(model) else {**raw, "add_pooling_layer": model.pool is not None}


ROOT, BLOCKS = "nomic_bert", "nomic_bert.encoder.layers.{i}"
POOLER, WORDS = "nomic_bert.pooler.dense", "cls.predictions"
_LAYER = {
    "attn.out_proj": "attn.out",
    "mlp.fc11": "ffn.up",
    "mlp.fc12": "ffn.gate",
    "mlp.fc2": "ffn.down",
    "norm1": "attn_norm",
    "norm2": "ffn_norm",
}


def table(model: Encoder) -> Table:
    """The names of the weights, queries, keys and values in one; labels by the head."""
    layers = {
        f"{BLOCKS}.{name}": f"encoder.blocks.{{i}}.{param_name}"
        for name, param_name in _LAYER.items()
    }
    words = {
        f"{WORDS}.transform.dense": "head.transform",
        f"{WORDS}.transform.layer_norm": "head.norm",
    }
    labels = {"classifier": "token_head.proj" if model.token_head is not None else "pool.proj"}
    qkv = tuple(f"encoder.blocks.{{i}}.attn.{name}.weight" for name in "qkv")
    embeddings = f"{ROOT}.embeddings"
    trunk = (
        NameRule(f"{embeddings}.word_embeddings.weight", "embed.token.weight"),
        NameRule(f"{embeddings}.token_type_embeddings.weight", "embed.segment.weight"),
        NameRule(f"{BLOCKS}.attn.Wqkv.weight", qkv),
    )
    ends = {f"{ROOT}.emb_ln": "encoder.first_norm", POOLER: "pool.transform"}
    layers = {**layers, **ends, **words, **labels}
    return with_words(model, ROOT, trunk, layers, WORDS, (POOLER, *words))


NOMIC_BERT = Recipe(
    name="nomic-bert",
    paper="Nussbaum et al. 2024, Nomic Embed: Training a Reproducible Long Context Text Embedder "
    "(arXiv 2402.01613)",
    sizes={
        "base": nomic_bert(),
        "embed-v1.5": replace(nomic_bert(), head=None, pool=Pool("mean")),
    },
    architectures=architectures("NomicBert", MASKED, LABELS, TOKENS),
    model_type="nomic_bert",
    tokenizer="nomic-ai/nomic-embed-text-v1.5 (WordPiece, uncased)",
    read_config=read_config,
    write_config=write_config,
    weights=table,
    bare=("NomicBertModel",),
    fixed=("pad_token_id",),
)
