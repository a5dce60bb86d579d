"""Who may look at whom: one rule over positions, dense or as the name of a kernel's fast path.

B batch, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from .. import config
from .build import build, builds

Rule = Callable[[Tensor, Tensor], Tensor]  # query positions, key positions -> may look


@builds(config.Full)
def full(cfg: config.Full) -> Rule | None:
    """No rule: everyone."""
    return None


@builds(config.Window)
def window(cfg: config.Window) -> Rule:
    """Less than ``size`` positions away, on either side."""
    return lambda q, k: (q - k).abs() < cfg.size


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
        self._dense: Tensor | None = None

    @property
    def fast(self) -> Literal["none", "causal"] | None:
        """The mask that a fused kernel may use instead of the dense one, if there is one."""
        queries, keys = self.q_pos.shape[1], self.k_pos.shape[1]
        if not self.plain or (isinstance(self.see, config.Window) and self.see.size < keys):
            return None
        if not self.causal or queries == 1:
            return "none"
        return "causal" if queries == keys else None

    def dense(self) -> Tensor:
        """Booleans (B or 1, 1, T, S), True where the query may look at the key.

        A query that is nothing (padding) looks everywhere: what it gives is unused, but finite.
        """
        if self._dense is None:
            q, k = self.q_pos[:, :, None], self.k_pos[:, None, :]
            may = (k >= 0).expand(-1, q.shape[1], -1)
            if self.causal:
                before = k <= q
                may = may & (before if self.prefix is None else before | self.prefix[:, None, :])
            rule: Rule | None = build(self.see)
            if rule is not None:
                may = may & rule(q, k)
            if self.docs is not None:
                may = may & (self.docs[0][:, :, None] == self.docs[1][:, None, :])
            self._dense = (may | (q < 0))[:, None]
        return self._dense
