"""DeepSeek-V2 and V3: latent attention, and a routed mixture after the first blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ..core.config import GatedMLP, Model, Rotary
from ..core.errors import need
from . import mixtures
from .decoder_pages import (
    blocks_of,
    decoder,
    first_block,
    read_rotary,
    rope_kind,
    rope_table,
    rotary_of,
    turned,
    words,
    write_rope,
)
from .keys import ConfigWords, Entry, Key, Section, nullable
from .latent import LatentAttention
from .recipe import ConfigReader, Settings, page
from .routed import RoutedMoE


def stretch(factor: float, mscale: float) -> float:
    """The size that a YaRN of ``factor`` gives to what turns (Peng et al. 2023, section 3.4)."""
    if factor > 1:
        return 0.1 * mscale * math.log(factor) + 1.0
    return 1.0


# ---------------------------------------------------------------------------------- config.json, in


def _rope(raw: ConfigReader) -> tuple[ConfigReader, float]:
    """The words of rotary positions as other decoders have them, and what multiplies the scores."""
    rope = rope_table(raw)
    if rope is None:
        return raw, 1.0
    mscale = rope.number("mscale", 0.0, most=1e3)
    everywhere = rope.number("mscale_all_dim", 0.0, most=1e3)
    table, size = {**rope.table, "mscale": None, "mscale_all_dim": None}, 1.0
    if everywhere and rope_kind(rope) != "default":
        factor = rope.number("factor", least=1.0)
        size = stretch(factor, everywhere)
        if mscale and table.get("attention_factor") is None:
            table["attention_factor"] = stretch(factor, mscale) / size
    return ConfigReader({**raw.table, "rope_parameters": table}, raw.source), size * size


def _scale(raw: ConfigReader) -> float:
    width = raw.integer("qk_nope_head_dim", 128) + raw.integer("qk_rope_head_dim", 64)
    return float(width**-0.5 * _rope(raw)[1])


def _turning(raw: ConfigReader) -> None:
    """transformers turns as many numbers as "head_dim" says."""
    raw.only("head_dim", raw.integer("qk_rope_head_dim", 64), "all of qk_rope_head_dim turn")


def _rotary(raw: ConfigReader) -> Rotary:
    """Rotary positions, by neighbours unless a DeepSeek-V3 says otherwise."""
    return replace(read_rotary(_rope(raw)[0]), interleaved=raw.flag("rope_interleave", True))


METHODS = {"greedy": False, "group_limited_greedy": True}


# --------------------------------------------------------------------------------- config.json, out


def _write_rope(model: Model) -> Settings:
    """Rotary positions, and what multiplies the scores in their words."""
    raw, attention = write_rope(model), first_block(model).attention
    table, width = raw["rope_scaling"], attention.width(model.dim)
    size = math.sqrt((attention.scale or width**-0.5) * width**0.5)
    if abs(size - 1.0) < 1e-9:
        return raw
    factor = getattr(rotary_of(model).scaling, "factor", 1.0)
    need(
        table is not None and factor > 1,
        "The deepseek layouts multiply scores only where rotary positions are scaled.",
    )
    table["mscale_all_dim"] = round((size - 1.0) / (0.1 * math.log(factor)), 9)
    if table.get("attention_factor") == 1.0:
        table["mscale"] = table["mscale_all_dim"]
        del table["attention_factor"]
    return raw


def _write_method(model: Model) -> Settings:
    """The method and the biases of a DeepSeek-V2's last block, which is a mixture."""
    mixture: Any = blocks_of(model)[-1].feedforward
    method = "group_limited_greedy" if mixture.groups > 1 else "greedy"
    return {"topk_method": method, "mlp_bias": bool(mixture.shared and mixture.shared.bias)}


def _words(*more: Entry, context: int) -> ConfigWords:
    """The words of both."""
    return words(
        decoder(LatentAttention(1), position=Rotary(interleaved=True)),
        Key("", "attention.scale", _scale),
        Key("", "", _turning),
        *more,
        without="head_dim",  # a file's is that of what turns
        rope=Section(encode=_write_rope),
        max_position_embeddings=context,
        attention_bias=False,
        q_lora_rank=nullable("q_lora_rank", 1536, "attention.q_rank"),
        kv_lora_rank=(512, "attention.kv_rank"),
        qk_nope_head_dim=(128, "attention.content_dim"),
        qk_rope_head_dim=(64, "attention.rope_dim"),
        v_head_dim=(128, "attention.value_dim"),
    )


# ---------------------------------------------------------------------------------------- the pages

_LAYERS = {
    "attn.q": "self_attn.q_proj",
    "attn.q_down": "self_attn.q_a_proj",
    "attn.q_norm": "self_attn.q_a_layernorm",
    "attn.q_up": "self_attn.q_b_proj",
    "attn.kv_down": "self_attn.kv_a_proj_with_mqa",
    "attn.kv_norm": "self_attn.kv_a_layernorm",
    "attn.kv_up": "self_attn.kv_b_proj",
    "attn.out": "self_attn.o_proj",
}

page(
    "deepseek_v2",
    words=_words(
        turned(_rotary),
        # written beside the method
        Key("", "feedforward.bias", lambda raw: raw.flag("mlp_bias", False)),
        Key("", "", lambda raw: raw.integer("num_experts_per_tok")),
        mixtures.routed(
            "deepseek_v2",
            RoutedMoE(
                64,
                6,
                GatedMLP(1407),
                normalize=False,
                shared=GatedMLP(2 * 1407),
                score="softmax",
                correction=False,
                group_best=1,
            ),
            0,
            lambda raw: raw.choice("topk_method", METHODS, "greedy"),
        ),
        Section(encode=_write_method),
        context=2048,
    ),
    weights=mixtures.table(_LAYERS),
)
page(
    "deepseek_v3",
    words=_words(
        Key(
            "rope_interleave",
            "position",
            _rotary,
            lambda position: position.get("interleaved", True),
        ),
        mixtures.routed(
            "deepseek_v3",
            RoutedMoE(
                256, 8, GatedMLP(2048), shared=GatedMLP(2048), groups=8, top_groups=4, scale=2.5
            ),
            3,
        ),
        mixtures.UNPREDICTED,
        context=4096,
    ),
    weights=mixtures.table(_LAYERS),
)
