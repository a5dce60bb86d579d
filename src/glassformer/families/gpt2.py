"""GPT-2, and nanoGPT's variant of it: no biases, a vocabulary padded to a round number, the exact
GELU."""

from __future__ import annotations

from typing import Any

from ..core.config import (
    MLP,
    Activation,
    Attention,
    Block,
    Decoder,
    Embed,
    LayerNorm,
    Learned,
    Model,
    Stack,
    serial,
)
from .decoders import ATTN, BLOCK, FFN
from .keys import MOST_BLOCKS, MOST_HEADS, MOST_HIDDEN, MOST_TOKENS, Key, read_keys, write_keys
from .names import NameRule, Table, rules
from .recipe import ConfigReader, Recipe


def gpt2(
    dim: int,
    depth: int,
    heads: int,
    vocab: int = 50257,
    bias: bool = True,
    act: Activation = "gelu_tanh",
) -> Decoder:
    """The shape of GPT-2: learned positions, LayerNorm before, a tied head; 1,024 positions."""
    block = Block(Attention(heads, bias=bias), MLP(4 * dim, act, bias), LayerNorm(bias=bias))
    stack = Stack(depth, (block,), Learned(1024), last_norm=LayerNorm(bias=bias))
    return Decoder(dim, 1024, Embed(vocab), stack)


_BIASES = f"{ATTN}.bias {FFN}.bias {BLOCK}.norm.bias decoder.last_norm.bias"
KEYS = (
    Key.only(
        "scale_attn_weights", True, "attention here always divides by the root of the head's width"
    ),
    Key.only("scale_attn_by_inverse_layer_idx", False, "no attention here scales by its layer"),
    Key.only("add_cross_attention", False, "a decoder alone has nothing to look across at"),
    Key.integer("n_embd", "dim"),
    Key.integer("n_layer", "decoder.depth", most=MOST_BLOCKS),
    Key.integer("n_head", f"{ATTN}.heads", most=MOST_HEADS),
    Key(
        "n_inner",
        f"{FFN}.hidden",
        lambda raw: raw.integer("n_inner", 4 * raw.integer("n_embd"), most=MOST_HIDDEN),
    ),
    Key(
        "n_positions",
        "context decoder.position.length",
        lambda raw: raw.integer("n_positions", raw.integer("n_ctx", 1024)),
    ),
    Key.integer("vocab_size", "embed.vocab", most=MOST_TOKENS),
    Key.activation("activation_function", f"{FFN}.act", "gelu_new"),
    Key.number("layer_norm_epsilon", f"{BLOCK}.norm.eps decoder.last_norm.eps", 1e-5, most=1.0),
    Key.flag("tie_word_embeddings", "head.tied", True),
    Key.std("initializer_range"),
    Key.number("resid_pdrop attn_pdrop embd_pdrop", "decoder.dropout", 0.1, most=0.99),
    Key.flag("bias", _BIASES, True),  # nanoGPT's word
)


def read_config(raw: ConfigReader) -> Model:
    """A GPT-2 config.json as our config."""
    return read_keys(raw, gpt2(768, 12, 12), KEYS)


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a GPT-2 config.json, as far as that can say it."""
    raw = write_keys(model, KEYS)
    return {name: value for name, value in raw.items() if (name, value) != ("bias", True)}


def layout(model: Model) -> Model:
    """The same model with every bias: what the published files hold."""
    return serial.change(model, dict.fromkeys(_BIASES.split(), True))


_OURS, _THEIRS = "decoder.blocks.{i}", "transformer.h.{i}"
# (in, out) in their files
_MATRICES = {"attn.c_proj": "attn.out", "mlp.c_fc": "ffn.up", "mlp.c_proj": "ffn.down"}

RULES = (
    NameRule("transformer.wte.weight", "embed.token.weight"),
    NameRule("transformer.wpe.weight", "decoder.position.weight"),
    *(
        NameRule(
            f"{_THEIRS}.attn.c_attn.{end}",
            tuple(f"{_OURS}.attn.{x}.{end}" for x in "qkv"),
            transpose=end == "weight",
        )
        for end in ("weight", "bias")
    ),
    *rules(
        {
            f"{_THEIRS}.{file_name}": f"{_OURS}.{param_name}"
            for file_name, param_name in _MATRICES.items()
        },
        transpose=True,
    ),
    *rules({f"{_THEIRS}.ln_1": f"{_OURS}.attn_norm", f"{_THEIRS}.ln_2": f"{_OURS}.ffn_norm"}),
    *rules({"transformer.ln_f": "decoder.last_norm"}),
    NameRule("lm_head.weight", "head.proj.weight"),
)

GPT2 = Recipe(
    name="gpt2",
    paper="Radford et al. 2019, Language Models are Unsupervised Multitask Learners; Karpathy "
    "2022, nanoGPT",
    sizes={
        "124m": gpt2(768, 12, 12),
        "350m": gpt2(1024, 24, 16),
        "774m": gpt2(1280, 36, 20),
        "1.5b": gpt2(1600, 48, 25),
        "nanogpt": gpt2(768, 12, 12, vocab=50304, bias=False, act="gelu"),
    },
    architectures=("GPT2LMHeadModel", "GPT2Model"),
    model_type="gpt2",
    tokenizer="openai-community/gpt2",
    read_config=read_config,
    write_config=write_config,
    weights=Table(
        RULES,
        # the causal mask, kept as if it were a weight
        ignore=(f"{_THEIRS}.attn.bias", f"{_THEIRS}.attn.masked_bias"),
        copies=(("lm_head.weight", "transformer.wte.weight"),),
        prefix="transformer.",
    ),
    layout=layout,
)
