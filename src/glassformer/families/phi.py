"""Phi (1, 1.5, 2): attention and feed-forward side by side, biases everywhere; Phi-3: a Llama in
fused tables."""

from __future__ import annotations

from dataclasses import replace

from ..core.config import (
    Decoder,
    Head,
    LayerNorm,
    Model,
    RMSNorm,
)
from .decoder_pages import (
    ATTENTION,
    GPT2_LAYERS,
    LONGROPE,
    NORMS,
    QKV,
    decoder,
    rotary,
    table,
    window,
    words,
)
from .keys import Key, Section
from .recipe import ConfigReader, Settings, page

DROPOUTS = "resid_pdrop embd_pdrop attention_dropout"  # the residual's is the stack's


def qk_norm(word: str, kind: type[LayerNorm | RMSNorm], eps: str) -> Key:
    """A word for whether queries and keys are normed, by what the word ``eps`` says."""

    def parse(raw: ConfigReader) -> LayerNorm | RMSNorm | None:
        norm = kind(raw.number(eps, 1e-5, most=1.0))
        return norm if raw.flag(word, False) else None

    return Key(word, "attention.qk_norm", parse, lambda norm: norm is not None)


page(
    "phi",
    words=words(
        decoder(*GPT2_LAYERS, place="parallel", head=Head(tied=False, bias=True)),
        qk_norm("qk_layernorm", LayerNorm, "layer_norm_eps"),
        rotary(fraction=0.5),
        dropouts=DROPOUTS,
        max_position_embeddings=2048,
        hidden_act="gelu_new",
        layer_norm_eps=1e-5,
    ),
    weights=table(
        ATTENTION,
        {
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


def short_context(raw: ConfigReader, model: Decoder) -> Decoder:
    """The model whose context is what its short factors are right for; for longer texts:
    ``glassformer.load(.., context=N)``."""
    lengths = [scaling.original_context for scaling in model.long_scalings.values()]
    return replace(model, context=min([model.context, *lengths]))


def write_context(model: Model) -> Settings:
    """The context of short factors, and that of long ones as the file's."""
    scalings = model.long_scalings.values()
    contexts = [round(scaling.original_context * scaling.factor) for scaling in scalings]
    return {
        "max_position_embeddings": contexts[-1] if contexts else model.context,
        "original_max_position_embeddings": model.context,
    }


page(
    "phi3",
    words=words(
        decoder(),
        window(),
        rotary(fraction=1.0, kinds=("default", *LONGROPE)),
        Section(short_context, write_context),
        dropouts=DROPOUTS,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
    ),
    weights=table(
        {QKV: "self_attn.qkv_proj", "attn.out": "self_attn.o_proj"},
        {"ffn.gate ffn.up": "mlp.gate_up_proj", "ffn.down": "mlp.down_proj"},
        NORMS,
    ),
)
