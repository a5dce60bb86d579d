"""Who may look at whom: rules over positions, dense or as the name of a kernel's fast path.

B batch, T queries, S keys.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from torch import Tensor

from .. import config
from ..config.mask import Allows, ahead
from ..config.visible import Side, may
from .build import build, builds

for kind in get_args(config.MaskRule):
    builds(kind)(kind.allows)


class Mask:
    """The queries' and keys' positions and documents, and the rules between them.

    ``contiguous``: no padding, no documents, and the keys are 0..S-1 with the queries the last T of them.
    """

    def __init__(
        self,
        q_pos: Tensor,  # (B or 1, T), -1 where there is nothing
        k_pos: Tensor,  # (B or 1, S)
        causal: bool,
        rule: config.MaskRule = config.Full(),
        document_ids: tuple[Tensor, Tensor] | None = None,  # of queries (B, T) and keys (B, S)
        contiguous: bool = False,
        prefix: Tensor | None = None,  # keys (B, S) that even those before them may look at
    ) -> None:
        self.q_pos, self.k_pos, self.document_ids = q_pos, k_pos, document_ids
        self.causal, self.rule, self.contiguous, self.prefix = causal, rule, contiguous and prefix is None, prefix
        self.ahead = ahead(rule) if causal else 0
        self._dense: Tensor | None = None
        self.plans: list[Any] = []  # what the sparse engine made of it
        self.flexed: Any = None  # and what FlexAttention made of it
        self.fast = self._fast()

    def _fast(self) -> Literal["none", "causal"] | None:
        """The mask that a fused kernel may use instead of the dense one, if there is one."""
        queries, keys = self.q_pos.shape[1], self.k_pos.shape[1]
        if not self.contiguous or not _takes_nothing(self.rule, keys, self.causal):
            return None
        if not self.causal or queries == 1 or self.ahead >= keys:
            return "none"
        return "causal" if queries == keys and self.ahead <= 1 else None

    @property
    def sides(self) -> tuple[Side, Side]:
        """All that is known of the queries and of the keys."""
        q_document_ids, k_document_ids = self.document_ids or (None, None)
        return Side(self.q_pos, q_document_ids), Side(self.k_pos, k_document_ids, self.prefix)

    def may(self, q: Side, k: Side, rule: Allows | None) -> Tensor:
        """Whether the queries ``q`` may look at the keys ``k``, shapes broadcast; ``rule`` is built of a rule."""
        found: Tensor = may(q, k, self.causal, self.ahead, rule)
        return found

    def dense(self) -> Tensor:
        """Booleans (B or 1, 1, T, S), True where the query may look at the key.

        A query that is nothing (padding) looks everywhere: what it gives is unused, but finite.
        """
        if self._dense is None:
            q, k = self.sides
            q, k = q.map(lambda x: x[:, :, None]), k.map(lambda x: x[:, None, :])
            self._dense = (self.may(q, k, build(self.rule, self.causal)) | (q.pos < 0))[:, None]
        return self._dense


def _takes_nothing(rule: config.MaskRule, keys: int, causal: bool) -> bool:
    """Whether, between tokens of ``keys`` positions in a row, a rule leaves all that the stack's direction allows."""
    match rule:
        case config.Window(reach) | config.Strided(reach):
            return reach >= keys
        case config.Causal() | config.Prefix():
            return causal
        case config.Both(rules):
            return all(_takes_nothing(rule, keys, causal) for rule in rules)
        case config.Either(rules):
            return any(_takes_nothing(rule, keys, causal) for rule in rules)
        case _:
            return isinstance(rule, config.Full)
