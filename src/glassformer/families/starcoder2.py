"""StarCoder2: LayerNorm, few key-value heads, a sliding window, biases, a plain GELU
feed-forward."""

from __future__ import annotations

from ..core.config import (
    MLP,
    Attention,
    Block,
    Decoder,
    Embed,
    Head,
    Init,
    LayerNorm,
    Rotary,
    Stack,
    Window,
)
from . import decoders
from .decoders import ATTN, FFN
from .keys import Key
from .recipe import Recipe


def starcoder2(
    dim: int, depth: int, kv_heads: int, theta: float, std: float, tied: bool = True
) -> Decoder:
    """The shape of StarCoder2: heads of 128, windows of 4,096, 49,152 tokens, 16,384 positions."""
    attention = Attention(dim // 128, kv_heads, bias=True, mask=Window(4096))
    block = Block(attention, MLP(4 * dim, bias=True), LayerNorm())
    stack = Stack(depth, (block,), Rotary(theta), last_norm=LayerNorm(), dropout=0.1)
    return Decoder(dim, 16_384, Embed(49_152), stack, Head(tied=tied), Init(std, std, "plain"))


KEYS = decoders.keys(
    Key.only("norm_type", "layer_norm", "only LayerNorm is published"),
    Key.only("mlp_type", "default", "only the plain feed-forward is published"),
    Key.flag("use_bias", f"{ATTN}.bias {FFN}.bias", True),
    decoders.window(),
    context=4096,
    kv_heads=2,
    tied=True,
    act="gelu_pytorch_tanh",
    eps=decoders.eps("norm_epsilon", 1e-5),
    dropouts="residual_dropout embedding_dropout attention_dropout",
)
read_config = decoders.config_reader(starcoder2(3072, 30, 2, 1e5, 0.02), KEYS)
write_config = decoders.writer(KEYS)

STARCODER2 = Recipe(
    name="starcoder2",
    paper="Lozhkov et al. 2024, StarCoder 2 and The Stack v2: The Next Generation (arXiv "
    "2402.19173)",
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
    weights=decoders.table(
        {**decoders.ATTENTION, **decoders.NORMS, "ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"}
    ),
)
