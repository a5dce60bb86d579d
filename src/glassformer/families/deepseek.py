"""DeepSeek-V2 and V3: latent attention, and a routed mixture after the first blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ..core.config import (
    Block,
    Decoder,
    Embed,
    GatedMLP,
    Head,
    Model,
    RMSNorm,
    Rotary,
    Stack,
    YarnScaling,
)
from ..core.errors import UserError
from . import decoders, mixtures
from .decoders import ATTN
from .keys import MOST_HEADS, MOST_HIDDEN, Key, read_keys
from .latent import LatentAttention
from .recipe import ConfigReader, Recipe, tile
from .routed import RoutedMoE

NORM = RMSNorm(1e-6)


def stretch(factor: float, mscale: float) -> float:
    """The size that a YaRN of ``factor`` gives to what turns (Peng et al. 2023, section 3.4)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def deepseek(
    dim: int,
    depth: int,
    heads: int,
    hidden: int,
    mixture: RoutedMoE,
    *,
    mscale: float,
    q_rank: int | None = 1536,
    dense: int = 1,
    vocab: int = 102_400,
) -> Decoder:
    """The shape of DeepSeek-V2 and V3: 163,840 positions, of which 4,096 were learnt first."""
    scale = 192**-0.5 * stretch(40.0, mscale) ** 2
    attention = LatentAttention(heads, scale=scale, q_rank=q_rank)
    block = Block(attention, GatedMLP(hidden), NORM)
    pattern = tile([block] * dense + [replace(block, feedforward=mixture)] * (depth - dense))
    position = Rotary(
        scaling=YarnScaling(40.0, 4096, 32.0, 1.0, attention_factor=1.0), interleaved=True
    )
    stack = Stack(depth, pattern, position, last_norm=NORM)
    return Decoder(dim, 163_840, Embed(vocab), stack, Head(tied=False), decoders.INIT)


def _v2(experts: int, hidden: int, groups: int, top_groups: int, scale: float) -> RoutedMoE:
    return RoutedMoE(
        experts,
        6,
        GatedMLP(hidden),
        normalize=False,
        shared=GatedMLP(2 * hidden),
        score="softmax",
        correction=False,
        groups=groups,
        top_groups=top_groups,
        group_best=1,
        scale=scale,
    )


V3_MIXTURE = RoutedMoE(
    256, 8, GatedMLP(2048), shared=GatedMLP(2048), groups=8, top_groups=4, scale=2.5
)
LITE = deepseek(2048, 27, 16, 10_944, _v2(64, 1408, 1, 1, 1.0), mscale=0.707, q_rank=None)
V3 = deepseek(7168, 61, 128, 18_432, V3_MIXTURE, mscale=1.0, dense=3, vocab=129_280)

# ---------------------------------------------------------------------------------- config.json, in


def _rope(raw: ConfigReader) -> tuple[ConfigReader, float]:
    """The words of rotary positions as other decoders have them, and what multiplies the scores."""
    rope = raw.inside("rope_parameters") or raw.inside("rope_scaling")
    if rope is None:
        return raw, 1.0
    kind = rope.value("rope_type", rope.value("type", "default"))
    mscale = rope.number("mscale", 0.0, most=1e3)
    everywhere = rope.number("mscale_all_dim", 0.0, most=1e3)
    table, size = {**rope.table, "mscale": None, "mscale_all_dim": None}, 1.0
    if kind != "default" and everywhere:
        factor = rope.number("factor", least=1.0)
        size = stretch(factor, everywhere)
        if mscale and table.get("attention_factor") is None:
            table["attention_factor"] = stretch(factor, mscale) / size
    return ConfigReader({**raw.table, "rope_parameters": table}, raw.source), size * size


def _scale(raw: ConfigReader) -> float:
    width = raw.integer("qk_nope_head_dim", 128) + raw.integer("qk_rope_head_dim", 64)
    return float(width**-0.5 * _rope(raw)[1])


def _query_rank(raw: ConfigReader) -> Any:
    return raw.integer("q_lora_rank", decoders.unsaid(raw, "q_lora_rank", 1536), most=MOST_HIDDEN)


def _rotary(raw: ConfigReader) -> Rotary:
    """Rotary positions, by neighbours unless a DeepSeek-V3 says otherwise."""
    return replace(
        decoders.read_rotary(_rope(raw)[0]), interleaved=raw.flag("rope_interleave", True)
    )


def _keys(context: int, rotary: Key, *more: Key) -> tuple[Key, ...]:
    shared = decoders.keys(
        Key.flag("attention_bias", f"{ATTN}.bias", False),
        Key("q_lora_rank", f"{ATTN}.q_rank", _query_rank),
        Key.integer("kv_lora_rank", f"{ATTN}.kv_rank", 512, most=MOST_HIDDEN),
        Key.integer("qk_nope_head_dim", f"{ATTN}.content_dim", 128, most=MOST_HEADS),
        Key.integer("qk_rope_head_dim", f"{ATTN}.rope_dim", 64, most=MOST_HEADS),
        Key.integer("v_head_dim", f"{ATTN}.value_dim", 128, most=MOST_HEADS),
        Key("", f"{ATTN}.scale", _scale),
        context=context,
        rotary=rotary,
    )
    # a file's head_dim is that of what turns
    return (*decoders.without(shared, "head_dim"), *more)


KEYS2 = _keys(
    2048,
    Key("", "decoder.position", _rotary),
    Key.only("rope_interleave", True, "a DeepSeek-V2 turns pairs of neighbours"),
    Key.only("scoring_func", "softmax", "a DeepSeek-V2 scores its experts by a softmax"),
    Key.only("norm_topk_prob", False, "a DeepSeek-V2 does not norm the weights of experts"),
)
KEYS3 = _keys(
    4096,
    Key(
        "rope_interleave",
        "decoder.position",
        _rotary,
        lambda position: position.get("interleaved", True),
    ),
    Key.only("scoring_func", "sigmoid", "a DeepSeek-V3 scores each expert by itself"),
    Key.only("topk_method", "noaux_tc", "a bias corrects the scores of a DeepSeek-V3"),
)


def _template(model: Decoder) -> Decoder:
    """The model as one dense block, that a file's words fill."""
    stack = decoders.stack(model)
    return replace(model, decoder=replace(stack, depth=1, pattern=stack.pattern[:1]))


def _dense(model: Decoder) -> GatedMLP:
    mlp = decoders.first_block(model).feedforward
    assert isinstance(mlp, GatedMLP)
    return mlp


METHODS = {
    "greedy": mixtures.ROUTED,
    "group_limited_greedy": mixtures.ROUTED | mixtures.GROUPS,
}


def read_config2(raw: ConfigReader) -> Decoder:
    """A DeepSeek-V2 config.json as our config."""
    model = read_keys(raw, _template(LITE), KEYS2)
    stack = decoders.stack(model)
    mlp = replace(_dense(model), bias=raw.flag("mlp_bias", False))
    block = replace(decoders.first_block(model), feedforward=mlp)
    stack = replace(stack, pattern=(block,))
    raw.integer("num_experts_per_tok")
    groups = raw.choice("topk_method", METHODS, "greedy")
    mixture = mixtures.read_mixture(raw, mlp, _v2(64, 1407, 1, 1, 1.0), groups)
    return mixtures.with_mixture(raw, replace(model, decoder=stack), mixture, 0)


def read_config3(raw: ConfigReader) -> Decoder:
    """A DeepSeek-V3 config.json as our config."""
    model = read_keys(raw, _template(V3), KEYS3)
    mixture = mixtures.read_mixture(raw, _dense(model), V3_MIXTURE, METHODS["group_limited_greedy"])
    return mixtures.with_mixture(raw, model, mixture, 3)


# --------------------------------------------------------------------------------- config.json, out


def _write_rope(model: Model) -> dict[str, Any] | None:
    """The scaling as ``rope_scaling``, with what multiplies the scores."""
    position, attention = decoders.stack(model).position, decoders.first_block(model).attention
    scaling = position.scaling if isinstance(position, Rotary) else None
    table = decoders.write_scaling(scaling)
    width = attention.width(model.dim)
    size = math.sqrt((attention.scale or width**-0.5) * width**0.5)
    if abs(size - 1.0) < 1e-9:
        return table
    factor = getattr(scaling, "factor", 1.0)
    if table is None or factor <= 1:
        raise UserError(
            "The deepseek layouts multiply scores only where rotary positions are scaled."
        )
    table["mscale_all_dim"] = round((size - 1.0) / (0.1 * math.log(factor)), 9)
    if table.get("attention_factor") == 1.0:
        table["mscale"] = table["mscale_all_dim"]
        del table["attention_factor"]
    return table


def _write(model: Model, keys: tuple[Key, ...], layout: str) -> dict[str, Any]:
    raw = {**decoders.write(model, keys), **mixtures.write_mixture(model, layout)}
    return {**raw, "rope_scaling": _write_rope(model)}


def write_config2(model: Model) -> dict[str, Any]:
    """Our config as a DeepSeek-V2 config.json, as far as that can say it."""
    raw = _write(model, KEYS2, "deepseek_v2")
    last = decoders.stack(model).pattern[-1].feedforward
    assert isinstance(last, RoutedMoE)
    method = "group_limited_greedy" if last.groups > 1 else "greedy"
    return {**raw, "topk_method": method, "mlp_bias": bool(last.shared and last.shared.bias)}


def write_config3(model: Model) -> dict[str, Any]:
    """Our config as a DeepSeek-V3 config.json, as far as that can say it."""
    return {**_write(model, KEYS3, "deepseek_v3"), "num_nextn_predict_layers": 0}


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

DEEPSEEK_V2 = Recipe(
    name="deepseek_v2",
    paper="DeepSeek-AI 2024, DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts "
    "Language Model (arXiv 2405.04434)",
    sizes={
        "lite": LITE,
        "236b": deepseek(5120, 60, 128, 12_288, _v2(160, 1536, 8, 3, 16.0), mscale=0.707),
    },
    architectures=("DeepseekV2ForCausalLM", "DeepseekV2Model"),
    model_type="deepseek_v2",
    tokenizer="deepseek-ai/DeepSeek-V2-Lite",
    read_config=read_config2,
    write_config=write_config2,
    weights=mixtures.table(_LAYERS),
)
DEEPSEEK_V3 = Recipe(
    name="deepseek_v3",
    paper="DeepSeek-AI 2024, DeepSeek-V3 Technical Report (arXiv 2412.19437)",
    sizes={"671b": V3},
    architectures=("DeepseekV3ForCausalLM", "DeepseekV3Model"),
    model_type="deepseek_v3",
    tokenizer="deepseek-ai/DeepSeek-V3",
    read_config=read_config3,
    write_config=write_config3,
    weights=mixtures.table(_LAYERS),
)
