"""OPT: a GPT-2 with ReLU, whose learned positions begin at the table's third row."""

from __future__ import annotations

from dataclasses import replace

from ..core.config import Decoder, LayerNorm, Learned, Model
from ..core.errors import need
from .decoder_pages import FAIRSEQ, GPT2_LAYERS, decoder, first_block, stack, table
from .keys import ConfigWords, Section, key, keys
from .recipe import ConfigReader, Settings, page


def _norms(raw: ConfigReader, model: Decoder) -> Decoder:
    """Sets where norms stand, and whether the stack ends with a norm."""
    raw.only("word_embed_proj_dim", model.dim, "embeddings here are as wide as the model")
    before = raw.flag("do_layer_norm_before", True)
    bare = raw.flag("_remove_final_layer_norm", False) or not before
    block = replace(first_block(model), place="pre" if before else "post")
    last_norm = None if bare else LayerNorm()
    return replace(model, decoder=replace(stack(model), pattern=(block,), last_norm=last_norm))


def _write_norms(model: Model) -> Settings:
    place = first_block(model).place
    need(place in ("pre", "post"), f'The opt layout has no norms at the place "{place}".')
    return {
        "word_embed_proj_dim": model.dim,
        "do_layer_norm_before": place == "pre",
        "_remove_final_layer_norm": place == "pre" and stack(model).last_norm is None,
    }


page(
    "opt",
    words=ConfigWords(
        decoder(*GPT2_LAYERS, Learned(64, 2)),
        (
            *keys(
                "hidden_size",
                num_hidden_layers=12,
                num_attention_heads=12,
                ffn_dim=3072,
                max_position_embeddings=2048,
                vocab_size=50_272,
                activation_function="relu",
                enable_bias=(True, "attention.bias feedforward.bias"),
                tie_word_embeddings=True,
                dropout=key("dropout attention_dropout", 0.1, "dropout"),
                init_std=0.02,
            ),
            Section(_norms, _write_norms),
        ),
    ),
    weights=table(
        FAIRSEQ,
        layer="model.decoder.layers.{i}",
        token="model.decoder.embed_tokens",
        last_norm="model.decoder.final_layer_norm",
        outside={"decoder.position": "model.decoder.embed_positions"},
        ignore=(),
    ),
)
