"""MiniMax-M2: queries and keys of all heads normed at once, half of each head turns, and a routed
mixture in every block."""

from __future__ import annotations

from ..core.config import Attention, Block, Decoder, Embed, GatedMLP, Head, RMSNorm, Rotary, Stack
from . import decoders
from .decoders import ATTN, FFN
from .keys import MOST_HEADS, Key
from .mixtral import EXPERTS, MIXTURE
from .names import NameRule
from .recipe import ConfigReader, Recipe
from .routed import RoutedMoE

NORM = RMSNorm(1e-6)
THETA = 5_000_000.0


def minimax_m2(dim: int, depth: int, heads: int, experts: RoutedMoE) -> Decoder:
    """The shape of MiniMax-M2: 8 key-value heads of 128, 200,064 tokens, 196,608 positions."""
    attention = Attention(heads, 8, 128, out_bias=False, qk_norm=NORM, qk_norm_whole=True)
    stack = Stack(depth, (Block(attention, experts, NORM),), Rotary(THETA, 0.5), last_norm=NORM)
    return Decoder(dim, 196_608, Embed(200_064), stack, Head(tied=False), decoders.INIT)


def _positions(raw: ConfigReader) -> Rotary:
    """Rotary positions; published files say how many dimensions turn, ``rotary_dim``."""
    width = raw.integer("head_dim", 128, most=MOST_HEADS)
    turned = raw.integer("rotary_dim", width, most=width)
    return decoders.read_rotary(raw, THETA, turned / width)


KEYS = decoders.keys(
    Key.only("router_jitter_noise", 0.0, "no router here shakes what it reads"),
    Key.only("scoring_func", "sigmoid", "each expert is scored by itself"),
    Key.only("use_routing_bias", True, "a bias corrects the scores"),
    Key.only("use_qk_norm", True, "queries and keys are normed"),
    Key.only("qk_norm_type", "per_layer", "all heads are normed at once"),
    Key.only("shared_intermediate_size", 0, "no expert is shared"),
    *decoders.expert_keys("num_local_experts", 256, 8),
    context=196_608,
    kv_heads=8,
    head_dim=128,
    mlp=f"{FFN}.expert",
    eps=decoders.eps("rms_norm_eps", 1e-6, f"{ATTN}.qk_norm.eps"),
    rotary=Key(
        "partial_rotary_factor",
        "decoder.position",
        _positions,
        lambda turn: turn.get("fraction", 1),
    ),
)
M2 = minimax_m2(3072, 62, 48, RoutedMoE(256, 8, GatedMLP(1536), balance_loss=0.001))

MINIMAX_M2 = Recipe(
    name="minimax_m2",
    paper="MiniMax 2025, MiniMax-M2 (huggingface.co/MiniMaxAI/MiniMax-M2)",
    sizes={"230b-a10b": M2},
    architectures=("MiniMaxM2ForCausalLM", "MiniMaxM2Model"),
    model_type="minimax_m2",
    tokenizer="MiniMaxAI/MiniMax-M2",
    read_config=decoders.config_reader(M2, KEYS),
    write_config=decoders.writer(KEYS),
    weights=decoders.table(
        {**decoders.ATTENTION, **decoders.NORMS, **decoders.QK_NORMS},
        NameRule(f"{MIXTURE}.e_score_correction_bias", f"{decoders.OURS}.ffn.correction"),
        *EXPERTS,
    ),
)
