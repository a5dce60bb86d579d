"""GPT-Neo, whose shape the TinyStories models have: every other block sees a window only, and
scores are not scaled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import (
    MLP,
    Attention,
    Block,
    Decoder,
    Embed,
    Full,
    Head,
    LayerNorm,
    Learned,
    Model,
    Stack,
    Window,
)
from . import decoders_old as decoders
from . import gpt2
from .keys_old import MOST_BLOCKS, MOST_POSITIONS, read_keys, write_keys
from .recipe import ConfigReader, Recipe


def gpt_neo(dim: int, depth: int, heads: int) -> Decoder:
    """The shape of GPT-Neo: windows of 256 in every other block, 50,257 tokens, 2,048 positions."""
    attention = Attention(heads, out_bias=True, scale=1.0)
    blocks = tuple(
        Block(replace(attention, mask=mask), MLP(4 * dim, bias=True), LayerNorm())
        for mask in (Full(), Window(256))
    )
    stack = Stack(depth, blocks, Learned(2048), last_norm=LayerNorm())
    return Decoder(dim, 2048, Embed(50_257), stack, Head(), decoders.INIT)


KEYS = gpt2.keys(
    dim="hidden_size",
    depth="num_layers",
    heads="num_heads",
    hidden="intermediate_size",
    positions="max_position_embeddings",
    context=2048,
    dropouts="resid_dropout embed_dropout attention_dropout",
)


def read_config(raw: ConfigReader) -> Model:
    """A GPT-Neo config.json as our config."""
    plain = gpt_neo(2048, 2, 16)
    plain = decoders.with_blocks(plain, [decoders.first_block(plain)])
    model = read_keys(raw, plain, KEYS)
    groups = raw.value("attention_types", [[["global", "local"], 12]])
    depth = model.decoder.depth
    kinds = _spread(groups) if _is_grouped(groups) else []
    raw.must(
        len(kinds) == depth,
        "attention_types",
        f'groups such as [["global", "local"], {depth // 2}] for {depth} blocks',
    )
    window = Window(raw.integer("window_size", 256, most=MOST_POSITIONS))
    masks = [window if kind == "local" else Full() for kind in kinds]
    return decoders.with_blocks(model, decoders.with_masks(model, masks))


def _is_grouped(groups: Any) -> bool:
    """True for groups of blocks: each names the blocks, and says how many times they repeat."""
    return isinstance(groups, list) and all(
        isinstance(group, list)
        and len(group) == 2
        and isinstance(group[0], list)
        and all(kind in ("global", "local") for kind in group[0])
        and type(group[1]) is int
        and 0 < group[1] <= MOST_BLOCKS
        for group in groups
    )


def _spread(groups: list[Any]) -> list[str]:
    return [kind for kinds, times in groups for _ in range(times) for kind in kinds]


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a GPT-Neo config.json, as far as that can say it."""
    kinds = decoders.write_windows(model)
    names = {"full_attention": "global", "sliding_attention": "local"}
    return {
        **write_keys(model, KEYS),
        "attention_types": [[[names[kind] for kind in kinds], 1]],
        "window_size": decoders.window_size(model) or 256,
    }


GPT_NEO = Recipe(
    name="gpt_neo",
    paper="Black et al. 2021, GPT-Neo; Eldan & Li 2023, TinyStories (arXiv 2305.07759)",
    sizes={
        "125m": gpt_neo(768, 12, 12),
        "1.3b": gpt_neo(2048, 24, 16),
        "2.7b": gpt_neo(2560, 32, 20),
        "tinystories-1m": gpt_neo(64, 8, 16),
        "tinystories-3m": gpt_neo(128, 8, 16),
        "tinystories-8m": gpt_neo(256, 8, 16),
        "tinystories-28m": gpt_neo(512, 8, 16),
        "tinystories-33m": gpt_neo(768, 4, 16),
    },
    architectures=("GPTNeoForCausalLM", "GPTNeoModel"),
    model_type="gpt_neo",
    tokenizer="EleutherAI/gpt-neo-125m",
    read_config=read_config,
    write_config=write_config,
    weights=gpt2.table(
        {
            **gpt2.LAYERS,
            "attn.q": "attn.attention.q_proj",
            "attn.k": "attn.attention.k_proj",
            "attn.v": "attn.attention.v_proj",
            "attn.out": "attn.attention.out_proj",
        }
    ),
)
