"""Mamba-2: no attention and no feed-forward, a state space model in each block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..core.config import Block, Decoder, Embed, Head, Model, NoPosition, RMSNorm, Stack
from ..core.errors import need
from . import decoders
from .keys import MOST_BLOCKS, MOST_TOKENS, Key, read_keys, read_part, write_keys, write_part
from .mixers import Mamba2
from .names import NameRule, Table, rules
from .recipe import ConfigReader, Recipe

PLACES = ["state_heads", "head_dim", "state", "groups", "kernel", "bias", "conv_bias", "eps"]
FREE = [0.0, float("inf")]  # steps as long as a token says
CONTEXT = 1 << 20  # no file tells one: a state reads any length


def mamba2(dim: int, depth: int) -> Decoder:
    """The shape of Mamba-2: heads of 64 over twice the width, 50,288 tokens, a tied head."""
    mixer: Any = Mamba2(2 * dim // 64)
    block = Block(mixer, None, RMSNorm(1e-5))
    stack = Stack(depth, (block,), NoPosition(), last_norm=RMSNorm(1e-5))
    return Decoder(dim, CONTEXT, Embed(50_288), stack, Head(), decoders.INIT)


def mixer_words(words: str) -> dict[str, str]:
    """The words of a mixer and their places in it, in the order of ``PLACES``."""
    return dict(zip(words.split(), PLACES, strict=True))


WORDS = mixer_words(
    "num_heads head_dim state_size n_groups conv_kernel use_bias use_conv_bias layer_norm_epsilon"
)
KEYS = (
    Key.integer("hidden_size", "dim"),
    Key.integer("num_hidden_layers", "decoder.depth", 64, most=MOST_BLOCKS),
    Key.integer("vocab_size", "embed.vocab", 32_768, most=MOST_TOKENS),
    Key.flag("tie_word_embeddings", "head.tied", False),
    Key.std("initializer_range"),
    Key.only("hidden_act", "silu", "the convolution and the gate here are silu"),
    decoders.eps("layer_norm_epsilon", 1e-5),
)


def read_mixer(raw: ConfigReader, words: Mapping[str, str], default: Mamba2) -> Any:
    """The mixer of a config.json that has blocks of other types as well."""
    free = [FREE, [0.0, {"__float__": "Infinity"}]]
    raw.must(raw.value("time_step_limit", FREE) in free, "time_step_limit", "[0.0, Infinity]")
    return read_part(raw, default, words)


def check_expansion(raw: ConfigReader, key: str, mixer: Mamba2, dim: int) -> None:
    """Refuse heads that are not as wide together as the file says."""
    raw.must(
        raw.integer(key, 2, most=64) * dim == mixer.inner,
        key,
        f"the width of all heads together ({mixer.inner}) over hidden_size ({dim})",
    )


def write_mixer(model: Model, words: Mapping[str, str], expand: str) -> dict[str, Any]:
    """The words of the model's first mixer, or of a usual one."""
    mixer = decoders.first_mixer(model, Mamba2(1, 2 * model.dim))
    return {**write_part(mixer, words), expand: mixer.inner // model.dim}


def read_config(raw: ConfigReader) -> Model:
    """A Mamba-2 config.json as our config."""
    model = read_keys(raw, mamba2(768, 1), KEYS)
    mixer = read_mixer(raw, WORDS, Mamba2(128, groups=8))
    check_expansion(raw, "expand", mixer, model.dim)
    block = replace(decoders.first_block(model), attention=mixer)
    return decoders.with_blocks(model, [block])


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a Mamba-2 config.json, as far as that can say it."""
    mixer = decoders.first_block(model).attention
    need(isinstance(mixer, Mamba2), "The mamba2 layout holds only blocks of Mamba2.")
    return {**write_keys(model, KEYS), **write_mixer(model, WORDS, "expand")}


def mixer_rules(file_name: str, param_name: str) -> tuple[NameRule, ...]:
    """The names of a mixer's weights below its own."""
    layers = {"in_proj": "in_proj", "conv1d": "conv", "norm": "norm", "out_proj": "out_proj"}
    layers = {f"{file_name}.{file}": f"{param_name}.{param}" for file, param in layers.items()}
    alone = (
        NameRule(f"{file_name}.{end}", f"{param_name}.{end}") for end in ("A_log", "D", "dt_bias")
    )
    return (*rules(layers), *alone)


_LAYER = "backbone.layers.{i}"
_LAYERS = {
    f"{_LAYER}.norm": f"{decoders.OURS}.attn_norm",
    "backbone.norm_f": "decoder.last_norm",
    "lm_head": "head.proj",
}
MAMBA2 = Recipe(
    name="mamba2",
    paper="Dao & Gu 2024, Transformers are SSMs (arXiv 2405.21060)",
    sizes={
        "130m": mamba2(768, 24),
        "370m": mamba2(1024, 48),
        "780m": mamba2(1536, 48),
        "1.3b": mamba2(2048, 48),
        "2.7b": mamba2(2560, 64),
    },
    architectures=("Mamba2ForCausalLM", "Mamba2Model"),
    model_type="mamba2",
    tokenizer="EleutherAI/gpt-neox-20b",
    read_config=read_config,
    write_config=write_config,
    weights=Table(
        (
            NameRule("backbone.embeddings.weight", "embed.token.weight"),
            *rules(_LAYERS),
            *mixer_rules(f"{_LAYER}.mixer", f"{decoders.OURS}.attn"),
        ),
        copies=(("lm_head.weight", "backbone.embeddings.weight"),),
        prefix="backbone.",
    ),
)
