"""Position schemes: how a model is told the order of its tokens. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from ..errors import need
from .layers import Shapes, Unmultiplied, join, no_shapes, table
from .scaling import LongRopeScaling, RopeScaling, YarnScaling
from .serial import AtLeastTwo, NonNegativeInt, PositiveFloat, PositiveInt, Range, frozen


@frozen
class NoPosition:
    """Order is not told to the model (a causal mask still leaks it)."""

    shapes = no_shapes


@frozen
class Sinusoidal:
    """Fixed sines and cosines added to the embeddings (Vaswani et al. 2017, section 3.5).

    The paper takes turns, sine and cosine; ``halves`` puts all sines first. The lowest of its dim /
    2 frequencies stops short of 1 / ``theta``; with ``endpoint`` they are spread over dim / 2 - 1
    steps, down to it. ``offset`` numbers the first position. tensor2tensor and Marian: halves and
    endpoint, from 0; OpenNMT-tf: the same from 1; OpenNMT-py: the paper's, or tensor2tensor's;
    transformers' Marian: halves alone, unlike Marian itself.
    """

    theta: PositiveFloat = 10_000.0  # the longest wavelength over 2 pi
    halves: bool = False  # all sines before all cosines; false: they alternate (the paper)
    endpoint: bool = False  # the lowest frequency is 1 / theta; false: it stops short of that
    offset: NonNegativeInt = 0  # number of the first position

    shapes = no_shapes

    def check(self, name: str, pattern: Sequence[Any], dim: int, width: int, context: int) -> None:
        """Refuse an odd width where pairs are needed."""
        even = width % 2 == 0 or not self.endpoint
        need(
            even,
            f"{name}.position.endpoint is for pairs of sine and cosine and dim {width} is "
            "odd; make it even.",
        )


@frozen
class Learned:
    """A trained table added to the embeddings (GPT-2, BERT): the row is position + ``start``."""

    length: PositiveInt  # positions in the table
    start: NonNegativeInt = 0  # rows before that of position 0 (RoBERTa: 2)

    def shapes(self, width: int, heads: int, causal: bool) -> Shapes:
        return table(self.start + self.length, width)

    @property
    def limit(self) -> int:
        return self.length

    def check(self, name: str, pattern: Sequence[Any], dim: int, width: int, context: int) -> None:
        need(
            self.length >= context,
            f"{name}.position.length {self.length} is below context {context}; raise it.",
        )


@frozen
class Rotary:
    """Queries and keys turned by angles that grow with position (Su et al. 2021).

    ``fraction`` of each head's dimensions turn (GPT-NeoX, Phi). The first half of what turns is
    paired with the second; ``interleaved`` pairs neighbours (the paper, GPT-J, Llama's own files).
    """

    theta: PositiveFloat = 10_000.0  # the longest wavelength over 2 pi
    # share of each head's dimensions that turn (GPT-NeoX, Phi)
    fraction: Annotated[float, Range(lambda x: 0 < x <= 1, "a share above 0, at most 1")] = 1.0
    scaling: RopeScaling | None = None  # of frequencies, for longer texts
    # pair neighbours (GPT-J, Llama's own files); false: first half with second
    interleaved: bool = False

    def __post_init__(self) -> None:
        blended = isinstance(self.scaling, YarnScaling)
        need(
            not blended or self.theta > 1,
            f"Rotary.theta is {self.theta}; give more than 1 with a YarnScaling.",
        )

    shapes = no_shapes

    @property
    def limit(self) -> int | None:
        """Positions that its scaling is right for; None: any number."""
        return getattr(self.scaling, "limit", None)

    def check(self, name: str, pattern: Sequence[Any], dim: int, width: int, context: int) -> None:
        """Refuse an odd number of turning dimensions, and factors that are not one a frequency."""
        for index, block in enumerate(pattern):
            if not hasattr(block.attention, "heads"):
                continue
            turned = int(block.attention.width(dim) * self.fraction)
            even = turned >= 2 and turned % 2 == 0
            need(
                even,
                f"{name}.pattern.{index}: Rotary turns {turned} dimensions a head; make that even.",
            )
            if isinstance(self.scaling, LongRopeScaling):
                self.scaling.check(f"{name}.pattern.{index}", turned // 2)


def _same_heads(cfg: Any, name: str, pattern: Sequence[Any], *place: int) -> None:
    """Refuse blocks of different numbers of heads."""
    mixers = [block.attention for block in pattern]
    heads = sorted({mixer.heads for mixer in mixers if hasattr(mixer, "heads")})
    kinds = f"a bias for each head and blocks have {' or '.join(map(str, heads))} heads"
    need(len(heads) <= 1, f"{name}.position has {kinds}; give each head the same number.")


@frozen
class RelativeBias:
    """A trained bias per head and distance bucket, added to the scores (T5, Raffel et al. 2020).

    Half of a direction's buckets hold one distance each, the others wider and wider ranges up to
    ``distance``.
    """

    buckets: AtLeastTwo = 32  # of distances, half of them for either side where nothing is causal
    distance: PositiveInt = 128  # from which on all share a bucket

    def shapes(self, width: int, heads: int, causal: bool) -> Shapes:
        return join(weight=Unmultiplied((self.buckets, heads)))

    check = _same_heads

    def check_causal(self, causal: bool) -> None:
        """Refuse too few buckets, or a distance within those that hold one each."""
        least, exact = (2, self.buckets // 2) if causal else (4, self.buckets // 4)
        need(
            self.buckets >= least, f"RelativeBias.buckets is {self.buckets}; give {least} or more."
        )
        need(
            self.distance > exact,
            f"RelativeBias.distance is {self.distance}; give more than {exact}.",
        )


@frozen
class Alibi:
    """A fixed penalty a head that grows with distance, added to scores (Press et al. 2022)."""

    shapes = no_shapes

    check = _same_heads


Position: TypeAlias = NoPosition | Sinusoidal | Learned | Rotary | RelativeBias | Alibi
