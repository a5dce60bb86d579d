"""Who may look at whom: rules over positions, dense or as the name of a kernel's fast path.

B batch, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .. import config
from ..positions import ahead
from .build import build, builds

Rule = Callable[[Tensor, Tensor], Tensor]  # query positions, key positions -> may look
"""Each rule is built with ``causal``: whether the stack's direction is told already. None stands for everyone."""


@builds(config.Full)
def full(cfg: config.Full, causal: bool) -> Rule | None:
    """Everyone."""
    return None


@builds(config.Causal)
def causal(cfg: config.Causal, causal: bool) -> Rule | None:
    """Nothing later than the query."""
    return None if causal else lambda q, k: k <= q


@builds(config.Prefix)
def prefix(cfg: config.Prefix, causal: bool) -> Rule | None:
    """Nothing later than the query but the first ``length`` tokens; a causal ``Mask`` lets those be seen itself."""
    return None if causal else lambda q, k: (k <= q) | (k < cfg.length)


@builds(config.Window)
def window(cfg: config.Window, causal: bool) -> Rule:
    """Less than ``size`` positions away, on either side."""
    return lambda q, k: (q - k).abs() < cfg.size


@builds(config.Every)
def every(cfg: config.Every, causal: bool) -> Rule:
    """A multiple of ``step`` positions away."""
    return lambda q, k: (q - k) % cfg.step == 0


@builds(config.Chunk)
def chunk(cfg: config.Chunk, causal: bool) -> Rule:
    """In the same chunk of ``size`` positions."""
    return lambda q, k: q // cfg.size == k // cfg.size


@builds(config.Tail)
def tail(cfg: config.Tail, causal: bool) -> Rule:
    """Among the ``last`` positions of any chunk of ``size``, and the query itself."""
    return lambda q, k: (k % cfg.size >= cfg.size - cfg.last) | (k == q)


@builds(config.Strided)
@builds(config.Fixed)
def parts(cfg: config.Strided | config.Fixed, causal: bool) -> Rule | None:
    """What either of its two halves allows."""
    return either(cfg.parts, causal)


@builds(config.Both)
def both(cfg: config.Both, causal: bool) -> Rule | None:
    """What all allow."""
    rules = [rule for see in cfg.rules if (rule := build(see, causal)) is not None]
    return (lambda q, k: reduce(torch.Tensor.__and__, (rule(q, k) for rule in rules))) if rules else None


@builds(config.Either)
def either(cfg: config.Either, causal: bool) -> Rule | None:
    """What one allows."""
    rules = [build(see, causal) for see in cfg.rules]
    return None if None in rules else lambda q, k: reduce(torch.Tensor.__or__, (rule(q, k) for rule in rules))


class Side(NamedTuple):
    """What a mask knows of queries or of keys, each (B or 1, T or S) or None: ``prefix`` keys are seen from before."""

    pos: Tensor
    docs: Tensor | None = None
    prefix: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Side:
        """The same, with every tensor changed."""
        docs, prefix = (None if x is None else change(x) for x in self[1:])
        return Side(change(self.pos), docs, prefix)


class Mask:
    """The queries' and keys' positions and documents, and the rules between them.

    ``plain``: no padding, no documents, and the keys are 0..S-1 with the queries the last T of them.
    """

    def __init__(
        self,
        q_pos: Tensor,  # (B or 1, T), -1 where there is nothing
        k_pos: Tensor,  # (B or 1, S)
        causal: bool,
        see: config.See = config.Full(),
        docs: tuple[Tensor, Tensor] | None = None,  # of queries (B, T) and keys (B, S)
        plain: bool = False,
        prefix: Tensor | None = None,  # keys (B, S) that even those before them may look at
    ) -> None:
        self.q_pos, self.k_pos, self.docs = q_pos, k_pos, docs
        self.causal, self.see, self.plain, self.prefix = causal, see, plain and prefix is None, prefix
        self.ahead = ahead(see) if causal else 0
        self._dense: Tensor | None = None
        self.plans: list[Any] = []  # what the sparse engine made of it
        self.flexed: Any = None  # and what FlexAttention made of it
        self.fast = self._fast()

    def _fast(self) -> Literal["none", "causal"] | None:
        """The mask that a fused kernel may use instead of the dense one, if there is one."""
        queries, keys = self.q_pos.shape[1], self.k_pos.shape[1]
        if not self.plain or not _takes_nothing(self.see, keys, self.causal):
            return None
        if not self.causal or queries == 1 or self.ahead >= keys:
            return "none"
        return "causal" if queries == keys and self.ahead <= 1 else None

    @property
    def sides(self) -> tuple[Side, Side]:
        """All that is known of the queries and of the keys."""
        q_docs, k_docs = self.docs or (None, None)
        return Side(self.q_pos, q_docs), Side(self.k_pos, k_docs, self.prefix)

    def may(self, q: Side, k: Side, rule: Rule | None) -> Tensor:
        """Whether the queries ``q`` may look at the keys ``k``, shapes broadcast; ``rule`` is built of a rule."""
        may = (k.pos >= 0) & torch.ones_like(q.pos, dtype=torch.bool)
        if self.causal:
            before = k.pos <= q.pos
            if self.ahead:
                before = before | (k.pos < self.ahead)
            may = may & (before if k.prefix is None else before | k.prefix)
        if rule is not None:
            may = may & rule(q.pos, k.pos)
        return may if q.docs is None or k.docs is None else may & (q.docs == k.docs)

    def dense(self) -> Tensor:
        """Booleans (B or 1, 1, T, S), True where the query may look at the key.

        A query that is nothing (padding) looks everywhere: what it gives is unused, but finite.
        """
        if self._dense is None:
            q, k = self.sides
            q, k = q.map(lambda x: x[:, :, None]), k.map(lambda x: x[:, None, :])
            self._dense = (self.may(q, k, build(self.see, self.causal)) | (q.pos < 0))[:, None]
        return self._dense


def _takes_nothing(see: config.See, keys: int, causal: bool) -> bool:
    """Whether, between tokens of ``keys`` positions in a row, a rule leaves all that the stack's direction allows."""
    match see:
        case config.Window(reach) | config.Strided(reach):
            return reach >= keys
        case config.Causal() | config.Prefix():
            return causal
        case config.Both(rules):
            return all(_takes_nothing(rule, keys, causal) for rule in rules)
        case config.Either(rules):
            return any(_takes_nothing(rule, keys, causal) for rule in rules)
        case _:
            return isinstance(see, config.Full)


CHUNK = 1 << 22  # pairs looked at in one go while counting


def visited(see: config.See, length: int, causal: bool, rows: Tensor | None = None) -> int:
    """How many pairs a rule visits in a row of ``length`` tokens, or only those of the queries ``rows``; exact."""
    queries, k_pos = torch.arange(length) if rows is None else rows, torch.arange(length)[None]
    parts = torch.split(queries, max(1, CHUNK // length))
    return sum(int(Mask(part[None], k_pos, causal, see).dense().sum()) for part in parts)
