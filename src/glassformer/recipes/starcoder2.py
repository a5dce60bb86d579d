"""StarCoder2: LayerNorm, few key-value heads, a sliding window, biases, a plain GELU feed-forward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config import MLP, Attention, Block, Decoder, Embed, Head, Init, LayerNorm, Model, Rotary, Stack, Window
from . import decoders
from .recipe import ConfigReader, Recipe


def starcoder2(dim: int, depth: int, kv_heads: int, theta: float, std: float, tied: bool = True) -> Decoder:
    """The shape of StarCoder2: heads of 128, windows of 4,096, 49,152 tokens, 16,384 positions."""
    attention = Attention(dim // 128, kv_heads, bias=True, mask=Window(4096))
    block = Block(attention, MLP(4 * dim, bias=True), LayerNorm())
    stack = Stack(depth, (block,), Rotary(theta), last_norm=LayerNorm(), dropout=0.1)
    return Decoder(dim, 16_384, Embed(49_152), stack, Head(tied=tied), Init(std, std, "plain"))


def read_config(raw: ConfigReader) -> Model:
    """A StarCoder2 config.json as our config; of its three dropouts, the residual's is the stack's."""
    raw.only("norm_type", "layer_norm", "only LayerNorm is published")
    raw.only("mlp_type", "default", "only the plain feed-forward is published")
    bias = raw.flag("use_bias", True)
    attention = replace(decoders.read_attention(raw, kv_heads=2, bias=bias), mask=decoders.read_window(raw))
    mlp = decoders.read_mlp(raw, "gelu_pytorch_tanh", bias)
    block = Block(attention, mlp, LayerNorm(raw.number("norm_epsilon", 1e-5, most=1.0)))
    dropout = raw.number("residual_dropout", 0.0, most=0.99)
    return decoders.read_decoder(raw, block, decoders.read_rotary(raw), context=4096, tied=True, dropout=dropout)


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a StarCoder2 config.json, as far as that can say it."""
    dropouts = "residual_dropout embedding_dropout attention_dropout"
    return decoders.write_decoder(model, "starcoder2", "norm_epsilon", "use_bias", window=True, dropouts=dropouts)


STARCODER2 = Recipe(
    name="starcoder2",
    paper="Lozhkov et al. 2024, StarCoder 2 and The Stack v2: The Next Generation (arXiv 2402.19173)",
    sizes={
        "3b": starcoder2(3072, 30, 2, 999_999.4420358813, 0.018042),
        "7b": starcoder2(4608, 32, 4, 1e6, 0.018042),
        "15b": starcoder2(6144, 40, 4, 1e5, 0.01275, tied=False),
    },
    architectures=("Starcoder2ForCausalLM", "Starcoder2Model"),
    model_type="starcoder2",
    tokenizer="bigcode/starcoder2-3b",
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table({**decoders.ATTENTION, **decoders.NORMS, "ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"}),
)
