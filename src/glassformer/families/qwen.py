"""Qwen: a Llama with biases on queries, keys and values (2, 2.5), or with normalised queries and
keys (3).

Blocks may slide a window, and any block may be a mixture of experts, with a shared one in Qwen 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..core.config import (
    Attention,
    Block,
    Decoder,
    Embed,
    GatedMLP,
    Head,
    Model,
    MoE,
    RMSNorm,
    Rotary,
    Stack,
)
from . import decoders, mixtures
from .decoders import ATTN
from .gated_expert import GatedExpert
from .keys import MOST_POSITIONS, Key, read_keys
from .recipe import ConfigReader, Recipe

NORM = RMSNorm(1e-6)


def qwen2(
    dim: int,
    depth: int,
    heads: int,
    kv_heads: int,
    hidden: int,
    context: int = 131_072,
    eps: float = 1e-6,
) -> Decoder:
    """The shape of Qwen 2 and 2.5: up to 3b the head is tied, above the table is padded further."""
    small, norm = dim <= 2048, RMSNorm(eps)
    block = Block(Attention(heads, kv_heads, bias=True, out_bias=False), GatedMLP(hidden), norm)
    stack = Stack(depth, (block,), Rotary(1e6), last_norm=norm)
    return Decoder(
        dim, context, Embed(151_936 if small else 152_064), stack, Head(tied=small), decoders.INIT
    )


def qwen3(dim: int, depth: int, heads: int, think: int | MoE, kv_heads: int = 8) -> Decoder:
    """The shape of Qwen 3: heads of 128, 40,960 positions; up to 4b the head is tied."""
    feedforward = think if isinstance(think, MoE) else GatedMLP(think)
    block = Block(Attention(heads, kv_heads, 128, qk_norm=NORM), feedforward, NORM)
    stack = Stack(depth, (block,), Rotary(1e6), last_norm=NORM)
    tied = isinstance(feedforward, GatedMLP) and dim <= 2560
    return Decoder(dim, 40_960, Embed(151_936), stack, Head(tied=tied), decoders.INIT)


def qwen2moe(
    dim: int, depth: int, heads: int, kv_heads: int, mixture: MoE, context: int
) -> Decoder:
    """The shape of Qwen 1.5 and 2 with mixtures: 151,936 tokens, a head of its own."""
    block = Block(Attention(heads, kv_heads, bias=True, out_bias=False), mixture, NORM)
    stack = Stack(depth, (block,), Rotary(1e6), last_norm=NORM)
    return Decoder(dim, context, Embed(151_936), stack, Head(tied=False), decoders.INIT)


# ---------------------------------------------------------------------------------- config.json, in


KEYS2 = decoders.keys(
    Key.only("use_mrope", False, "positions here have one dimension"), context=32_768, kv_heads=32
)
_EPS3 = decoders.eps("rms_norm_eps", 1e-6, f"{ATTN}.qk_norm.eps")
_BIAS3 = Key.flag("attention_bias", f"{ATTN}.bias", False)
KEYS3 = decoders.keys(_BIAS3, context=32_768, kv_heads=32, head_dim=128, eps=_EPS3)
KEYS2MOE = decoders.without(
    decoders.keys(
        Key("qkv_bias", f"{ATTN}.bias", lambda raw: raw.flag("qkv_bias", True)),
        context=32_768,
        kv_heads=16,
    ),
    "head_dim",
)
KEYS3MOE = decoders.keys(_BIAS3, context=32_768, kv_heads=4, eps=_EPS3)


def read_config2(raw: ConfigReader) -> Model:
    """A Qwen 2 or 2.5 config.json as our config."""
    return _windowed(raw, read_keys(raw, qwen2(896, 24, 14, 2, 4864), KEYS2))


def read_config3(raw: ConfigReader) -> Model:
    """A Qwen 3 config.json as our config."""
    return _windowed(raw, read_keys(raw, qwen3(1024, 28, 16, 3072), KEYS3))


def read_config3moe(raw: ConfigReader) -> Model:
    """A config.json of Qwen 3 with mixtures; ``router_aux_loss_coef`` weighs our own load-balancing
    loss."""
    model = read_keys(raw, qwen3(1024, 28, 16, 3072), KEYS3MOE)
    raw.only("layer_types", None, "the mixtures' blocks all see the same")
    slides = 0 if raw.flag("use_sliding_window", False) else model.decoder.depth
    experts = raw.value("num_local_experts", None)
    words = {"num_experts": experts, **raw.table, "max_window_layers": slides}
    raw = ConfigReader(words, raw.source)
    expert = replace(_mlp(model), hidden=768)
    mixture = MoE(128, 8, expert, normalize=False, balance_loss=0.001)
    blocks = _blocks(raw, model)
    return decoders.with_blocks(model, mixtures.mixed(raw, blocks, mixture))


def read_config2moe(raw: ConfigReader) -> Model:
    """A config.json of Qwen 2 with mixtures, whose shared expert has a gate.

    Where the file does not say which blocks have a window, every second one of the first
    ``max_window_layers`` has, as in transformers.
    """
    model = read_keys(raw, qwen2(896, 24, 14, 2, 4864), KEYS2MOE)
    size = _window(raw)
    first = raw.number("max_window_layers", 28.0)
    early = [size is not None and i % 2 == 0 and i < first for i in range(model.decoder.depth)]
    blocks = decoders.with_masks(model, decoders.read_windows(raw, size, early))
    mlp = _mlp(model)
    mixture = _sizes(60, 4, 1408, 5632)
    shared = GatedExpert(5632, mlp.act)
    mixture = replace(mixture, expert=replace(mlp, hidden=1408), shared=shared)
    return decoders.with_blocks(model, mixtures.mixed(raw, blocks, mixture))


def _mlp(model: Decoder) -> Any:
    return decoders.first_block(model).feedforward


def _windowed(raw: ConfigReader, model: Decoder) -> Decoder:
    return decoders.with_blocks(model, _blocks(raw, model))


def _blocks(raw: ConfigReader, model: Decoder) -> list[Block]:
    """Every block of the model, the later ones with a window where the file says so."""
    size = _window(raw)
    first = raw.number("max_window_layers", 28.0)
    late = [size is not None and i >= first for i in range(model.decoder.depth)]
    return decoders.with_masks(model, decoders.read_windows(raw, size, late))


def _window(raw: ConfigReader) -> int | None:
    """The size of the window, None where the file has none."""
    size: int | None = None
    if raw.flag("use_sliding_window", False):
        unsaid = decoders.unsaid(raw, "sliding_window", 4096)
        size = raw.integer("sliding_window", unsaid, most=MOST_POSITIONS)
    return size


# --------------------------------------------------------------------------------- config.json, out


def write_config2(model: Model, keys: Sequence[Key] = KEYS2) -> dict[str, Any]:
    """Our config as a Qwen 2 config.json, as far as that can say it."""
    raw = decoders.write(model, keys)
    kinds, size = decoders.write_windows(model), decoders.window_size(model)
    windows = {"use_sliding_window": size is not None, "sliding_window": size, "layer_types": kinds}
    # the blocks before the first window
    full = [*kinds, "sliding_attention"].index("sliding_attention")
    return {**raw, **windows, "max_window_layers": full}


def write_config3(model: Model) -> dict[str, Any]:
    """Our config as a Qwen 3 config.json, as far as that can say it."""
    return write_config2(model, KEYS3)


def write_config3moe(model: Model) -> dict[str, Any]:
    """Our config as the config.json of a Qwen 3 with mixtures, as far as that can say it."""
    raw = {**write_config3(model), **mixtures.write_mixed(model, "qwen3moe")}
    del raw["layer_types"]
    return raw


def write_config2moe(model: Model) -> dict[str, Any]:
    """Our config as the config.json of a Qwen 2 with mixtures, as far as that can say it."""
    return {**write_config2(model, KEYS2MOE), **mixtures.write_mixed(model, "qwen2moe")}


# ---------------------------------------------------------------------------------------- the pages

_PARTS = {**decoders.ATTENTION, **decoders.GATED, **decoders.NORMS}
_NORMED = {**_PARTS, **decoders.QK_NORMS}


def _sizes(experts: int, top_k: int, hidden: int, shared: int) -> MoE:
    return MoE(
        experts,
        top_k,
        GatedMLP(hidden),
        normalize=False,
        balance_loss=0.001,
        shared=GatedExpert(shared),
    )


QWEN2 = Recipe(
    name="qwen2",
    paper="Yang et al. 2024, Qwen2 Technical Report (arXiv 2407.10671); Qwen2.5 Technical Report "
    "(arXiv 2412.15115)",
    sizes={
        "0.5b": qwen2(896, 24, 14, 2, 4864),
        "1.5b": qwen2(1536, 28, 12, 2, 8960),
        "7b": qwen2(3584, 28, 28, 4, 18_944),
        "72b": qwen2(8192, 80, 64, 8, 29_568, eps=1e-5),
        "2.5-0.5b": qwen2(896, 24, 14, 2, 4864, context=32_768),
        "2.5-1.5b": qwen2(1536, 28, 12, 2, 8960),
        "2.5-3b": qwen2(2048, 36, 16, 2, 11_008, context=32_768),
        "2.5-7b": qwen2(3584, 28, 28, 4, 18_944),
        "2.5-14b": qwen2(5120, 48, 40, 8, 13_824, eps=1e-5),
        "2.5-32b": qwen2(5120, 64, 40, 8, 27_648, eps=1e-5),
        "2.5-72b": qwen2(8192, 80, 64, 8, 29_568, eps=1e-5),
    },
    architectures=("Qwen2ForCausalLM", "Qwen2Model"),
    model_type="qwen2",
    tokenizer="Qwen/Qwen2.5-0.5B",
    read_config=read_config2,
    write_config=write_config2,
    weights=decoders.table(_PARTS),
)

QWEN3 = Recipe(
    name="qwen3",
    paper="Yang et al. 2025, Qwen3 Technical Report (arXiv 2505.09388)",
    sizes={
        "0.6b": qwen3(1024, 28, 16, 3072),
        "1.7b": qwen3(2048, 28, 16, 6144),
        "4b": qwen3(2560, 36, 32, 9728),
        "8b": qwen3(4096, 36, 32, 12_288),
        "14b": qwen3(5120, 40, 40, 17_408),
        "32b": qwen3(5120, 64, 64, 25_600),
    },
    architectures=("Qwen3ForCausalLM", "Qwen3Model"),
    model_type="qwen3",
    tokenizer="Qwen/Qwen3-0.6B",
    read_config=read_config3,
    write_config=write_config3,
    weights=decoders.table(_NORMED),
)

QWEN3MOE = Recipe(
    name="qwen3moe",
    paper="Yang et al. 2025, Qwen3 Technical Report (arXiv 2505.09388)",
    sizes={
        "30b-a3b": qwen3(2048, 48, 32, MoE(128, 8, GatedMLP(768), balance_loss=0.001), kv_heads=4),
        "235b-a22b": qwen3(
            4096, 94, 64, MoE(128, 8, GatedMLP(1536), balance_loss=0.001), kv_heads=4
        ),
    },
    architectures=("Qwen3MoeForCausalLM", "Qwen3MoeModel"),
    model_type="qwen3_moe",
    tokenizer="Qwen/Qwen3-30B-A3B",
    read_config=read_config3moe,
    write_config=write_config3moe,
    weights=decoders.table({**_NORMED, "ffn.router": "mlp.gate"}, *mixtures.EXPERTS),
)

QWEN2MOE = Recipe(
    name="qwen2moe",
    paper="Qwen Team 2024, Qwen1.5-MoE; Yang et al. 2024, Qwen2 Technical Report (arXiv 2407.10671)",
    sizes={
        "1.5-a2.7b": qwen2moe(2048, 24, 16, 16, _sizes(60, 4, 1408, 5632), context=8192),
        "57b-a14b": qwen2moe(3584, 28, 28, 4, _sizes(64, 8, 2560, 20_480), context=32_768),
    },
    architectures=("Qwen2MoeForCausalLM", "Qwen2MoeModel"),
    model_type="qwen2_moe",
    tokenizer="Qwen/Qwen1.5-MoE-A2.7B",
    read_config=read_config2moe,
    write_config=write_config2moe,
    weights=decoders.table({**_PARTS, **mixtures.GATED}, *mixtures.EXPERTS),
)
