"""mT5 and umT5: T5 1.1 in a hundred languages.

mT5 never scales its tied head. Each block of a umT5 has a table of biases; its head is scaled as its
config.json says, whereas transformers 5 scales that of every umT5.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import serial
from ..core.config.model import EncoderDecoder, Model, stacks
from ..core.config.position import NoPosition
from . import t5
from .recipe import ConfigReader, Recipe, Settings

DEFAULTS = {"feed_forward_proj": "gated-gelu", "n_positions": 1024, "decoder_start_token_id": 0}


def mt5(dim: int, depth: int, heads: int, hidden: int, vocab: int = 250_112) -> EncoderDecoder:
    """The shape of mT5: T5 1.1 with 250,112 tokens, trained on 1,024 of them."""
    changes = {"context": 1024, "embed.vocab": vocab}
    return serial.change(t5.t5_v1_1(dim, depth, heads, hidden), changes)


def with_biases(model: Any, inside: bool) -> Any:
    """The model with a table of biases in each block, ``inside``, or one in each stack."""
    changed: Settings = {}
    for side, stack in stacks(model).items():
        biases = stack.pattern[0].position or stack.position
        position: Any = biases if inside else None
        pattern = tuple(replace(block, position=position) for block in stack.pattern)
        changed[side] = replace(stack, pattern=pattern, position=NoPosition() if inside else biases)
    return replace(model, **changed)


def umt5(dim: int, depth: int, heads: int, hidden: int) -> Any:
    """The shape of umT5: mT5 with 256,384 tokens and a table of biases in each block."""
    return with_biases(mt5(dim, depth, heads, hidden, 256_384), inside=True)


def read_config(raw: ConfigReader) -> Model:
    """An mT5 config.json as our config: T5's words, without a scale of the head."""
    table = {**DEFAULTS, **raw.table, "scale_decoder_outputs": False}
    return t5.read_config(replace(raw, table=table))


def write_config(model: Model) -> Settings:
    """Our config as an mT5 config.json, as far as that can say it."""
    raw = t5.write_config(model)
    raw.pop("scale_decoder_outputs", None)
    named = {"architectures": [f"M{raw['architectures'][0]}"]}
    return {"decoder_start_token_id": None, **raw, **named}


def read_umt5(raw: ConfigReader) -> Model:
    """A umT5 config.json as our config: T5's words."""
    model: Model = with_biases(
        t5.read_config(replace(raw, table={**DEFAULTS, **raw.table})), inside=True
    )
    return model


def write_umt5(model: Model) -> Settings:
    """Our config as a umT5 config.json, as far as that can say it."""
    raw = t5.write_config(with_biases(model, inside=False))
    named = {"architectures": [f"UM{raw['architectures'][0]}"]}
    return {"decoder_start_token_id": None, **raw, **named}


def both(**sizes: EncoderDecoder) -> dict[str, Model]:
    """Sizes, and their encoders alone."""
    return {**sizes, **{f"{size}-encoder": t5.alone(model) for size, model in sizes.items()}}


MT5 = Recipe(
    name="mt5",
    paper="Xue et al. 2021, mT5: A massively multilingual pre-trained text-to-text transformer "
    "(arXiv 2010.11934)",
    sizes=both(
        small=mt5(512, 8, 6, 1024),
        base=mt5(768, 12, 12, 2048),
        large=mt5(1024, 24, 16, 2816),
        xl=mt5(2048, 24, 32, 5120),
        xxl=mt5(4096, 24, 64, 10_240),
    ),
    architectures=(f"M{t5.WHOLE}", f"M{t5.ENCODER}", "MT5Model"),
    model_type="mt5",
    tokenizer="google/mt5-small (Unigram)",
    read_config=read_config,
    write_config=write_config,
    weights=t5.table,
)
UMT5 = Recipe(
    name="umt5",
    paper="Chung et al. 2023, UniMax: Fairer and more Effective Language Sampling (arXiv 2304.09151)",
    sizes=both(
        small=umt5(512, 8, 6, 1024),
        base=umt5(768, 12, 12, 2048),
        xl=umt5(2048, 24, 32, 5120),
        xxl=umt5(4096, 24, 64, 10_240),
    ),
    architectures=(f"UM{t5.WHOLE}", f"UM{t5.ENCODER}", "UMT5Model"),
    model_type="umt5",
    tokenizer="google/umt5-small (Unigram)",
    read_config=read_umt5,
    write_config=write_umt5,
    weights=t5.table,
)
