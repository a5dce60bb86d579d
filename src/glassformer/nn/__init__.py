"""The blocks: torch, but no files, no network, nothing distributed."""

from . import attention, block, ends, feedforward, mask, norm, position, stack  # each registers what it builds
from .build import build, built
from .cache import KV, Cache, CrossKV
from .flow import Flow, Memory, Part
from .mask import Mask
from .model import Decoder, Encoder, EncoderDecoder, Model, Output, build_model
from .tape import Tape

__all__ = [
    "KV",
    "Cache",
    "CrossKV",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "Flow",
    "Mask",
    "Memory",
    "Model",
    "Output",
    "Part",
    "Tape",
    "build",
    "build_model",
    "built",
]
