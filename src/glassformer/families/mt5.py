"""mT5: T5 1.1 in a hundred languages, whose tied head is never scaled."""

from __future__ import annotations

from dataclasses import replace

from ..core.config import serial
from ..core.config.model import EncoderDecoder, Model
from . import t5
from .recipe import ConfigReader, Recipe, Settings

DEFAULTS = {"feed_forward_proj": "gated-gelu", "n_positions": 1024, "decoder_start_token_id": 0}


def mt5(dim: int, depth: int, heads: int, hidden: int) -> EncoderDecoder:
    """The shape of mT5: T5 1.1 with 250,112 tokens, trained on 1,024 of them."""
    changes = {"context": 1024, "embed.vocab": 250_112}
    return serial.change(t5.t5_v1_1(dim, depth, heads, hidden), changes)


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


SIZES = {
    "small": mt5(512, 8, 6, 1024),
    "base": mt5(768, 12, 12, 2048),
    "large": mt5(1024, 24, 16, 2816),
    "xl": mt5(2048, 24, 32, 5120),
    "xxl": mt5(4096, 24, 64, 10_240),
}
MT5 = Recipe(
    name="mt5",
    paper="Xue et al. 2021, mT5: A massively multilingual pre-trained text-to-text transformer "
    "(arXiv 2010.11934)",
    sizes={**SIZES, **{f"{size}-encoder": t5.alone(model) for size, model in SIZES.items()}},
    architectures=(f"M{t5.WHOLE}", f"M{t5.ENCODER}", "MT5Model"),
    model_type="mt5",
    tokenizer="google/mt5-small (Unigram)",
    read_config=read_config,
    write_config=write_config,
    weights=t5.table,
)
