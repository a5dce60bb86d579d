"""Nomic BERT: an encoder of 2,048 tokens and more, with rotary positions, SwiGLU and no biases.

Files of the hub may say the same in GPT-2's words (``n_embd``), which are read as well.
"""

from __future__ import annotations

from ..core.config.layers import Embed, GatedMLP, LayerNorm
from ..core.config.model import Attention, Encoder
from ..core.config.position import Rotary
from . import encoder_pages
from .bert import KEYS as BERT_KEYS
from .decoder_pages import QKV, rotary, write_rope_table
from .encoder_pages import OURS, encoder, ends, read_pooler
from .ends import head_name
from .keys import ConfigWords, Section, key, revise
from .names import Table, rules
from .recipe import ConfigReader, Settings, page

KEYS = revise(
    BERT_KEYS,
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


TEMPLATE = encoder(Attention(1), GatedMLP(1), LayerNorm(), Rotary(), embed=Embed(64, segments=2))
ENDS = ends()


def read_ends(raw: ConfigReader, model: Encoder) -> Encoder:
    """The model with the head that its architecture names, or a pooler."""
    return read_pooler(raw, ENDS.decode(raw, model), POOLER, usual=False)


def write_ends(model: Encoder) -> Settings:
    """Settings of the head that a model has, and of its positions."""
    pools = {} if head_name(model) else {"add_pooling_layer": model.pool is not None}
    raw = {**ENDS.encode(model), **pools, **write_rope_table(model)}
    # transformers takes no null; where a weight starts is all it says
    return {**raw, "pad_token_id": 0}


ROOT = "nomic_bert"
POOLER = "nomic_bert.pooler.dense"
_ENDS = {
    "embed.token": "embeddings.word_embeddings",
    "embed.segment": "embeddings.token_type_embeddings",
    "encoder.first_norm": "emb_ln",
}
_LAYER = {
    QKV: "attn.Wqkv",
    "attn.out": "attn.out_proj",
    "ffn.up": "mlp.fc11",
    "ffn.gate": "mlp.fc12",
    "ffn.down": "mlp.fc2",
    "attn_norm": "norm1",
    "ffn_norm": "norm2",
}


def table(model: Encoder) -> Table:
    """The names of the weights, queries, keys and values in one; labels by the head."""
    inside = (*rules(_ENDS, f"{ROOT}."), *rules(_LAYER, f"{ROOT}.encoder.layers.{{i}}.", OURS))
    pool = {"pool.transform": POOLER, "pool.proj": "classifier"}
    names = ("transform.dense", "transform.layer_norm")
    return encoder_pages.table(
        model, ROOT, "cls.predictions", inside, pool, (POOLER,), transform=names
    )


page(
    "nomic-bert",
    words=ConfigWords(TEMPLATE, (*KEYS, Section(read_ends, write_ends)), older=OLDER),
    weights=table,
)
