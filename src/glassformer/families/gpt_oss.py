"""GPT-OSS: attention with sinks, a window in every second block, and a mixture of clamped experts."""

from __future__ import annotations

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
    Window,
    YarnScaling,
)
from . import decoders
from .decoders import ATTN, FFN
from .keys import MOST_POSITIONS, Key, read_keys
from .names import NameRule
from .recipe import ConfigReader, Recipe
from .sinks import ClampedMoE, SinkAttention

NORM = RMSNorm(1e-5)
YARN = Rotary(150_000.0, scaling=YarnScaling(32.0, 4096, truncate=False))


def gpt_oss(depth: int, experts: int) -> Decoder:
    """The shape of GPT-OSS: width 2,880, 64 heads of 64, 201,088 tokens, 131,072 positions."""
    attention = SinkAttention(64, 8, 64, bias=True)
    mixture = ClampedMoE(experts, 4, GatedMLP(2880, bias=True), balance_loss=0.001)
    full = Block(attention, mixture, NORM)
    slides = replace(full, attention=replace(attention, mask=Window(128)))
    stack = Stack(depth, (slides, full), YARN, last_norm=NORM)
    return Decoder(2880, 131_072, Embed(201_088), stack, Head(tied=False), decoders.INIT)


def _positions(raw: ConfigReader) -> Rotary:
    """Rotary positions; those of the published models where the file has no table."""
    tables = raw.inside("rope_parameters") or raw.inside("rope_scaling")
    theta = raw.number("rope_theta", 150_000.0, least=1.0)
    return decoders.read_rotary(raw, 150_000.0) if tables else replace(YARN, theta=theta)


KEYS = decoders.keys(
    Key.flag("attention_bias", f"{ATTN}.bias", True),
    *decoders.expert_keys("num_local_experts", 128, 4),
    Key.number("swiglu_alpha", f"{FFN}.alpha", 1.702),
    Key.number("swiglu_limit", f"{FFN}.limit", 7.0),
    context=131_072,
    kv_heads=8,
    head_dim=64,
    mlp=f"{FFN}.expert",
    eps=decoders.eps("rms_norm_eps", 1e-5),
    rotary=Key("", "decoder.position", _positions),
)


def read_config(raw: ConfigReader) -> Model:
    """A GPT-OSS config.json as our config."""
    model = read_keys(raw, gpt_oss(36, 128), KEYS)
    size = raw.integer(
        "sliding_window", decoders.unsaid(raw, "sliding_window", 128), most=MOST_POSITIONS
    )
    slides = [i % 2 == 0 for i in range(model.decoder.depth)]
    return decoders.with_blocks(
        model, decoders.with_masks(model, decoders.read_windows(raw, size, slides))
    )


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a GPT-OSS config.json, as far as that can say it."""
    raw = decoders.write(model, KEYS)
    theta, scaling = raw.pop("rope_theta"), raw.pop("rope_scaling")
    return {
        **raw,
        "rope_parameters": {"rope_type": "default", **(scaling or {}), "rope_theta": theta},
        "sliding_window": decoders.window_size(model),
        "layer_types": decoders.write_windows(model),
    }


_MLP, _FFN = f"{decoders.THEIRS}.mlp", f"{decoders.OURS}.ffn"

GPT_OSS = Recipe(
    name="gpt_oss",
    paper="OpenAI 2025, gpt-oss-120b & gpt-oss-20b Model Card (arXiv 2508.10925)",
    sizes={"20b": gpt_oss(24, 32), "120b": gpt_oss(36, 128)},
    architectures=("GptOssForCausalLM", "GptOssModel"),
    model_type="gpt_oss",
    tokenizer="openai/gpt-oss-20b",
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table(
        {**decoders.ATTENTION, **decoders.NORMS, "ffn.router": "mlp.router"},
        NameRule(f"{decoders.THEIRS}.self_attn.sinks", f"{decoders.OURS}.attn.sinks"),
        # gate and up take turns
        NameRule(
            f"{_MLP}.experts.gate_up_proj",
            (f"{_FFN}.gate", f"{_FFN}.up"),
            axes="e c (d 2) -> (2 e) d c",
        ),
        NameRule(
            f"{_MLP}.experts.gate_up_proj_bias",
            (f"{_FFN}.gate_bias", f"{_FFN}.up_bias"),
            axes="e (d 2) -> (2 e) d",
        ),
        NameRule(f"{_MLP}.experts.down_proj", f"{_FFN}.down", transpose=True),
        NameRule(f"{_MLP}.experts.down_proj_bias", f"{_FFN}.down_bias"),
    ),
)
