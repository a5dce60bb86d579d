"""How weights start. No torch here."""

from __future__ import annotations

from typing import Literal

from ..errors import need
from .serial import frozen


@frozen
class Init:
    """Initial weights: normal with ``std`` (None: 1/sqrt(fan_in)); embeddings and an
    untied head have their own.

    ``residual`` is for the matrices that write to the stream: ``plain`` like the others, ``depth``
    divided by sqrt(writes) (GPT-2), ``zero`` (each block starts as the identity).
    """

    std: float | None = 0.02  # standard deviation of matrices; none: 1/sqrt(fan_in)
    embed_std: float = 0.02  # standard deviation of the embeddings
    # what writes to the stream; depth: std / sqrt(writes)
    residual: Literal["plain", "depth", "zero"] = "depth"
    head_std: float | None = None  # standard deviation of an untied head; none: as std

    def __post_init__(self) -> None:
        for name in ("std", "embed_std", "head_std"):
            value = getattr(self, name)
            need(
                value is None or 0 <= value <= 1000,
                f"Init.{name} is {value}; give a deviation from 0 to 1000.",
            )
