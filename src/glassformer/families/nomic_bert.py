"""Nomic BERT: an encoder of 2,048 tokens and more, with rotary positions, SwiGLU and no biases.

Files of the hub may say the same in GPT-2's words (``n_embd``), which are read as well.
"""

from __future__ import annotations

from dataclasses import replace

from ..core.config.embed_head import Embed, Head
from ..core.config.feedforward import GatedMLP
from ..core.config.init import Init
from ..core.config.model import Attention, Block, Encoder, Model, Stack
from ..core.config.norm import LayerNorm
from ..core.config.pool import Pool
from ..core.config.position import Rotary
from . import encoder_pages
from .bert import SHARED
from .decoder_pages import rotary, write_rope_table
from .encoder_pages import (
    LABELS,
    MASKED,
    TOKENS,
    blocks,
    head_name,
    head_of,
    label_layers,
    read_heads,
    write_heads,
)
from .keys import key, only, read_keys, revise, write_keys
from .names import NameRule, Table, rules
from .recipe import ConfigReader, Recipe, Settings

KEYS = revise(
    SHARED,
    only("activation_function", "swiglu", "the gate here is SwiGLU's"),
    only("qkv_proj_bias", False, "this family has no biases"),
    only("mlp_fc1_bias", False, "this family has no biases"),
    only("mlp_fc2_bias", False, "this family has no biases"),
    only("prenorm", False, "the norms of this family come after"),
    only("parallel_block", False, "the layers of this family come one after the other"),
    only("use_rms_norm", False, "the norms of this family are LayerNorms"),
    only("causal", False, "this family sees both sides of every token"),
    only("rotary_emb_fraction", 1.0, "this family turns all of each head"),
    only("rotary_emb_interleaved", False, "this family pairs halves"),
    only("rotary_scaling_factor", None, "positions here are not scaled by the length"),
    only("moe_every_n_layers", 0, "mixtures of experts are not read for this family"),
    key("hidden_dropout_prob attention_probs_dropout_prob", 0.0, "dropout"),
    rotary(1000.0),
    without="max_position_embeddings",
    head_dim=None,
    max_position_embeddings=(2048, "context"),
    hidden_act="silu",
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
    model, pooled = read_heads(raw, model, "tanh"), raw.flag("add_pooling_layer", False)
    held = any(raw.holds(f"{prefix}pooler.dense.weight") for prefix in ("", "nomic_bert."))
    bare = not head_of(raw) and (pooled or held)
    return replace(model, pool=Pool("first", "tanh")) if bare else model


def write_config(model: Encoder) -> Settings:
    """Our config as a Nomic BERT config.json, as far as that can say it."""
    raw = {
        **write_heads(model, "NomicBert"),
        **write_keys(model, KEYS),
        **write_rope_table(model, theta_first=True),
        "pad_token_id": 0,  # transformers takes no null; where a weight starts is all it says
    }
    return raw if head_name(model) else {**raw, "add_pooling_layer": model.pool is not None}


ROOT, BLOCKS = "nomic_bert", "nomic_bert.encoder.layers"
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
    qkv = tuple(f"encoder.blocks.{{i}}.attn.{name}.weight" for name in "qkv")
    inside = (
        NameRule(f"{ROOT}.embeddings.word_embeddings.weight", "embed.token.weight"),
        NameRule(f"{ROOT}.embeddings.token_type_embeddings.weight", "embed.segment.weight"),
        NameRule(f"{BLOCKS}.{{i}}.attn.Wqkv.weight", qkv),
        *rules({f"{ROOT}.emb_ln": "encoder.first_norm"}),
        *blocks(BLOCKS, _LAYER),
    )
    layers = {POOLER: "pool.transform", **label_layers(model, {"classifier": "pool.proj"})}
    names = (f"{WORDS}.transform.dense", f"{WORDS}.transform.layer_norm")
    return encoder_pages.table(model, ROOT, WORDS, names, inside, layers, (POOLER,))


NOMIC_BERT = Recipe(
    name="nomic-bert",
    paper="Nussbaum et al. 2024, Nomic Embed: Training a Reproducible Long Context Text Embedder "
    "(arXiv 2402.01613)",
    sizes={
        "base": nomic_bert(),
        "embed-v1.5": replace(nomic_bert(), head=None, pool=Pool("mean")),
    },
    family="NomicBert",
    heads=(MASKED, LABELS, TOKENS),
    model_type="nomic_bert",
    tokenizer="nomic-ai/nomic-embed-text-v1.5 (WordPiece, uncased)",
    read_config=read_config,
    write_config=write_config,
    weights=table,
    fixed=("pad_token_id",),
)
