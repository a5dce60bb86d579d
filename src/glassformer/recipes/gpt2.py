"""GPT-2, and nanoGPT's variant of it: no biases, a vocabulary padded to a round number, the exact GELU."""

from __future__ import annotations

from typing import Any

from ..config import (
    MLP,
    Activation,
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
from ..errors import UserError
from .decoders import ACTIVATIONS, even_width, first_block, norm_eps, plain_mlp, write_act, write_std
from .recipe import ConfigReader, Recipe, Rule, Table, rules


def gpt2(
    dim: int, depth: int, heads: int, vocab: int = 50257, bias: bool = True, act: Activation = "gelu_tanh"
) -> Decoder:
    """The shape of GPT-2: learned positions, LayerNorm before, a tied head; 1,024 positions."""
    block = Block(Attention(heads, bias=bias), MLP(4 * dim, act, bias), LayerNorm(bias=bias))
    stack = Stack(depth, (block,), Learned(1024), last_norm=LayerNorm(bias=bias))
    return Decoder(dim, 1024, Embed(vocab), stack)


def read_config(raw: ConfigReader) -> Model:
    """A GPT-2 config.json as our config; nanoGPT's ``bias`` is understood too."""
    raw.only("scale_attn_weights", True, "attention here always divides by the root of the head's width")
    raw.only("scale_attn_by_inverse_layer_idx", False, "no attention here scales by its layer")
    raw.only("add_cross_attention", False, "a decoder alone has nothing to look across at")
    dim, bias = raw.whole("n_embd"), raw.flag("bias", True)
    norm = LayerNorm(raw.number("layer_norm_epsilon", 1e-5, most=1.0), bias)
    act = raw.choice("activation_function", ACTIVATIONS, "gelu_new")
    length = raw.whole("n_positions", raw.whole("n_ctx", 1024))
    block = Block(
        Attention(raw.whole("n_head", most=1 << 14), bias=bias),
        MLP(raw.whole("n_inner", 4 * dim, most=1 << 22), act, bias),
        norm,
    )
    stack = Stack(
        raw.whole("n_layer", most=2000),
        (block,),
        Learned(length),
        last_norm=norm,
        dropout=raw.number("resid_pdrop", 0.1, most=0.99),
    )
    std = raw.number("initializer_range", 0.02, most=10.0)
    return Decoder(
        dim,
        length,
        Embed(raw.whole("vocab_size", most=1 << 24)),
        stack,
        Head(tied=raw.flag("tie_word_embeddings", True)),
        Init(std, std),
    )


def write_config(model: Model) -> dict[str, Any]:
    """Our config as a GPT-2 config.json, as far as that can say it."""
    if not isinstance(model, Decoder) or model.head is None:
        raise UserError("The gpt2 layout holds only decoders with a head.")
    block = first_block(model)
    even_width(model, block, "gpt2")
    mlp = plain_mlp(block.feedforward)
    dropouts = ("attn_pdrop", "embd_pdrop", "resid_pdrop")
    raw = {
        "n_embd": model.dim,
        "n_layer": model.decoder.depth,
        "n_head": block.attention.heads,
        "n_inner": mlp.hidden,
        "n_positions": model.context,
        "vocab_size": model.embed.vocab,
        "activation_function": write_act(mlp.act, "gpt2"),
        "layer_norm_epsilon": norm_eps(block),
        "tie_word_embeddings": model.head.tied,
        "initializer_range": write_std(model),
        **dict.fromkeys(dropouts, model.decoder.dropout),
    }
    return raw if block.attention.bias else {**raw, "bias": False}


def layout(model: Model) -> Model:
    """The same model with every bias: what the published files hold."""
    if not isinstance(model, Decoder) or first_block(model).attention.bias:
        return model
    raw = {key: value for key, value in write_config(model).items() if key != "bias"}
    return read_config(ConfigReader(raw))


_OURS, _THEIRS = "decoder.blocks.{i}", "transformer.h.{i}"
_MATRICES = {"attn.c_proj": "attn.out", "mlp.c_fc": "ffn.up", "mlp.c_proj": "ffn.down"}  # (in, out) in their files

RULES = (
    Rule("transformer.wte.weight", "embed.token.weight"),
    Rule("transformer.wpe.weight", "decoder.position.weight"),
    *(
        Rule(f"{_THEIRS}.attn.c_attn.{end}", tuple(f"{_OURS}.attn.{x}.{end}" for x in "qkv"), transpose=end == "weight")
        for end in ("weight", "bias")
    ),
    *rules({f"{_THEIRS}.{theirs}": f"{_OURS}.{ours}" for theirs, ours in _MATRICES.items()}, transpose=True),
    *rules({f"{_THEIRS}.ln_1": f"{_OURS}.attn_norm", f"{_THEIRS}.ln_2": f"{_OURS}.ffn_norm"}),
    *rules({"transformer.ln_f": "decoder.last_norm"}),
    Rule("lm_head.weight", "head.proj.weight"),
)

GPT2 = Recipe(
    name="gpt2",
    paper="Radford et al. 2019, Language Models are Unsupervised Multitask Learners; Karpathy 2022, nanoGPT",
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
        ignore=(f"{_THEIRS}.attn.bias", f"{_THEIRS}.attn.masked_bias"),  # the causal mask, kept as if it were a weight
        copies=(("lm_head.weight", "transformer.wte.weight"),),
        prefix="transformer.",
    ),
    layout=layout,
)
