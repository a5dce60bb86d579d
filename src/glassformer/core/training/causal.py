"""The next token of running text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..config.objective import Objective
from ..config.serial import frozen

if TYPE_CHECKING:
    from .batches import Batch
    from .loss import Loss


@frozen
class Causal(Objective):
    """The next token, of running text; what GPT learns."""

    every_token = True
    generates = True

    def loss(self, model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
        """The cross-entropy of each next token, with label smoothing (Szegedy et al. 2016)."""
        from .loss import forward, token_loss

        return token_loss(model, forward(model, batch), batch.targets, smoothing)
