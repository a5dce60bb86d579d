"""How weights start. No torch here."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from .serial import Range, frozen

Deviation: TypeAlias = Annotated[
    float, Range(lambda x: 0 <= x <= 1000, "a deviation from 0 to 1000")
]


@frozen
class Init:
    """Initial weights: normal with ``std`` (None: 1/sqrt(fan_in)); embeddings and an
    untied head have their own.

    ``residual`` is for the matrices that write to the stream: ``plain`` like the others, ``depth``
    divided by sqrt(writes) (GPT-2), ``zero`` (each block starts as the identity).
    """

    std: Deviation | None = 0.02  # standard deviation of matrices; none: 1/sqrt(fan_in)
    embed_std: Deviation = 0.02  # standard deviation of the embeddings
    # what writes to the stream; depth: std / sqrt(writes)
    residual: Literal["plain", "depth", "zero"] = "depth"
    head_std: Deviation | None = None  # standard deviation of an untied head; none: as std
