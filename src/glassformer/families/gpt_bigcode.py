"""GPT-BigCode (SantaCoder, StarCoder): a GPT-2 whose heads share one head of keys and values."""

from __future__ import annotations

from dataclasses import replace

from ..core.config import MLP, Attention, Block, Decoder, Head, Init, LayerNorm, Learned, Model
from ..core.errors import need
from . import gpt2
from .decoder_pages import decoder, first_block
from .keys import Key, Section, only
from .names import Table
from .recipe import Recipe, Settings


def gpt_bigcode(
    dim: int, depth: int, heads: int, hidden: int, context: int, std: float, vocab: int = 49_152
) -> Decoder:
    """The shape of GPT-BigCode: learned positions, biases everywhere."""
    block = Block(Attention(heads, 1, bias=True), MLP(hidden, bias=True), LayerNorm())
    model = decoder(dim, depth, context, vocab, block, Learned(context), Head(), dropout=0.1)
    return replace(model, init=Init(std, std, "plain"))


_WIDE = "a softmax here has the precision of fp32"


def _shares(model: Model) -> bool:
    attention = first_block(model).attention
    return attention.kv_heads == 1 and attention.heads > 1


def _write_heads(model: Model) -> Settings:
    attention, shared = first_block(model).attention, _shares(model)
    need(
        shared or attention.kv_heads in (None, attention.heads),
        f"The gpt_bigcode layout holds 1 or {attention.heads} heads of keys and values.",
    )
    return {"multi_query": shared}


WORDS = gpt2.words(
    gpt_bigcode(2048, 24, 16, 8192, 2048, 0.02),
    gpt2.SCALED,
    gpt2.ALONE,
    only("attention_softmax_in_fp32", True, _WIDE),
    only("scale_attention_softmax_in_fp32", True, _WIDE),
    Key("", "attention.kv_heads", lambda raw: 1 if raw.flag("multi_query", True) else None),
    Section(encode=_write_heads),
    dropouts="resid_pdrop attn_pdrop embd_pdrop",
    dropout=0.1,
    activation_function="gelu_pytorch_tanh",
)


def weights(model: Model) -> Table:
    """The table of the model's weights: where each head has keys of its own, it has all three."""
    axes = "" if _shares(model) else "(h 3 d) c -> (3 h d) c"
    fused = gpt2.fused("attn.c_attn", axes=axes, heads=first_block(model).attention.heads)
    return gpt2.table(gpt2.NORMS, gpt2.MATRICES, more=fused)


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
    tokenizer="bigcode/tiny_starcoder_py",
    words=WORDS,
    family="GPTBigCode",
    weights=weights,
)
