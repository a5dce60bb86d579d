"""Attention masks as rules over positions: which keys a query may attend to, and
the masks that they make of arrays of any kind. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..errors import need
from .serial import PositiveInt, frozen

if TYPE_CHECKING:
    import numpy as np

MaskFunction: TypeAlias = Callable[[Any, Any], Any]
"""Positions of queries and of keys (arrays that broadcast) -> whether the query may attend."""


class Rule:
    """Base class of mask rules: ``a & b`` allows what both allow, ``a | b`` what either allows.

    ``allows(causal)`` gives the function that is asked of each pair, None where every pair is
    allowed; ``causal``: whether the stack's direction is applied already. Its numbers are numpy's
    or torch's.
    """

    @property
    def lookback(self) -> int | None:
        """Positions that a query sees back at most, itself included; None for no bound."""
        return None

    @property
    def prefix_length(self) -> int:
        """Number of first tokens to which even earlier tokens may attend."""
        return 0

    def __and__(self, rule: MaskRule) -> Both:
        return Both((*_operands(self, Both), *_operands(rule, Both)))

    def __or__(self, rule: MaskRule) -> Either:
        return Either((*_operands(self, Either), *_operands(rule, Either)))

    def __str__(self) -> str:
        """The rule as ``parse_rule`` reads it: ``window(4) | every(8)``."""
        name, numbers = type(self).__name__.lower(), ", ".join(map(str, vars(self).values()))
        return f"{name}({numbers})" if numbers else name


def _operands(rule: Any, kind: type[Both] | type[Either]) -> tuple[MaskRule, ...]:
    return rule.rules if isinstance(rule, kind) else (rule,)


@frozen
class Full(Rule):
    """Every token within reach of the stack's direction."""

    def allows(self, causal: bool) -> MaskFunction | None:
        return None


@frozen
class Causal(Rule):
    """Keys no later than the query: all blocks of a causal stack have it, one of an encoder may."""

    def allows(self, causal: bool) -> MaskFunction | None:
        return None if causal else lambda q, k: k <= q


@frozen
class Prefix(Rule):
    """The first ``length`` tokens see each other both ways, the others what came before (T5).

    In a causal stack it is the one rule that adds keys instead of taking them away; what the data
    names as its own prefix is added to it. A cache must read these tokens in one go.
    """

    length: PositiveInt  # tokens of the prefix

    @property
    def prefix_length(self) -> int:
        return self.length

    def allows(self, causal: bool) -> MaskFunction | None:
        # in a causal stack ``allowed`` adds the first ``prefix_length`` keys
        return None if causal else lambda q, k: (k <= q) | (k < self.length)


@frozen
class Window(Rule):
    """Only keys less than ``size`` positions away (Longformer, Mistral); a token sees itself."""

    size: PositiveInt  # distance in positions that is too far; 1: itself alone

    @property
    def lookback(self) -> int:
        return self.size

    def allows(self, causal: bool) -> MaskFunction:
        return lambda q, k: abs(q - k) < self.size


@frozen
class Every(Rule):
    """Only keys a multiple of ``step`` positions away: the second half of ``Strided``."""

    step: PositiveInt  # positions between the keys

    def allows(self, causal: bool) -> MaskFunction:
        return lambda q, k: (q - k) % self.step == 0


@frozen
class Chunk(Rule):
    """Only keys in the query's own chunk of ``size`` positions (Llama 4): half of ``Fixed``."""

    size: PositiveInt  # positions of a chunk

    def allows(self, causal: bool) -> MaskFunction:
        return lambda q, k: q // self.size == k // self.size


@frozen
class Tail(Rule):
    """Only the ``last`` keys of each chunk of ``size`` positions, and itself: half of ``Fixed``."""

    size: PositiveInt  # positions of a chunk
    last: PositiveInt = 1  # positions at a chunk's end that are seen

    def __post_init__(self) -> None:
        need(self.last <= self.size, f"Tail.last is {self.last}; give 1 to size ({self.size}).")

    def allows(self, causal: bool) -> MaskFunction:
        return lambda q, k: (k % self.size >= self.size - self.last) | (k == q)


@frozen
class Strided(Rule):
    """The nearest ``stride`` keys, and each key whole strides away (Sparse Transformers, Child et
    al. 2019)."""

    stride: PositiveInt  # nearest positions, and the step between those farther away

    @property
    def union(self) -> Either:
        return Window(self.stride) | Every(self.stride)

    def allows(self, causal: bool) -> MaskFunction | None:
        return self.union.allows(causal)


@frozen
class Fixed(Rule):
    """The query's own ``block`` and the last ``summary`` keys of each block (Child et al. 2019)."""

    block: PositiveInt  # positions of a block
    summary: PositiveInt = 1  # positions at a block's end that all later ones see

    def __post_init__(self) -> None:
        need(
            self.summary <= self.block,
            f"Fixed.summary is {self.summary}; give 1 to block ({self.block}).",
        )

    @property
    def union(self) -> Either:
        return Chunk(self.block) | Tail(self.block, self.summary)

    def allows(self, causal: bool) -> MaskFunction | None:
        return self.union.allows(causal)


class _Combined(Rule):
    """A rule made of ``rules``."""

    rules: tuple[MaskRule, ...]

    def __post_init__(self) -> None:
        need(len(self.rules) > 0, f"{type(self).__name__}.rules is empty; give at least one rule.")

    @property
    def prefix_length(self) -> int:
        return max(rule.prefix_length for rule in self.rules)

    def _lookbacks(self) -> list[int]:
        return [bound for bound in (rule.lookback for rule in self.rules) if bound is not None]


@frozen
class Both(_Combined):
    """Keys that every one of ``rules`` lets the query see: ``a & b``."""

    rules: tuple[MaskRule, ...]  # rules that all have to allow a key

    @property
    def lookback(self) -> int | None:
        return min(self._lookbacks(), default=None)

    def __str__(self) -> str:
        return " & ".join(
            f"({rule})" if isinstance(rule, Either) else str(rule) for rule in self.rules
        )

    def allows(self, causal: bool) -> MaskFunction | None:
        tests = [test for test in [rule.allows(causal) for rule in self.rules] if test is not None]
        return (lambda q, k: reduce(and_, (test(q, k) for test in tests))) if tests else None


@frozen
class Either(_Combined):
    """Keys that at least one of ``rules`` lets the query see: ``a | b``."""

    rules: tuple[MaskRule, ...]  # rules of which one has to allow a key

    @property
    def lookback(self) -> int | None:
        bounds = self._lookbacks()
        return max(bounds) if len(bounds) == len(self.rules) else None

    def __str__(self) -> str:
        return " | ".join(map(str, self.rules))

    def allows(self, causal: bool) -> MaskFunction | None:
        tests = [rule.allows(causal) for rule in self.rules]
        if None in tests:
            return None
        return lambda q, k: reduce(or_, (test(q, k) for test in tests if test is not None))


MaskRule: TypeAlias = (
    # one name each in config
    Full | Causal | Prefix | Window | Every | Chunk | Tail | Strided | Fixed | Both | Either
)


class TokenInfo(NamedTuple):
    """Positions, documents and prefix of queries or of keys, each an array or None."""

    pos: Any  # -1 where there is nothing
    document_ids: Any = None
    prefix: Any = None  # of keys: true where even queries before it may attend to it

    def map(self, change: Callable[[Any], Any]) -> TokenInfo:
        """The same, with every array changed."""
        document_ids, prefix = (None if x is None else change(x) for x in self[1:])
        return TokenInfo(change(self.pos), document_ids, prefix)


def allowed(
    q: TokenInfo, k: TokenInfo, causal: bool, prefix_length: int, rule: MaskFunction | None
) -> Any:
    """Marks pairs of queries and keys (broadcast); all see the first ``prefix_length`` positions."""
    before = k.pos <= q.pos if causal else q.pos == q.pos  # all
    if causal and prefix_length:
        before = before | (k.pos < prefix_length)
    if causal and k.prefix is not None:
        before = before | k.prefix
    mask = (k.pos >= 0) & before
    if rule is not None:
        mask = mask & rule(q.pos, k.pos)
    if q.document_ids is None or k.document_ids is None:
        return mask
    return mask & (q.document_ids == k.document_ids)


def dense_mask(rule: MaskRule, q: TokenInfo, k: TokenInfo, causal: bool) -> np.ndarray[Any, Any]:
    """Booleans (T, S): which queries (T,) may attend to which keys (S,)."""
    q, k = q.map(lambda x: x[:, None]), k.map(lambda x: x[None])
    mask: np.ndarray[Any, Any] = allowed(q, k, causal, rule.prefix_length, rule.allows(causal))
    return mask


PAIRS_AT_ONCE = 1 << 22  # looked at in one go while they are counted or drawn


def ring_pieces(length: int, size: int) -> list[tuple[range, range]]:
    """Which columns of a row of ``length`` each of ``size`` processes on the context axis holds: a
    piece from the front and one from the back (zig-zag), so that all have as many pairs under a
    causal mask. Rows are filled up to fit."""
    piece = -(-length // (2 * size))
    starts = [piece * number for number in range(2 * size)]
    pieces = [range(start, start + piece) for start in starts]
    return [(pieces[rank], pieces[-1 - rank]) for rank in range(size)]
