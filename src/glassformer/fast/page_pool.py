"""The pages of a model's last search, kept for its next: new memory is slow to fill for the first
time.

A search of 128 beams fills hundreds of MiB. They stay beside the model as long as it lives and is
not trained; of two searches at once one makes its own.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import nn

from ..core.nn.model import on_training
from .kernels import Pages

_idle: WeakKeyDictionary[nn.Module, list[Pages]] = WeakKeyDictionary()


class SearchPages:
    """Pages for one search with ``model``, which end up as those of the next."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.idle = model, _idle.pop(model, [])
        self.taken: list[Pages] = []

    def take(self, count: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> Pages:
        """``count`` pages or more for a layer; what stands in them may be anything."""
        shape = kv_heads, head_dim, dtype
        for number, pages in enumerate(self.idle):
            page_shape = pages.keys.shape[1], pages.head_dim, pages.keys.dtype
            if page_shape == shape and len(pages.keys) >= count:
                del self.idle[number]
                break
        else:
            pages = Pages.empty(count, *shape)
        self.taken.append(pages)
        return pages

    def give_back(self) -> None:
        """Nobody reads them any more; those that were not needed go."""
        _idle[self.model] = self.taken or self.idle


def release(model: nn.Module) -> None:
    """Let go of what is kept for ``model``; a search under way goes on with its own."""
    _idle.pop(model, None)


on_training(release)
