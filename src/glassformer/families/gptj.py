"""GPT-J and CodeGen: attention and feed-forward side by side, neighbouring dimensions of a head
turned as pairs."""

from __future__ import annotations

from typing import Any

from ..core.config import (
    MLP,
    Attention,
    Block,
    Decoder,
    Embed,
    Head,
    LayerNorm,
    Model,
    Rotary,
    Stack,
)
from ..core.errors import UserError
from . import decoders_old as decoders
from . import gpt2
from .keys_old import MOST_HEADS, Key, write_keys
from .recipe import ConfigReader, Recipe


def gptj(dim: int, depth: int, heads: int, turned: int, vocab: int = 50_400) -> Decoder:
    """The shape of GPT-J: ``turned`` dimensions of each head turn; 50,400 tokens, 2,048
    positions."""
    block = Block(Attention(heads), MLP(4 * dim, bias=True), LayerNorm(), place="parallel")
    position = Rotary(fraction=turned * heads / dim, interleaved=True)
    stack = Stack(depth, (block,), position, last_norm=LayerNorm())
    return Decoder(dim, 2048, Embed(vocab), stack, Head(tied=False, bias=True), decoders.INIT)


def _fraction(raw: ConfigReader) -> float:
    width = raw.integer("n_embd") // raw.integer("n_head", most=MOST_HEADS)
    raw.must(raw.table.get("rotary_dim", 64) is not None, "rotary_dim", "a number of dimensions")
    turned: int = raw.integer("rotary_dim", 64)
    raw.must(turned <= width, "rotary_dim", f"at most the width of a head ({width})")
    return turned / float(width)


KEYS = gpt2.keys(
    Key("", "decoder.position.fraction", _fraction), context=2048, table=False, tied=False
)
read_config = decoders.config_reader(gptj(4096, 28, 16, 64), KEYS)


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a GPT-J config.json, as far as that can say it."""
    position = decoders.stack(model).position
    if not isinstance(position, Rotary):
        raise UserError("The gptj layout holds only rotary positions.")
    width = decoders.first_block(model).attention.width(model.dim)
    return {**write_keys(model, KEYS), "rotary_dim": round(width * position.fraction)}


LAYERS = {"attn_norm": "ln_1", "ffn.up": "mlp.fc_in", "ffn.down": "mlp.fc_out"}
GPTJ = Recipe(
    name="gptj",
    paper="Wang & Komatsuzaki 2021, GPT-J-6B: A 6 Billion Parameter Autoregressive Language Model",
    sizes={"6b": gptj(4096, 28, 16, 64)},
    architectures=("GPTJForCausalLM", "GPTJModel"),
    model_type="gptj",
    tokenizer="EleutherAI/gpt-j-6b",
    read_config=read_config,
    write_config=write_config,
    weights=gpt2.table(
        {
            **LAYERS,
            "attn.q": "attn.q_proj",
            "attn.k": "attn.k_proj",
            "attn.v": "attn.v_proj",
            "attn.out": "attn.out_proj",
        }
    ),
)


def read_codegen(raw: ConfigReader) -> Model:
    """A CodeGen config.json as our config."""
    heads = raw.integer("n_head", most=MOST_HEADS)
    raw.must(heads % 4 == 0, "n_head", "a multiple of 4, the pieces of its fused weights")
    return read_config(raw)


CODEGEN = Recipe(
    name="codegen",
    paper="Nijkamp et al. 2022, CodeGen: An Open Large Language Model for Code (arXiv 2203.13474)",
    sizes={
        "350m": gptj(1024, 20, 16, 32, vocab=51_200),
        "2b": gptj(2560, 32, 32, 64, vocab=51_200),
        "6b": gptj(4096, 33, 16, 64, vocab=51_200),
        "16b": gptj(6144, 34, 24, 64, vocab=51_200),
    },
    architectures=("CodeGenForCausalLM", "CodeGenModel"),
    model_type="codegen",
    tokenizer="Salesforce/codegen-350M-mono",
    read_config=read_codegen,
    write_config=write_config,
    weights=gpt2.table(
        {**LAYERS, "attn.out": "attn.out_proj"},
        # four pieces, each with its queries, values and keys
        *gpt2.fused("attn.qkv_proj", "qvk", axes="(4 3 d) c -> (3 4 d) c"),
    ),
)
