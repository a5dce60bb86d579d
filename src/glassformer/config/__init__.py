"""The vocabulary: every way two published Transformers differ, as frozen dataclasses. No torch here.

The type is the switch, numbers do the rest: mechanisms that exclude each other are different types in one slot
(``norm=RMSNorm()`` or ``norm=LayerNorm()``), never flags side by side.

    model ends feedforward position mask scaling rnn         what a model is made of
    context                                                   a model for longer or shorter texts than it was made for
    shapes visible                                            its parameters' shapes and its masks, without torch
    run objective optimizer settings                          what a run file says
    serial                                                    config <-> dict, JSON and TOML; dotted overrides
    extend                                                    a Python file of the user's own
"""

from __future__ import annotations

import warnings
from typing import Any

from .ends import Embed as Embed
from .ends import Head as Head
from .ends import Init as Init
from .ends import LayerNorm as LayerNorm
from .ends import Norm as Norm
from .ends import Pool as Pool
from .ends import RMSNorm as RMSNorm
from .ends import TokenHead as TokenHead
from .feedforward import MLP as MLP
from .feedforward import Activation as Activation
from .feedforward import FeedForward as FeedForward
from .feedforward import GatedMLP as GatedMLP
from .feedforward import MoE as MoE
from .mask import Both as Both
from .mask import Causal as Causal
from .mask import Chunk as Chunk
from .mask import Either as Either
from .mask import Every as Every
from .mask import Fixed as Fixed
from .mask import Full as Full
from .mask import MaskRule as MaskRule
from .mask import Prefix as Prefix
from .mask import Rule as Rule
from .mask import Strided as Strided
from .mask import Tail as Tail
from .mask import Window as Window
from .model import MOST_HEADS as MOST_HEADS
from .model import Attention as Attention
from .model import Block as Block
from .model import Body as Body
from .model import Decoder as Decoder
from .model import Encoder as Encoder
from .model import EncoderDecoder as EncoderDecoder
from .model import Model as Model
from .model import Place as Place
from .model import Stack as Stack
from .model import bodies as bodies
from .model import embed_dim as embed_dim
from .model import head_dim as head_dim
from .model import recurrent as recurrent
from .model import source_embed as source_embed
from .model import stacks as stacks
from .position import Alibi as Alibi
from .position import Learned as Learned
from .position import NoPosition as NoPosition
from .position import Position as Position
from .position import RelativeBias as RelativeBias
from .position import Rotary as Rotary
from .position import Sinusoidal as Sinusoidal
from .rnn import GRU as GRU
from .rnn import LSTM as LSTM
from .rnn import Additive as Additive
from .rnn import Cell as Cell
from .rnn import Recurrent as Recurrent
from .rnn import Summary as Summary
from .scaling import LinearScaling as LinearScaling
from .scaling import Llama3Scaling as Llama3Scaling
from .scaling import LongRopeScaling as LongRopeScaling
from .scaling import RopeScaling as RopeScaling
from .scaling import YarnScaling as YarnScaling
from .serial import TYPES_RENAMED
from .serial import frozen as frozen
from .serial import member as member

_OLD = {"See": "MaskRule", "Stretch": "RopeScaling", **TYPES_RENAMED}


def __getattr__(name: str) -> Any:
    if name not in _OLD:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"glassformer.config.{name} is glassformer.config.{_OLD[name]} now.", FutureWarning, stacklevel=2)
    return globals()[_OLD[name]]
