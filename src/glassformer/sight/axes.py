"""The sides of a value of a model of ours, by its path: heads, and the tokens of which text.

B batch, H heads, T tokens, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.nn import Model

HEADED = ("q", "k", "v", "z", "scores", "pattern")
"""Values with an axis of heads, (B, H, T, ..); all others are (B, T, ..)."""


SQUARE = ("scores", "pattern")
"""Values with a column for each key, as many as there are tokens."""


def keyed(path: str) -> bool:
    """True if the last axis of a value are keys."""
    return path.rpartition(".")[2] in SQUARE


def headed(path: str, sides: int) -> bool:
    """True if a value of so many axes has an axis of heads."""
    return sides == 4 and path.rpartition(".")[2] in HEADED


def joined(path: str, pieces: Sequence[Tensor], axis: int) -> Tensor:
    """A value of consecutive tokens, put together; what a piece had not read yet is hidden from
    it."""
    if keyed(path):
        nothing = 0.0 if path.endswith("pattern") else float("-inf")
        width = pieces[-1].shape[-1]
        pieces = [F.pad(x, (0, width - x.shape[-1]), value=nothing) for x in pieces]
    return torch.cat([*pieces], axis)


def across(path: str) -> bool:
    """True if a value of the decoder has an axis of source tokens."""
    return path.endswith((".cross.k", ".cross.v"))


def encoded(path: str) -> bool:
    """True if an encoder computes a value."""
    return path.startswith(("encoder.", "source"))


def of_source(model: Model, path: str) -> bool:
    """True if a value has an axis of the tokens that an encoder-decoder's encoder reads."""
    return model.config.has_source and (encoded(path) or across(path))


def along_source(path: str, axis: str) -> bool:
    """True where an encoder-decoder's source runs along a side of a value: T its tokens, S keys."""
    return (axis == "S" and ".cross." in path) or (axis in ("T", "S") and encoded(path))
