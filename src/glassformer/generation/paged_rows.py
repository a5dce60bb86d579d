"""Rows under way whose keys and values lie in pages, where the blocks in C read them (nn/fused.py).

B rows that still grow, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..nn import Cache, Model
from ..nn.kernels import PAGE
from ..nn.paged import PackedTexts, PagedCache


class PagedRows:
    """A batch taken over from a Cache: each row goes on at its own position, the rows side by side in one.

    ``next`` (B,) are the positions of the tokens that come next; at most ``steps`` of them follow.
    """

    def __init__(self, model: Model, cache: Cache, next: Tensor, steps: int) -> None:
        held = cache.layers[0][0].k
        self.next, rows = next, len(held)
        each = -(-min(int(next.max()) + steps, model.config.context + 1) // PAGE)
        self.tables = torch.arange(rows * each, dtype=torch.int32).view(rows, each)
        self.cache = PagedCache(model.config, each * PAGE, rows * each, 0, held.dtype)  # type: ignore[arg-type]
        for (kv, _), (own, _) in zip(cache.layers, self.cache.pages, strict=True):
            there = kv.slots.pos[:, : kv.slots.ring or kv.slots.filled].expand(rows, -1)
            for row, places in enumerate(there):
                columns = (places >= 0).nonzero().flatten()
                at = places[columns]
                to = self.tables[row, at // PAGE].long() * PAGE + at % PAGE
                own.pages.write(kv.k[row, :, columns].transpose(0, 1), kv.v[row, :, columns].transpose(0, 1), to)

    def decode(self, model: Model, tokens: Tensor) -> Tensor:
        """The logits (B, V) after one more token per row, ``tokens`` (B,)."""
        count = len(self.next)
        spans = [(row, row + 1) for row in range(count)]
        pos = self.next[None]
        self.cache.texts = PackedTexts(pos, torch.arange(count, dtype=torch.int32), self.tables, spans)
        self.next = self.next + 1
        logits: Tensor = model(tokens[None], pos=pos, cache=self.cache).logits
        return logits[0]

    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes what row ``rows[i]`` was, none of them twice."""
        assert len(set(rows)) == len(rows), "two rows cannot write to the same pages"
        index = torch.tensor(rows)
        self.next, self.tables = self.next[index], self.tables[index]
