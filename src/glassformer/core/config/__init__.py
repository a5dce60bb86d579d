"""The vocabulary: all ways that published Transformers differ, as frozen dataclasses. No torch.

The type is the switch, numbers do the rest: mechanisms that exclude each other are different types
in one slot (``norm=RMSNorm()`` or ``norm=LayerNorm()``), never flags side by side.

    model layers pool                                         what a model is made of: its ends, how it starts
    position scaling mask recurrence                          what its blocks do to positions and texts
    mask_expressions                                          rules such as window(4) | every(8)
    run objective optimizer                                   how a training goes: a run file's [train]
    serial                                                    config <-> dict, JSON and TOML; dotted overrides
"""

# ruff: noqa: F401
# mypy: implicit-reexport
from __future__ import annotations

from .layers import (
    MLP,
    Activation,
    Embed,
    FeedForward,
    GatedMLP,
    Head,
    Init,
    LayerNorm,
    MoE,
    Norm,
    RMSNorm,
)
from .mask import (
    Both,
    Causal,
    Chunk,
    Either,
    Every,
    Fixed,
    Full,
    MaskRule,
    Prefix,
    Rule,
    Strided,
    Tail,
    Window,
)
from .mask_expressions import parse_rule
from .model import (
    MOST_HEADS,
    Attention,
    Block,
    Body,
    Decoder,
    Encoder,
    EncoderDecoder,
    Mixer,
    Model,
    Place,
    Stack,
)
from .pool import Pool, TokenHead
from .position import Alibi, Learned, NoPosition, Position, RelativeBias, Rotary, Sinusoidal
from .recurrence import GRU, LSTM, Additive, Cell, Recurrent, Summary
from .scaling import LinearScaling, Llama3Scaling, LongRopeScaling, RopeScaling, YarnScaling
from .serial import frozen, member
