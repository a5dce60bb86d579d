"""Phi (1, 1.5, 2): attention and feed-forward side by side, biases everywhere; Phi-3: a Llama in
fused tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.config.embed_head import Embed, Head
from ..core.config.feedforward import MLP, GatedMLP
from ..core.config.mask import Window
from ..core.config.model import Attention, Block, Decoder, Model, Stack, long_scalings
from ..core.config.norm import LayerNorm, RMSNorm
from ..core.config.position import Rotary
from . import decoders
from .decoders import ATTN
from .keys import Key, read_keys
from .names import NameRule
from .recipe import ConfigReader, Recipe

DROPOUTS = "resid_pdrop embd_pdrop attention_dropout"  # the residual's is the stack's


def phi(dim: int, depth: int, share: float, dropout: float = 0.0) -> Decoder:
    """The shape of Phi: 32 heads of which a share turns, 51,200 tokens, 2,048 positions."""
    norm = LayerNorm()
    block = Block(Attention(32, bias=True), MLP(4 * dim, bias=True), norm, place="parallel")
    stack = Stack(depth, (block,), Rotary(fraction=share), last_norm=norm, dropout=dropout)
    return Decoder(dim, 2048, Embed(51_200), stack, Head(tied=False, bias=True), decoders.INIT)


def _qk_norm(raw: ConfigReader) -> LayerNorm | None:
    return (
        LayerNorm(raw.number("layer_norm_eps", 1e-5, most=1.0))
        if raw.flag("qk_layernorm", False)
        else None
    )


KEYS = decoders.keys(
    Key("qk_layernorm", f"{ATTN}.qk_norm", _qk_norm, lambda norm: norm is not None),
    context=2048,
    act="gelu_new",
    eps=decoders.eps("layer_norm_eps", 1e-5),
    rotary=decoders.part_rotary(0.5),
    dropouts=DROPOUTS,
)
read_config = decoders.config_reader(phi(2048, 24, 0.5), KEYS)
write_config = decoders.writer(KEYS)

PHI = Recipe(
    name="phi",
    paper="Gunasekar et al. 2023, Textbooks Are All You Need (arXiv 2306.11644); Javaheripi et "
    "al. 2023, Phi-2",
    sizes={
        "1": phi(2048, 24, 0.5),
        "1.5": phi(2048, 24, 0.5),
        "2": phi(2560, 32, 0.4, dropout=0.1),
    },
    architectures=("PhiForCausalLM", "PhiModel"),
    model_type="phi",
    tokenizer="microsoft/phi-2",
    checkpoint="microsoft/phi-1",
    read_config=read_config,
    write_config=write_config,
    weights=decoders.table(
        {
            **decoders.ATTENTION,
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
    return Decoder(dim, 4096, Embed(32_064), stack, Head(tied=False), decoders.INIT)


KEYS3 = decoders.keys(
    decoders.window(),
    context=4096,
    eps=decoders.eps("rms_norm_eps", 1e-5),
    rotary=decoders.part_rotary(1.0, ("default", *decoders.LONGROPE)),
    dropouts=DROPOUTS,
)


def read_config3(raw: ConfigReader) -> Model:
    """A Phi-3 config.json as our config."""
    model = read_keys(raw, phi3(3072, 32, 32, 32, 8192), KEYS3)
    lengths = [scaling.original_context for scaling in long_scalings(model).values()]
    # for longer texts: glassformer.load(.., context=N)
    return replace(model, context=min([model.context, *lengths]))


def write_config3(model: Model) -> dict[str, Any]:
    """Our config as a Phi-3 config.json, as far as that can say it; without a window a Llama's can,
    and comes first."""
    raw = decoders.write(model, KEYS3)
    length = raw["max_position_embeddings"]
    for scaling in long_scalings(model).values():
        raw["max_position_embeddings"] = round(scaling.original_context * scaling.factor)
    return {**raw, "original_max_position_embeddings": length}


_LAYER, _ATTN, _FFN = decoders.THEIRS, f"{decoders.OURS}.attn", f"{decoders.OURS}.ffn"

PHI3 = Recipe(
    name="phi3",
    paper="Abdin et al. 2024, Phi-3 Technical Report (arXiv 2404.14219)",
    sizes={"mini-4k": phi3(3072, 32, 32, 32, 8192), "medium-4k": phi3(5120, 40, 40, 10, 17_920)},
    architectures=("Phi3ForCausalLM", "Phi3Model"),
    model_type="phi3",
    tokenizer="microsoft/Phi-3-mini-4k-instruct",
    read_config=read_config3,
    write_config=write_config3,
    weights=decoders.table(
        {"attn.out": "self_attn.o_proj", "ffn.down": "mlp.down_proj", **decoders.NORMS},
        NameRule(
            f"{_LAYER}.self_attn.qkv_proj.weight",
            (f"{_ATTN}.q.weight", f"{_ATTN}.k.weight", f"{_ATTN}.v.weight"),
        ),
        NameRule(f"{_LAYER}.mlp.gate_up_proj.weight", (f"{_FFN}.gate.weight", f"{_FFN}.up.weight")),
    ),
)
