"""A decode step recorded once and played again (CUDA graphs): one launch for a step, not one for
each kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class CapturedStep:
    """``step``: tokens (B, 1) -> logits (B, V), over a cache of one shape (``Cache.fix``).

    The first call for so many rows computes as ever, so that what is made once is made; the second
    is recorded.
    """

    def __init__(self, step: Callable[[Tensor], Tensor]) -> None:
        self.step = step
        self.tokens: Tensor | None = None
        self.logits: Tensor | None = None
        self.graph: Any = None

    def __call__(self, tokens: Tensor) -> Tensor:
        """One more step; the logits are the caller's own."""
        if self.tokens is None or self.tokens.shape != tokens.shape:
            self.tokens, self.graph = tokens.clone(), None
            return self.step(self.tokens)
        self.tokens.copy_(tokens)
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):  # records, computes nothing
                self.logits = self.step(self.tokens)
        self.graph.replay()
        assert self.logits is not None
        return self.logits.clone()
