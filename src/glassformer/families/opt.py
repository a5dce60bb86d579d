"""OPT: a GPT-2 with ReLU, whose learned positions begin at the table's third row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import (
    MLP,
    Attention,
    Block,
    Decoder,
    Embed,
    Head,
    LayerNorm,
    Learned,
    Model,
    Stack,
)
from ..core.errors import need
from . import decoders_old as decoders
from .decoders_old import ATTN, FFN
from .keys_old import (
    MOST_BLOCKS,
    MOST_HEADS,
    MOST_HIDDEN,
    MOST_POSITIONS,
    MOST_TOKENS,
    Key,
    read_keys,
    write_keys,
)
from .names import NameRule, Table, rules
from .recipe import ConfigReader, Recipe


def opt(dim: int, depth: int, heads: int) -> Decoder:
    """The shape of OPT: 50,272 tokens, 2,048 positions."""
    block = Block(Attention(heads, bias=True), MLP(4 * dim, "relu", bias=True), LayerNorm())
    stack = Stack(depth, (block,), Learned(2048, 2), last_norm=LayerNorm(), dropout=0.1)
    return Decoder(dim, 2048, Embed(50_272), stack, Head(), decoders.INIT)


KEYS = (
    Key.only("layer_norm_elementwise_affine", True, "each norm here has a weight and a bias"),
    Key.only("layerdrop", 0.0, "no block here is left out in training"),
    Key.integer("hidden_size", "dim"),
    Key.integer("num_hidden_layers", "decoder.depth", 12, most=MOST_BLOCKS),
    Key.integer("num_attention_heads", f"{ATTN}.heads", 12, most=MOST_HEADS),
    Key.integer("ffn_dim", f"{FFN}.hidden", 3072, most=MOST_HIDDEN),
    Key.integer(
        "max_position_embeddings", "context decoder.position.length", 2048, most=MOST_POSITIONS
    ),
    Key.integer("vocab_size", "embed.vocab", 50_272, most=MOST_TOKENS),
    Key.activation("activation_function", f"{FFN}.act", "relu"),
    Key.flag("enable_bias", f"{ATTN}.bias {FFN}.bias", True),
    Key.flag("tie_word_embeddings", "head.tied", True),
    Key.number("dropout attention_dropout", "decoder.dropout", 0.1, most=0.99),
    Key.std("init_std"),
)


def read_config(raw: ConfigReader) -> Model:
    """An OPT config.json as our config."""
    model = read_keys(raw, opt(768, 12, 12), KEYS)
    raw.only("word_embed_proj_dim", model.dim, "embeddings here are as wide as the model")
    before = raw.flag("do_layer_norm_before", True)
    bare = raw.flag("_remove_final_layer_norm", False) or not before
    block = replace(decoders.first_block(model), place="pre" if before else "post")
    stack = replace(
        decoders.stack(model), pattern=(block,), last_norm=None if bare else LayerNorm()
    )
    return replace(model, decoder=stack)


def write_config(model: Model) -> dict[str, Any]:
    """Our config as an OPT config.json, as far as that can say it."""
    stack, place = decoders.stack(model), decoders.first_block(model).place
    need(place in ("pre", "post"), f'The opt layout has no norms at the place "{place}".')
    return {
        **write_keys(model, KEYS),
        "word_embed_proj_dim": model.dim,
        "do_layer_norm_before": place == "pre",
        "_remove_final_layer_norm": place == "pre" and stack.last_norm is None,
    }


_THEIRS = "model.decoder.layers.{i}"
_LAYERS = {
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.out": "self_attn.out_proj",
    "attn_norm": "self_attn_layer_norm",
    "ffn_norm": "final_layer_norm",
    "ffn.up": "fc1",
    "ffn.down": "fc2",
}
OPT = Recipe(
    name="opt",
    paper="Zhang et al. 2022, OPT: Open Pre-trained Transformer Language Models (arXiv 2205.01068)",
    sizes={
        "125m": opt(768, 12, 12),
        "1.3b": opt(2048, 24, 32),
        "2.7b": opt(2560, 32, 32),
        "6.7b": opt(4096, 32, 32),
        "13b": opt(5120, 40, 40),
        "30b": opt(7168, 48, 56),
    },
    architectures=("OPTForCausalLM", "OPTModel"),
    model_type="opt",
    tokenizer="facebook/opt-125m",
    read_config=read_config,
    write_config=write_config,
    weights=Table(
        (
            NameRule("model.decoder.embed_tokens.weight", "embed.token.weight"),
            NameRule("model.decoder.embed_positions.weight", "decoder.position.weight"),
            *rules(
                {
                    f"{_THEIRS}.{file_name}": f"{decoders.OURS}.{param_name}"
                    for param_name, file_name in _LAYERS.items()
                }
            ),
            *rules({"model.decoder.final_layer_norm": "decoder.last_norm", "lm_head": "head.proj"}),
        ),
        copies=(("lm_head.weight", "model.decoder.embed_tokens.weight"),),
        prefix="model.",
    ),
)
