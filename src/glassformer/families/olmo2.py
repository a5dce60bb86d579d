"""OLMo 2 and 3: what a sublayer adds is normed, and queries and keys of all heads at once.

OLMo 3 slides a window in three of four blocks. OLMoE is a Llama with OLMo 2's queries and keys, and
experts.
"""

from __future__ import annotations

from ..core.config import (
    Attention,
    GatedMLP,
    MoE,
    RMSNorm,
    Rotary,
)
from .decoder_pages import (
    ATTENTION,
    EXPERTS,
    GATED,
    NORMS,
    OUTPUT_NORMS,
    QK_NORMS,
    decoder,
    read_rotary,
    read_schemes,
    table,
    turned,
    windows,
    words,
    write_schemes,
)
from .keys import Section
from .recipe import ConfigReader, page

QUERIES = Attention(1, qk_norm=RMSNorm(), qk_norm_whole=True)
SHAPE = decoder(QUERIES, place="output")
THETA3 = 500_000.0  # of both kinds of block


LAYERS = table(ATTENTION, QK_NORMS, GATED, OUTPUT_NORMS)
page(
    "olmo2",
    words=words(SHAPE, max_position_embeddings=2048, rms_norm_eps=1e-5, attention_bias=False),
    weights=LAYERS,
)


def _positions3(raw: ConfigReader) -> tuple[Rotary, Rotary]:
    """The schemes of blocks with a window and of the others; a scaling of version 4 of transformers
    is of the others alone."""
    if schemes := read_schemes(raw, THETA3, THETA3):
        return schemes
    raw.only("rope_theta", THETA3, "every OLMo 3 has that of 500,000")
    return Rotary(THETA3), read_rotary(raw, THETA3)


page(
    "olmo3",
    words=words(
        SHAPE,
        turned(lambda raw: _positions3(raw)[1]),
        windows(schemes=_positions3),
        rope=Section(encode=lambda model: write_schemes(model, THETA3)),
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        attention_bias=False,
    ),
    weights=LAYERS,
)


page(
    "olmoe",
    words=words(
        decoder(QUERIES, MoE(1, 1, GatedMLP(1))),
        without="head_dim",
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        attention_bias=False,
        num_experts=64,
        num_experts_per_tok=8,
        norm_topk_prob=False,
        router_aux_loss_coef=0.01,
    ),
    weights=table(ATTENTION, QK_NORMS, NORMS, tables=EXPERTS),
)
