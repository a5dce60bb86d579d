"""Phi (1, 1.5, 2): attention and feed-forward side by side, biases everywhere; Phi-3: a Llama in fused tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config import (
    MLP,
    Attention,
    Block,
    Decoder,
    Embed,
    GatedMLP,
    Head,
    LayerNorm,
    LongRopeScaling,
    Model,
    RMSNorm,
    Rotary,
    Stack,
    Window,
)
from ..config.context import long_scalings
from .decoders import (
    ACTIVATIONS,
    ATTENTION,
    INIT,
    LONG,
    NORMS,
    OURS,
    THEIRS,
    WIDE,
    decoder,
    fraction,
    norm_eps,
    read_attention,
    read_decoder,
    read_gated,
    read_rotary,
    read_window,
    table,
    window_size,
    write_decoder,
)
from .recipe import ConfigReader, Recipe, Rule

DROPOUTS = ("resid_pdrop", "embd_pdrop", "attention_dropout")  # the residual's is the stack's


def phi(dim: int, depth: int, share: float, dropout: float = 0.0) -> Decoder:
    """The shape of Phi: 32 heads of which a share turns, 51,200 tokens, 2,048 positions."""
    norm = LayerNorm()
    block = Block(Attention(32, bias=True), MLP(4 * dim, bias=True), norm, place="parallel")
    stack = Stack(depth, (block,), Rotary(fraction=share), last_norm=norm, dropout=dropout)
    return Decoder(dim, 2048, Embed(51_200), stack, Head(tied=False, bias=True), INIT)


def read(raw: ConfigReader) -> Model:
    """A Phi config.json as our config."""
    norm = LayerNorm(raw.number("layer_norm_eps", 1e-5, most=1.0))
    attention = read_attention(raw, bias=True)
    if raw.flag("qk_layernorm", False):
        attention = replace(attention, qk_norm=norm)
    act = raw.choice("hidden_act", ACTIVATIONS, "gelu_new")
    block = Block(attention, MLP(raw.whole("intermediate_size", most=WIDE), act, bias=True), norm, place="parallel")
    dropout = raw.number("resid_pdrop", 0.0, most=0.99)
    rotary = read_rotary(raw, fraction=0.5)
    return read_decoder(raw, block, rotary, context=2048, dropout=dropout, head=Head(bias=True))


def write(model: Model) -> dict[str, Any]:
    """Our config as a Phi config.json, as far as that can say it."""
    block, raw = write_decoder(model, "phi")
    return {
        **raw,
        "layer_norm_eps": norm_eps(block),
        "qk_layernorm": block.attention.qk_norm is not None,
        "partial_rotary_factor": fraction(model),
        **dict.fromkeys(DROPOUTS, decoder(model).dropout),
    }


PHI = Recipe(
    name="phi",
    paper="Gunasekar et al. 2023, Textbooks Are All You Need (arXiv 2306.11644); Javaheripi et al. 2023, Phi-2",
    sizes={"1": phi(2048, 24, 0.5), "1.5": phi(2048, 24, 0.5), "2": phi(2560, 32, 0.4, dropout=0.1)},
    architectures=("PhiForCausalLM", "PhiModel"),
    model_type="phi",
    tokenizer="microsoft/phi-2",
    read=read,
    write=write,
    weights=table(
        {
            **ATTENTION,
            "attn.out": "self_attn.dense",
            "attn.q_norm": "self_attn.q_layernorm",
            "attn.k_norm": "self_attn.k_layernorm",
            "ffn.up": "mlp.fc1",
            "ffn.down": "mlp.fc2",
            "attn_norm": "input_layernorm",
        },
        last_norm="model.final_layernorm",
    ),
)


def phi3(dim: int, depth: int, heads: int, kv_heads: int, hidden: int) -> Decoder:
    """The shape of Phi-3: windows of 2,047, 32,064 tokens, 4,096 positions."""
    block = Block(Attention(heads, kv_heads, mask=Window(2047)), GatedMLP(hidden), RMSNorm())
    stack = Stack(depth, (block,), Rotary(), last_norm=RMSNorm())
    return Decoder(dim, 4096, Embed(32_064), stack, Head(tied=False), INIT)


def read3(raw: ConfigReader) -> Model:
    """A Phi-3 config.json as our config."""
    attention = replace(read_attention(raw), mask=read_window(raw))
    block = Block(attention, read_gated(raw), RMSNorm(raw.number("rms_norm_eps", 1e-5, most=1.0)))
    dropout = raw.number("resid_pdrop", 0.0, most=0.99)
    rotary = read_rotary(raw, fraction=1.0, kinds=("default", *LONG))
    model = read_decoder(raw, block, rotary, context=4096, dropout=dropout)
    if isinstance(rotary.scaling, LongRopeScaling):  # for longer texts: glassformer.load(.., context=N)
        model = replace(model, context=min(model.context, rotary.scaling.length))
    return model


def write3(model: Model) -> dict[str, Any]:
    """Our config as a Phi-3 config.json, as far as that can say it; without a window a Llama's can, and comes first."""
    block, raw = write_decoder(model, "phi3")
    length = raw["max_position_embeddings"]
    for scaling in long_scalings(model).values():
        raw["max_position_embeddings"] = round(scaling.length * scaling.factor)
    return {
        **raw,
        "rms_norm_eps": norm_eps(block),
        "sliding_window": window_size(model),
        "partial_rotary_factor": fraction(model),
        "original_max_position_embeddings": length,
        **dict.fromkeys(DROPOUTS, decoder(model).dropout),
    }


_ATTN, _FFN = f"{OURS}.attn", f"{OURS}.ffn"

PHI3 = Recipe(
    name="phi3",
    paper="Abdin et al. 2024, Phi-3 Technical Report (arXiv 2404.14219)",
    sizes={"mini-4k": phi3(3072, 32, 32, 32, 8192), "medium-4k": phi3(5120, 40, 40, 10, 17_920)},
    architectures=("Phi3ForCausalLM", "Phi3Model"),
    model_type="phi3",
    tokenizer="microsoft/Phi-3-mini-4k-instruct",
    read=read3,
    write=write3,
    weights=table(
        {"attn.out": "self_attn.o_proj", "ffn.down": "mlp.down_proj", **NORMS},
        Rule(f"{THEIRS}.self_attn.qkv_proj.weight", (f"{_ATTN}.q.weight", f"{_ATTN}.k.weight", f"{_ATTN}.v.weight")),
        Rule(f"{THEIRS}.mlp.gate_up_proj.weight", (f"{_FFN}.gate.weight", f"{_FFN}.up.weight")),
    ),
)
