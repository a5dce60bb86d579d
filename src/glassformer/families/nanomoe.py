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

# An expert takes at most 1.25 times its even share while training; weights start at 1/sqrt(fan-in).
# Its code can also add noise to the router's logits (noise=True), which the published run leaves off.
NORM, MLP4 = LayerNorm(bias=False), MLP(4 * 384, "gelu")
BALANCE = 0.01 * 2  # its loss counts both choices of a token, ours is their mean
MIXTURE = MoE(8, 2, MLP4, balance_loss=BALANCE, z_loss=0.001, capacity_factor=1.25)
PATTERN = (Block(Attention(6), MIXTURE, NORM), Block(Attention(6), MLP4, NORM))
STACK = Stack(6, PATTERN, Learned(1024), last_norm=NORM)
OPENWEBTEXT = Decoder(384, 1024, Embed(50_304), STACK, init=Init(std=None))

page("nanomoe", sizes={"openwebtext": OPENWEBTEXT})
