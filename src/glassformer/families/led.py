"""LED: BART whose encoder attends within windows and to a few global tokens.

No word of theirs says which tokens are global: callers of transformers do, and none is unless they
do. Here ``global_tokens``, a word of our own, makes the first tokens of each source global.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import serial
from ..core.config.mask import Window
from ..core.config.model import Model
from ..core.config.position import Learned
from . import bart
from .keys import ConfigWords, Section, revise
from .longformer import GlobalTokens, LongformerAttention, SideTable, count_global
from .names import Table
from .recipe import ConfigReader, Settings, page, tile


def mask_of(window: int, tokens: int) -> Any:
    """The rule of ``window`` tokens around each, and so many global ``tokens``."""
    near: Any = Window(window // 2 + 1)
    return near | GlobalTokens(tokens) if tokens else near


def read_windows(raw: ConfigReader, model: Any, **layer: Any) -> Any:
    """The model with its windows and global tokens, ``layer`` what else its attentions have."""
    depth, windows = model.encoder.depth, raw.value("attention_window", 512)
    windows = windows if isinstance(windows, list) else [windows] * depth
    even = all(type(n) is int and n > 0 and n % 2 == 0 for n in windows)
    raw.must(even and len(windows) == depth, "attention_window", "an even number, or one a block")
    count = raw.value("global_tokens", 0)
    raw.must(type(count) is int and count >= 0, "global_tokens", "0 or more")
    block = model.encoder.pattern[0]
    blocks = [
        replace(block, attention=replace(block.attention, mask=mask_of(size, count), **layer))
        for size in windows
    ]
    return serial.change(model, {"encoder.pattern": tile(blocks)})


def write_windows(model: Model) -> Settings:
    """Settings of windows and global tokens."""
    encoder = model.stacks["encoder"]
    attentions: list[Any] = [block.attention for block in encoder.blocks]
    masks = [getattr(mixer, "mask", None) for mixer in attentions]
    sizes = [getattr(mask, "rules", (mask,))[0] for mask in masks]
    raw: Settings = {"attention_window": [2 * getattr(window, "size", 1) - 2 for window in sizes]}
    count = count_global(masks[0])
    return {**raw, "global_tokens": count} if count else raw


BART: Any = bart.words(bart.TABLE, place="post", normed=True, first=2)
WORDS = ConfigWords(
    serial.change(
        BART.template,
        {
            "encoder.pattern.attention": LongformerAttention(1, bias=True, mask=mask_of(2, 1)),
            "encoder.position": Learned(64),
            "decoder.position": SideTable(64),
        },
    ),
    revise(
        BART.entries,
        Section(read_windows, write_windows),
        # a tokenizer's follows, where there is one; theirs fills windows with it
        Section(encode=lambda model: {"pad_token_id": 1}),
        max_encoder_position_embeddings=(16_384, "context encoder.position.length"),
        max_decoder_position_embeddings=(1024, "decoder.position.length"),
        without="max_position_embeddings scale_embedding",
    ),
)
_CONTENT = {"attn.q": "query", "attn.k": "key", "attn.v": "value"}
ENCODER = {
    "attn.out": "self_attn.output",
    **{
        f"{name}{end}": f"self_attn.longformer_self_attn.{word}{end}"
        for name, word in _CONTENT.items()
        for end in ("", "_global")
    },
}


def table(model: Model) -> Table:
    """BART's names of the weights in LED's words, and the layers of global tokens."""
    return bart.table(model, "led", ENCODER)


LED = page("led", words=WORDS, weights=table)
