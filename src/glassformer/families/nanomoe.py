"""nanoMoE: a small GPT-2 without biases, every second block of which is a mixture of eight
experts."""

from __future__ import annotations

from ..core.config import (
    MLP,
    Attention,
    Block,
    Decoder,
    Embed,
    Init,
    LayerNorm,
    Learned,
    MoE,
    Stack,
)
from .recipe import page


def nanomoe(dim: int, depth: int, heads: int) -> Decoder:
    """The shape of nanoMoE: nanoGPT's vocabulary, 1,024 positions, a mixture in the first of every
    two blocks.

    An expert takes at most 1.25 times its even share while training; weights start at
    1/sqrt(fan-in). Its code can also add noise to the router's logits (``noise=True``), which the
    published run leaves off.
    """
    norm, mlp = LayerNorm(bias=False), MLP(4 * dim, "gelu")
    balance = 0.01 * 2  # its loss counts both choices of a token, ours is their mean
    mixture = MoE(8, 2, mlp, balance_loss=balance, z_loss=0.001, capacity_factor=1.25)
    pattern = (Block(Attention(heads), mixture, norm), Block(Attention(heads), mlp, norm))
    stack = Stack(depth, pattern, Learned(1024), last_norm=norm)
    return Decoder(dim, 1024, Embed(50_304), stack, init=Init(std=None))


NANOMOE = page("nanomoe", sizes={"openwebtext": nanomoe(384, 6, 6)})
