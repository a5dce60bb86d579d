"""RWKV-4: no attention; a mean of values that forgets, and a feed-forward that reads the token before.

Each block of a file is two blocks here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import Block, Decoder, Embed, Head, LayerNorm, Model, NoPosition, Stack
from ..core.errors import need
from . import decoders
from .decoders import OURS
from .keys import (
    MOST_BLOCKS,
    MOST_HIDDEN,
    MOST_POSITIONS,
    MOST_TOKENS,
    Key,
    read_keys,
    write_keys,
)
from .mixers import ChannelMix, TimeMix
from .names import NameRule, Table, placed, rules
from .recipe import ConfigReader, Recipe, tile

LAST_EPS = 1e-5  # of the last norm, whatever a file says


def rwkv(
    dim: int, depth: int, inner: int = 0, hidden: int = 0, every: int = 6, eps: float = 1e-5
) -> Decoder:
    """The shape of RWKV-4: 50,277 tokens, 1,024 positions.

    Their files halve the residual stream after each ``every`` blocks. A norm sees that as an eps
    four times as large.
    """
    time: Any = TimeMix(inner or dim)
    channel: Any = ChannelMix(hidden or 4 * dim)
    sizes = [4.0 ** (i // every if every else 0) for i in range(depth + 1)]
    norms = [LayerNorm(eps * size) for size in sizes[:-1]]
    blocks = tile([Block(mixer, None, norm) for norm in norms for mixer in (time, channel)])
    last_norm = LayerNorm(LAST_EPS * sizes[-1])
    stack = Stack(2 * depth, blocks, NoPosition(), first_norm=norms[0], last_norm=last_norm)
    return Decoder(dim, 1024, Embed(50_277), stack, Head(tied=False), decoders.INIT)


KEYS = (
    Key.integer("hidden_size", "dim"),
    Key.integer("vocab_size", "embed.vocab", 50_277, most=MOST_TOKENS),
    Key.integer("context_length", "context", 1024, most=MOST_POSITIONS),
    Key.flag("tie_word_embeddings", "head.tied", False),
)


def read_config(raw: ConfigReader) -> Model:
    """An RWKV-4 config.json as our config."""
    model = read_keys(raw, rwkv(768, 1), KEYS)
    every = raw.value("rescale_every", 6)
    raw.must(type(every) is int, "rescale_every", "a number of blocks, or 0")
    shape = rwkv(
        model.dim,
        raw.integer("num_hidden_layers", 32, most=MOST_BLOCKS),
        raw.integer("attention_hidden_size", model.dim, most=MOST_HIDDEN),
        raw.integer("intermediate_size", 4 * model.dim, most=MOST_HIDDEN),
        max(every, 0),
        raw.number("layer_norm_epsilon", 1e-5, most=1.0),
    )
    return replace(model, decoder=shape.decoder)


def write_config(model: Model) -> dict[str, Any]:
    """Our config as an RWKV-4 config.json, as far as that can say it."""
    stack: Any = decoders.stack(model)
    time, channel = (
        decoders.first_mixer(model, TimeMix(1)),
        decoders.first_mixer(model, ChannelMix(1)),
    )
    norms: list[Any] = [stack.block(i).norm for i in range(0, stack.depth, 2)]
    need(
        bool(norms) and all(isinstance(norm, LayerNorm) for norm in (*norms, stack.last_norm)),
        "The rwkv layout holds blocks with LayerNorm.",
    )
    ratios = [norm.eps / norms[0].eps for norm in norms] + [stack.last_norm.eps / LAST_EPS]
    return {
        **write_keys(model, KEYS),
        "num_hidden_layers": len(norms),
        "attention_hidden_size": time.inner,
        "intermediate_size": channel.hidden,
        "layer_norm_epsilon": norms[0].eps,
        "rescale_every": next((i for i, ratio in enumerate(ratios) if ratio != 1), 0),
    }


_FILE = "rwkv.blocks.{i}"
_NAMES = {
    "attention": {"key": "k", "value": "v", "receptance": "r", "output": "out_proj"},
    "feed_forward": {"key": "up", "value": "down", "receptance": "r"},
}
_VECTORS = {"time_mix_key": "mix_k", "time_mix_value": "mix_v", "time_mix_receptance": "mix_r"}


def _layer(name: str, norm: str) -> tuple[NameRule, ...]:
    """The rules of one of a file's two layers in a block."""
    layer, mixer = f"{_FILE}.{name}", f"{OURS}.attn"
    layers = {f"{layer}.{file}": f"{mixer}.{param}" for file, param in _NAMES[name].items()}
    return (
        *rules({f"{_FILE}.{norm}": f"{OURS}.attn_norm", **layers}),
        *(
            NameRule(f"{layer}.{file}", f"{mixer}.{param}", axes="1 h c -> (1 h c)")
            for file, param in _VECTORS.items()
        ),
        NameRule(f"{layer}.time_decay", f"{mixer}.decay"),
        NameRule(f"{layer}.time_first", f"{mixer}.bonus"),
    )


def table(model: Model) -> Table:
    """The names of its weights, block by block."""
    outer = {"blocks.0.pre_ln": "first_norm", "ln_out": "last_norm"}
    depth = decoders.stack(model).depth
    return Table(
        (
            NameRule("rwkv.embeddings.weight", "embed.token.weight"),
            NameRule("head.weight", "head.proj.weight"),
            *rules({f"rwkv.{file}": f"decoder.{param}" for file, param in outer.items()}),
            *placed(_layer("attention", "ln1"), map(str, range(0, depth, 2))),
            *placed(_layer("feed_forward", "ln2"), map(str, range(1, depth, 2))),
        ),
        copies=(("head.weight", "rwkv.embeddings.weight"),),
        prefix="rwkv.",
    )


RWKV = Recipe(
    name="rwkv",
    paper="Peng et al. 2023, RWKV: Reinventing RNNs for the Transformer Era (arXiv 2305.13048)",
    sizes={
        "169m": rwkv(768, 12),
        "430m": rwkv(1024, 24),
        "1.5b": rwkv(2048, 24),
        "3b": rwkv(2560, 32),
        "7b": rwkv(4096, 32),
        "14b": rwkv(5120, 40),
    },
    architectures=("RwkvForCausalLM", "RwkvModel"),
    model_type="rwkv",
    tokenizer="RWKV/rwkv-4-169m-pile",
    read_config=read_config,
    write_config=write_config,
    weights=table,
)
