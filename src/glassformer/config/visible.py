"""Who may look at whom, as arrays of any kind: a model's masks, the pairs that ``cost`` counts, pictures. No torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .mask import Allows, MaskRule, ahead


class Side(NamedTuple):
    """What is known of queries or of keys, each an array or None: ``prefix`` keys are seen from before."""

    pos: Any  # -1 where there is nothing
    document_ids: Any = None
    prefix: Any = None

    def map(self, change: Callable[[Any], Any]) -> Side:
        """The same, with every array changed."""
        document_ids, prefix = (None if x is None else change(x) for x in self[1:])
        return Side(change(self.pos), document_ids, prefix)


def may(q: Side, k: Side, causal: bool, first: int, rule: Allows | None) -> Any:
    """Whether the queries ``q`` may look at the keys ``k``, shapes broadcast; before all see the ``first`` tokens."""
    before = k.pos <= q.pos if causal else q.pos == q.pos  # all
    if causal and first:
        before = before | (k.pos < first)
    if causal and k.prefix is not None:
        before = before | k.prefix
    seen = (k.pos >= 0) & before
    if rule is not None:
        seen = seen & rule(q.pos, k.pos)
    return seen if q.document_ids is None or k.document_ids is None else seen & (q.document_ids == k.document_ids)


def pairs(mask_rule: MaskRule, q: Side, k: Side, causal: bool) -> np.ndarray[Any, Any]:
    """Booleans (T, S): which queries (T,) a rule lets look at which keys (S,)."""
    q, k = q.map(lambda x: x[:, None]), k.map(lambda x: x[None])
    return np.asarray(may(q, k, causal, ahead(mask_rule) if causal else 0, mask_rule.allows(causal)))


CHUNK = 1 << 22  # pairs looked at in one go while counting


def visited(mask_rule: MaskRule, length: int, causal: bool, rows: np.ndarray[Any, Any] | None = None) -> int:
    """How many pairs a rule visits in a row of ``length`` tokens, or only those of the queries ``rows``; exact."""
    keys, several = np.arange(length), max(1, CHUNK // length)
    queries = keys if rows is None else rows
    parts = (queries[start : start + several] for start in range(0, len(queries), several))
    return sum(int(pairs(mask_rule, Side(part), Side(keys), causal).sum()) for part in parts)
