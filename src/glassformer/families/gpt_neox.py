"""GPT-NeoX, whose shape Pythia has: attention and feed-forward side by side, each with a norm."""

from __future__ import annotations

from typing import Any

from ..core.config import (
    MLP,
    Attention,
    Block,
    Decoder,
    Embed,
    Head,
    LayerNorm,
    Model,
    Rotary,
    Stack,
)
from ..core.errors import UserError
from . import decoders_old as decoders
from . import gpt2
from .decoders_old import ATTN, BLOCK
from .keys_old import Key, write_keys
from .names import Table
from .recipe import ConfigReader, Recipe


def gpt_neox(dim: int, depth: int, heads: int, vocab: int = 50_304) -> Decoder:
    """The shape of GPT-NeoX: a quarter of each head turns; 2,048 positions."""
    attention, mlp = Attention(heads, bias=True), MLP(4 * dim, "gelu", bias=True)
    block = Block(attention, mlp, LayerNorm(), place="parallel_norms")
    stack = Stack(depth, (block,), Rotary(fraction=0.25), last_norm=LayerNorm())
    return Decoder(dim, 2048, Embed(vocab), stack, Head(tied=False), decoders.INIT)


def _position(raw: ConfigReader) -> Rotary:
    """Version 4 of transformers calls the numbers ``rotary_emb_base`` and ``rotary_pct``."""
    base, share = raw.number("rotary_emb_base", 10_000.0), raw.number("rotary_pct", 0.25)
    words = {"rope_theta": base, "partial_rotary_factor": share}
    return decoders.read_rotary(ConfigReader({**raw.table, **words}, raw.source), fraction=share)


KEYS = decoders.without(
    decoders.keys(
        Key.flag("attention_bias", f"{ATTN}.bias", True),
        Key(
            "use_parallel_residual",
            f"{BLOCK}.place",
            lambda raw: "parallel_norms" if raw.flag("use_parallel_residual", True) else "pre",
            lambda place: place == "parallel_norms",
        ),
        context=2048,
        act="gelu",
        eps=decoders.eps("layer_norm_eps", 1e-5),
        rotary=Key("", "decoder.position", _position),
        dropouts="hidden_dropout attention_dropout",
    ),
    "head_dim num_key_value_heads",
)
read_config = decoders.config_reader(gpt_neox(512, 6, 8), KEYS)


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a GPT-NeoX config.json, as far as that can say it."""
    position = decoders.stack(model).position
    if not isinstance(position, Rotary):
        raise UserError("The gpt_neox layout holds only rotary positions.")
    return {
        **write_keys(model, KEYS),
        "rotary_emb_base": position.theta,
        "rotary_pct": position.fraction,
        "rope_scaling": decoders.write_scaling(position.scaling),
    }


LAYER = "gpt_neox.layers.{i}"


def weights(model: Model) -> Table:
    """The table of the model's weights: each head's queries, keys and values lie side by side."""
    return gpt2.table(
        {
            "attn_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm",
            "attn.out": "attention.dense",
            "ffn.up": "mlp.dense_h_to_4h",
            "ffn.down": "mlp.dense_4h_to_h",
        },
        *gpt2.fused(
            "attention.query_key_value",
            layer=LAYER,
            axes="(h 3 d) c -> (3 h d) c",
            heads=decoders.first_block(model).attention.heads,
        ),
        layer=LAYER,
        token="embed_in",
        last_norm="final_layer_norm",
        prefix="gpt_neox.",
        head="embed_out",
    )


GPT_NEOX = Recipe(
    name="gpt_neox",
    paper="Black et al. 2022, GPT-NeoX-20B (arXiv 2204.06745); Biderman et al. 2023, Pythia (arXiv "
    "2304.01373)",
    sizes={
        "pythia-14m": gpt_neox(128, 6, 4),
        "pythia-70m": gpt_neox(512, 6, 8),
        "pythia-160m": gpt_neox(768, 12, 12),
        "pythia-410m": gpt_neox(1024, 24, 16),
        "pythia-1b": gpt_neox(2048, 16, 8),
        "pythia-1.4b": gpt_neox(2048, 24, 16),
        "pythia-2.8b": gpt_neox(2560, 32, 32),
        "pythia-6.9b": gpt_neox(4096, 32, 32, vocab=50_432),
        "pythia-12b": gpt_neox(5120, 36, 40, vocab=50_688),
    },
    architectures=("GPTNeoXForCausalLM", "GPTNeoXModel"),
    model_type="gpt_neox",
    tokenizer="EleutherAI/pythia-70m",
    read_config=read_config,
    write_config=write_config,
    weights=weights,
)
