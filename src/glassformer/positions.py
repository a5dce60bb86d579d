"""What positions decide: how a model is told the order of its tokens, and who may look at whom. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .errors import above_zero, need

# ------------------------------------------------------------------------------------------ order


@dataclass(frozen=True)
class NoPosition:
    """Order is not told to the model (a causal mask still leaks it)."""


@dataclass(frozen=True)
class Sinusoidal:
    """Fixed waves added to the embeddings (Vaswani et al. 2017, section 3.5).

    The paper takes turns, sine and cosine; ``halves`` puts all sines first (tensor2tensor, Marian).
    """

    theta: float = 10_000.0
    halves: bool = False


@dataclass(frozen=True)
class Learned:
    """A trained table of ``length`` vectors added to the embeddings (GPT-2, BERT)."""

    length: int

    def __post_init__(self) -> None:
        above_zero(self, "length")


@dataclass(frozen=True)
class LinearStretch:
    """Positions divided by ``factor`` (Chen et al. 2023, position interpolation)."""

    factor: float


@dataclass(frozen=True)
class Llama3Stretch:
    """Llama 3.1's frequency-dependent stretch: slow waves by ``factor``, fast ones not at all."""

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    length: int = 8192


Stretch: TypeAlias = LinearStretch | Llama3Stretch


@dataclass(frozen=True)
class Rotary:
    """Queries and keys turned by angles that grow with position (Su et al. 2021).

    ``fraction`` of each head's dimensions turn (GPT-NeoX, Phi); the halves of what turns are paired.
    """

    theta: float = 10_000.0
    fraction: float = 1.0
    stretch: Stretch | None = None

    def __post_init__(self) -> None:
        above_zero(self, "theta")
        need(0 < self.fraction <= 1, f"Rotary.fraction is {self.fraction}; give a share above 0, at most 1.")


@dataclass(frozen=True)
class RelativeBias:
    """A trained bias per head and distance bucket, added to the scores (T5, Raffel et al. 2020)."""

    buckets: int = 32
    distance: int = 128


@dataclass(frozen=True)
class Alibi:
    """A fixed penalty per head that grows with distance, added to the scores (Press et al. 2022)."""


Position: TypeAlias = NoPosition | Sinusoidal | Learned | Rotary | RelativeBias | Alibi


# ---------------------------------------------------------------------------- who may look at whom


@dataclass(frozen=True)
class Full:
    """Every token within reach of the stack's direction."""


@dataclass(frozen=True)
class Window:
    """Only keys less than ``size`` positions away (Longformer, Mistral); a token sees itself."""

    size: int

    def __post_init__(self) -> None:
        above_zero(self, "size")


See: TypeAlias = Full | Window
