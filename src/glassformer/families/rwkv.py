"""RWKV-4: no attention; a mean of values that forgets, and a feed-forward that reads the token before.

Each block of a file is two blocks here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import Block, LayerNorm, Model, NoPosition, Stack
from ..core.errors import need
from .decoder_pages import NO_NAMES, blocks_of, decoder, first_layer, stack, table
from .keys import MOST_BLOCKS, MOST_HIDDEN, ConfigWords, Section, keys
from .mixers import ChannelMix, TimeMix
from .names import Names, Table, placed, under
from .recipe import ConfigReader, Settings, page, tile

MIXER: Any = TimeMix(1)
LAST_EPS = 1e-5  # of the last norm, whatever a file says


def _read_blocks(raw: ConfigReader, model: Any) -> Any:
    """The model with its blocks.

    Files halve the residual stream after each ``rescale_every`` blocks. A norm sees that as an eps
    four times as large.
    """
    every = raw.value("rescale_every", 6)
    raw.must(type(every) is int, "rescale_every", "a number of blocks, or 0")
    time: Any = TimeMix(raw.integer("attention_hidden_size", model.dim, most=MOST_HIDDEN))
    channel: Any = ChannelMix(raw.integer("intermediate_size", 4 * model.dim, most=MOST_HIDDEN))
    depth = raw.integer("num_hidden_layers", 32, most=MOST_BLOCKS)
    eps = raw.number("layer_norm_epsilon", 1e-5, most=1.0)
    sizes = [4.0 ** (i // every if every > 0 else 0) for i in range(depth + 1)]
    norms = [LayerNorm(eps * size) for size in sizes[:-1]]
    blocks = [Block(mixer, None, norm) for norm in norms for mixer in (time, channel)]
    outer_norms: Any = {"first_norm": norms[0], "last_norm": LayerNorm(LAST_EPS * sizes[-1])}
    return replace(model, decoder=Stack(2 * depth, tile(blocks), NoPosition(), **outer_norms))


def _write_blocks(model: Model) -> Settings:
    last: Any = stack(model).last_norm
    norms: list[Any] = [block.norm for block in blocks_of(model)[::2]]
    need(
        all(isinstance(norm, LayerNorm) for norm in (*norms, last)),
        "The rwkv layout holds blocks with LayerNorm.",
    )
    ratios = [norm.eps / norms[0].eps for norm in norms] + [last.eps / LAST_EPS]
    return {
        "num_hidden_layers": len(norms),
        "attention_hidden_size": first_layer(model, TimeMix(1)).inner,
        "intermediate_size": first_layer(model, ChannelMix(1)).hidden,
        "layer_norm_epsilon": norms[0].eps,
        "rescale_every": next((i for i, ratio in enumerate(ratios) if ratio != 1), 0),
    }


def _table(layer: str, norm: str, layers: Names, tables: Names = NO_NAMES) -> Table:
    """The table of one of a file's two layers in a block."""
    words = ("key", "value", "receptance")
    return table(
        {"attn_norm": norm},
        under(layer, layers),
        tables=under(layer, tables),
        fused={f"attn.mix_{word[0]}": f"{layer}.time_mix_{word}" for word in words},
        suffixes=("",),
        axes="1 h c -> (1 h c)",
        layer="rwkv.blocks.{i}",
        token="rwkv.embeddings",
        last_norm="rwkv.ln_out",
        outside={"decoder.first_norm": "rwkv.blocks.0.pre_ln"},
        head="head",
        prefix="rwkv.",
        ignore=(),
    )


TIME = _table(
    "attention",
    "ln1",
    {"k": "key", "v": "value", "r": "receptance", "out_proj": "output"},
    {"decay": "time_decay", "bonus": "time_first"},
)
CHANNEL = _table("feed_forward", "ln2", {"up": "key", "down": "value", "r": "receptance"})


def weights(model: Model) -> Table:
    """The names of its weights: a file's layer is two blocks here."""
    rules = (
        rule
        for first, layer in enumerate((TIME, CHANNEL))
        for rule in placed(layer.rules, map(str, range(first, stack(model).depth, 2)))
    )
    return replace(TIME, rules=tuple(dict.fromkeys(rules)))


page(
    "rwkv",
    words=ConfigWords(
        decoder(MIXER, None, LayerNorm(), NoPosition()),
        (
            *keys(
                "hidden_size",
                vocab_size=50_277,
                context_length=(1024, "context"),
                tie_word_embeddings=False,
            ),
            Section(_read_blocks, _write_blocks),
        ),
    ),
    weights=weights,
)
