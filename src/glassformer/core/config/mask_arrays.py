"""Masks as arrays of any kind: those of a model, pairs that ``cost`` counts, pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .mask import MaskFunction, MaskRule


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
    return np.asarray(allowed(q, k, causal, rule.prefix_length, rule.allows(causal)))


PAIRS_AT_ONCE = 1 << 22  # looked at in one go while they are counted or drawn


def ring_pieces(length: int, size: int) -> list[tuple[range, range]]:
    """Which columns of a row of ``length`` each of ``size`` processes on the context axis holds: a
    piece from the front and one from the back (zig-zag), so that all have as many pairs under a
    causal mask. Rows are filled up to fit."""
    piece = -(-length // (2 * size))
    starts = [piece * number for number in range(2 * size)]
    pieces = [range(start, start + piece) for start in starts]
    return [(pieces[rank], pieces[-1 - rank]) for rank in range(size)]
