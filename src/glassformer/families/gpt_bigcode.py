"""GPT-BigCode (SantaCoder, StarCoder): a GPT-2 whose heads share one head of keys and values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config import (
    MLP,
    Attention,
    Block,
    Decoder,
    Embed,
    Head,
    Init,
    LayerNorm,
    Learned,
    Model,
    Stack,
)
from ..core.errors import need
from . import decoders_old as decoders
from . import gpt2
from .keys_old import Key, read_keys, write_keys
from .names import Table
from .recipe import ConfigReader, Recipe


def gpt_bigcode(
    dim: int, depth: int, heads: int, hidden: int, context: int, std: float, vocab: int = 49_152
) -> Decoder:
    """The shape of GPT-BigCode: learned positions, biases everywhere."""
    block = Block(Attention(heads, 1, bias=True), MLP(hidden, bias=True), LayerNorm())
    stack = Stack(depth, (block,), Learned(context), last_norm=LayerNorm(), dropout=0.1)
    return Decoder(dim, context, Embed(vocab), stack, Head(), Init(std, std, "plain"))


_WIDE = "a softmax here has the precision of fp32"
KEYS = gpt2.keys(
    gpt2.SCALED,
    gpt2.ALONE,
    Key.only("attention_softmax_in_fp32", True, _WIDE),
    Key.only("scale_attention_softmax_in_fp32", True, _WIDE),
    act="gelu_pytorch_tanh",
    dropout=0.1,
)


def read_config(raw: ConfigReader) -> Model:
    """A GPT-BigCode config.json as our config."""
    model = read_keys(raw, gpt_bigcode(2048, 24, 16, 8192, 2048, 0.02), KEYS)
    block = decoders.first_block(model)
    kv_heads = 1 if raw.flag("multi_query", True) else None
    attention = replace(block.attention, kv_heads=kv_heads)
    return decoders.with_blocks(model, [replace(block, attention=attention)])


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a GPT-BigCode config.json, as far as that can say it."""
    attention = decoders.first_block(model).attention
    shared = attention.kv_heads == 1 and attention.heads > 1
    need(
        shared or attention.kv_heads in (None, attention.heads),
        f"The gpt_bigcode layout holds 1 or {attention.heads} heads of keys and values.",
    )
    return {**write_keys(model, KEYS), "multi_query": shared}


def weights(model: Model) -> Table:
    """The table of the model's weights: where each head has keys of its own, it has all three."""
    attention = decoders.first_block(model).attention
    shared = attention.kv_heads == 1 and attention.heads > 1
    axes = "" if shared else "(h 3 d) c -> (3 h d) c"
    fused = gpt2.fused("attn.c_attn", axes=axes, heads=attention.heads)
    return gpt2.table(gpt2.LAYERS, *fused)


GPT_BIGCODE = Recipe(
    name="gpt_bigcode",
    paper="Ben Allal et al. 2023, SantaCoder (arXiv 2301.03988); Li et al. 2023, StarCoder (arXiv "
    "2305.06161)",
    sizes={
        "tiny-starcoder": gpt_bigcode(768, 20, 12, 3072, 8192, 0.02),
        "santacoder": gpt_bigcode(2048, 24, 16, 8192, 2048, 0.02, vocab=49_280),
        "starcoderbase-1b": gpt_bigcode(2048, 24, 16, 8192, 8192, 0.022097),
        "starcoderbase-3b": gpt_bigcode(2816, 36, 22, 11_264, 8192, 0.01884),
        "starcoderbase-7b": gpt_bigcode(4096, 42, 32, 16_384, 8192, 0.015625),
        "starcoder": gpt_bigcode(6144, 40, 48, 24_576, 8192, 0.012758),
    },
    architectures=("GPTBigCodeForCausalLM", "GPTBigCodeModel"),
    model_type="gpt_bigcode",
    tokenizer="bigcode/tiny_starcoder_py",
    read_config=read_config,
    write_config=write_config,
    weights=weights,
)
