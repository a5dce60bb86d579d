"""The keys that a query may attend to: rules over positions, dense or a kernel's fast path.

B batch, T queries, S keys.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from torch import Tensor

from .. import config
from ..config.mask import TokenInfo, allowed
from .build import build, builds

# Functions already in config, which draws and counts masks without torch; of a user's own rule
# ``builds`` tells one.
for kind in get_args(config.MaskRule):
    builds(kind)(kind.allows)


class Mask:
    """The queries' and keys' positions and documents, and the rules between them.

    ``contiguous``: no padding, no documents, and the keys are 0..S-1 with the queries the last T of
    them. Only a window's ring that has gone round differs: its keys are later positions in another
    order. One query sees all of them, for they are no more than the window. Several queries meet
    more keys than the window, so there is no fast path and ``dense`` reads the positions.
    """

    def __init__(
        self,
        q_pos: Tensor,  # (B or 1, T), -1 where there is nothing
        k_pos: Tensor,  # (B or 1, S)
        causal: bool,
        rule: config.MaskRule = config.Full(),
        document_ids: tuple[Tensor, Tensor] | None = None,  # of queries (B, T) and keys (B, S)
        contiguous: bool = False,
        prefix: Tensor | None = None,  # keys (B, S) that even those before them may attend to
        prefix_length: int | None = None,  # of the rule, where the caller has it at hand
    ) -> None:
        self.q_pos, self.k_pos, self.document_ids = q_pos, k_pos, document_ids
        self.causal, self.rule, self.contiguous, self.prefix = (
            causal,
            rule,
            contiguous and prefix is None,
            prefix,
        )
        if prefix_length is None:
            prefix_length = rule.prefix_length
        self.prefix_length = prefix_length if causal else 0
        self._dense: Tensor | None = None
        self._biases: dict[Any, Tensor | None] = {}
        self.block_masks: list[Any] = []  # made of it by fast/block_mask.py
        self.fast_path = self._fast_path()

    def _fast_path(self) -> Literal["full", "causal"] | None:
        """The fused kernel's mask that equals this one: "full" (no mask), "causal", or None."""
        queries, keys = self.q_pos.shape[1], self.k_pos.shape[1]
        if not self.contiguous or not _allows_all(self.rule, keys, self.causal):
            return None
        if not self.causal or queries == 1 or self.prefix_length >= keys:
            return "full"
        return "causal" if queries == keys and self.prefix_length <= 1 else None

    def token_info(self, expand: bool = False) -> tuple[TokenInfo, TokenInfo]:
        """Token info of the queries and of the keys; ``expand``: with the same number of rows."""
        q_documents, k_documents = self.document_ids or (None, None)
        q, k = TokenInfo(self.q_pos, q_documents), TokenInfo(self.k_pos, k_documents, self.prefix)
        if expand:
            rows = max(len(x) for x in (*q, *k) if x is not None)
            q, k = (info.map(lambda x: x.expand(rows, -1)) for info in (q, k))
        return q, k

    def bias(self, position: Any) -> Tensor | None:
        """The position scheme's term for the scores, computed once. It is cached here: a key of
        ``Flow.cached`` may not be a new object in each pass, or blocks compiled one by one would be
        compiled again."""
        if position not in self._biases:
            # the last alone: where each block has a table, no other block asks for it
            self._biases = {position: position.bias(self.q_pos, self.k_pos)}
        return self._biases[position]

    def dense(self) -> Tensor:
        """Booleans (B or 1, 1, T, S), True where the query may attend to the key.

        A query that is padding attends to everything: its result is unused, but finite.
        """
        if self._dense is None:
            q, k = self.token_info()
            q, k = q.map(lambda x: x[:, :, None]), k.map(lambda x: x[:, None, :])
            rule = build(self.rule, self.causal)
            self._dense = (allowed(q, k, self.causal, self.prefix_length, rule) | (q.pos < 0))[
                :, None
            ]
        return self._dense


def _allows_all(rule: config.MaskRule, keys: int, causal: bool) -> bool:
    """True where a rule masks nothing beyond the stack's own mask, for keys at 0..keys-1."""
    match rule:
        case config.Window(distance) | config.Strided(distance):
            return distance >= keys
        case config.Causal() | config.Prefix():
            return causal
        case config.Both(rules):
            return all(_allows_all(rule, keys, causal) for rule in rules)
        case config.Either(rules):
            return any(_allows_all(rule, keys, causal) for rule in rules)
        case _:
            return isinstance(rule, config.Full)
