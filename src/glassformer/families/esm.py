"""ESM: encoders of proteins, with norms before; the second version's positions are rotary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.layers import LayerNorm
from ..core.config.model import Encoder
from ..core.config.position import Learned
from . import roberta
from .bert import KEYS as BERT_KEYS
from .decoder_pages import stack
from .encoder_pages import LAYER, OLDER_NORMS, encoder, trunk
from .keys import ConfigWords, Key, Section, revise
from .mechanisms import MaskedEmbed, StoredRotary
from .names import NameRule, Table, rules
from .recipe import ConfigReader, Settings, page


def read_layers(raw: ConfigReader, model: Any) -> Any:
    """The model with its positions, the norm before its blocks, and how it embeds a mask."""
    body, start = stack(model), roberta.read_start(raw)
    kinds = {"absolute": Learned(model.context, start), "rotary": StoredRotary()}
    position: Any = raw.choice("position_embedding_type", kinds, "absolute")
    if isinstance(position, StoredRotary):
        position = StoredRotary(raw.number("rope_theta", 10_000.0, least=1.0))
    before = body.last_norm if raw.flag("emb_layer_norm_before", False) else None
    if raw.flag("token_dropout", False):
        mask = raw.token_id("mask_token_id")
        model = replace(model, embed=MaskedEmbed(model.embed.vocab, mask=mask))
    return replace(model, encoder=replace(body, position=position, first_norm=before))


def write_layers(model: Encoder) -> Settings:
    """Settings of positions, of the norm before the blocks, and of the mask."""
    position: Any = stack(model).position
    learned = isinstance(position, Learned)
    start = position.start if learned else 2
    return {
        "pad_token_id": start - 1,
        "max_position_embeddings": model.context + start,
        "position_embedding_type": "absolute" if learned else "rotary",
        "rope_theta": getattr(position, "theta", 10_000.0),
        "emb_layer_norm_before": stack(model).first_norm is not None,
        "token_dropout": isinstance(model.embed, MaskedEmbed),
        "mask_token_id": getattr(model.embed, "mask", None),
    }


NORM = LayerNorm()

_STORED = "rotary_embeddings.inv_freq"
_OLDER = "encoder.layer.{i}.attention.self." + _STORED  # transformers 5 writes * for a number
_RENAMED = (
    *((_OLDER.format(i=i), _STORED) for i in "0*"),
    *OLDER_NORMS,
)


def table(model: Encoder) -> Table:
    """The names of the weights; what predicts contacts from attention is passed over."""
    layer = {**LAYER, "attn_norm": "attention.LayerNorm", "ffn_norm": "LayerNorm"}
    last_norm = rules({"encoder.last_norm": "esm.encoder.emb_layer_norm_after"})
    stored = NameRule(f"esm.{_STORED}", "encoder.position.inv_freq")
    # published beside rotary positions
    unread = ("esm.contact_head.regression", "esm.embeddings.position_embeddings")
    layers = (*trunk("esm", layer, norm="layer_norm"), *last_norm, stored)
    table = roberta.with_ends(model, "esm", layers, unread, "bias")
    ignore = (*table.ignore, f"esm.{_OLDER}")
    return replace(table, ignore=ignore, renamed=(*table.renamed, *_RENAMED))


page(
    "esm",
    words=ConfigWords(
        encoder(norm=NORM, position=StoredRotary(), place="pre", first_norm=None, last_norm=NORM),
        revise(
            BERT_KEYS,
            Key("", "context", roberta.read_length),
            Section(read_layers, write_layers),
            roberta.with_head("esm"),
            without="hidden_act type_vocab_size max_position_embeddings",
        ),
    ),
    weights=table,
)
