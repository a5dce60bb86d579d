"""Rows under way whose keys and values lie in pages, where the blocks in C read them (fast/fused.py).

Beams that come of one share its pages, but the last one, which each goes on to write: that is
copied.

B rows that still grow, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.nn import Cache, Memory, Model
from .kernels import PAGE, Pages
from .page_pool import SearchPages
from .paged import PackedTexts, PagedCache


class PagedRows:
    """A batch taken over from a Cache: each row goes on at its own position, the rows side by side
    in one.

    ``next`` (B,) are the positions of the tokens that come next; at most ``steps`` of them follow.
    ``memory`` is what an encoder made of each row's source, ``source_of`` (B,) which source that
    is: rows of one source read one copy. The pages come from ``page_pool`` where there is one: those of
    a search, whose rows may double. Otherwise layers with windows have so many pages a row as they
    see, filled in turns.
    """

    def __init__(
        self,
        model: Model,
        cache: Cache,
        next: Tensor,
        steps: int,
        memory: Memory | None = None,
        source_of: Sequence[int] = (),
        page_pool: SearchPages | None = None,
    ) -> None:
        self.page_pool, keys = page_pool, cache.layers[0][0].k
        self.next, rows = next, len(keys)
        pages_per_row = -(-min(int(next.max()) + steps, model.config.context + 1) // PAGE)
        self.tables = torch.arange(rows * pages_per_row, dtype=torch.int32).view(
            rows, pages_per_row
        )
        self.pages = rows * pages_per_row
        first = {source: row for row, source in reversed([*enumerate(source_of)])}
        order = {source: number for number, source in enumerate(first)}
        self.source_of = torch.tensor([order[source] for source in source_of], dtype=torch.int32)
        widest = 0 if memory is None else -(-memory.pos.shape[1] // PAGE)
        # tokens seen at most where there are windows
        span = max(kv.slots.ring or 0 for kv, _ in cache.layers)
        ring = -(-(span - 1) // PAGE) + 1  # pages that so many tokens lie in at most
        self.windows: Tensor | None = None
        if page_pool is None and span and ring < pages_per_row:
            self.windows = (
                torch.arange(rows)[:, None] * ring + torch.arange(pages_per_row) % ring
            ).int()
        sizes = (
            self.pages,
            len(first) * widest,
            keys.dtype,
            None if self.windows is None else rows * ring,
        )
        make = Pages.empty if page_pool is None else page_pool.take
        self.cache = PagedCache(model.config, pages_per_row * PAGE, *sizes, make)
        for (kv, _), (layer_pages, _) in zip(cache.layers, self.cache.pages, strict=True):
            positions = kv.slots.pos[:, : kv.slots.ring or kv.slots.filled].expand(rows, -1)
            tables = (
                self.tables
                if self.windows is None or layer_pages.lookback is None
                else self.windows
            )
            # of a window's ring: what it still sees alone
            row, column = (positions >= 0).nonzero(as_tuple=True)
            at = positions[row, column]
            to = tables[row, at // PAGE].long() * PAGE + at % PAGE
            layer_pages.pages.write(kv.k[row, :, column], kv.v[row, :, column], to)
        self.sources = (
            None if memory is None else self._take_sources(cache, memory, [*first.values()], widest)
        )

    def _take_sources(
        self, cache: Cache, memory: Memory, rows: Sequence[int], widest: int
    ) -> tuple[Tensor, Tensor]:
        """Pages and lengths of the sources that ``rows`` read, each once."""
        tables = torch.arange(len(rows) * widest, dtype=torch.int32).view(len(rows), widest)
        index = torch.tensor(rows)
        valid = memory.pos.expand(len(memory.hidden), -1)[index] >= 0
        number, column = valid.nonzero(as_tuple=True)
        to = number * widest * PAGE + (valid.cumsum(1) - 1)[number, column]
        for (_, crossed), (_, across) in zip(cache.layers, self.cache.pages, strict=True):
            if across is not None:
                assert crossed.kv is not None
                k, v = (x[index[number], :, column] for x in crossed.kv)
                across.pages.write(k, v, to)
        return tables, valid.sum(1).int()

    def close(self) -> None:
        """Leave the pages of a search to the next."""
        if self.page_pool is not None:
            self.page_pool.give_back()

    def decode(self, model: Model, tokens: Tensor) -> Tensor:
        """The logits (B, V) after one more token per row, ``tokens`` (B,)."""
        count = len(self.next)
        spans = [(row, row + 1) for row in range(count)]
        pos = self.next[None]
        rows, source_of = torch.arange(count, dtype=torch.int32), self.source_of
        extras = self.sources, None, source_of, self.windows
        self.cache.texts = PackedTexts(pos, rows, self.tables, spans, *extras)
        self.next = self.next + 1
        memory = (
            {} if self.sources is None else {"memory": Memory(tokens[None, :0], tokens[None, :0])}
        )
        logits: Tensor = model(tokens[None], pos=pos, cache=self.cache, **memory).logits
        return logits[0]

    def select(self, rows: Sequence[int]) -> None:
        """Row i becomes what row ``rows[i]`` was; some may come twice, not more than there were at
        first."""
        index = torch.tensor(rows)
        self.next, tables = self.next[index], self.tables[index]
        if len(self.source_of):
            self.source_of = self.source_of[index]
        if self.windows is not None:
            self.windows = self.windows[index]
        if len(set(rows)) < len(rows):
            assert self.windows is None, "a row that doubles would write where its other half reads"
            tables = self._part(tables)
        self.tables = tables

    def _part(self, tables: Tensor) -> Tensor:
        """Rows that were one get pages of their own for what they will write, the last written one
        copied."""
        tables, last = tables.clone(), self.next // PAGE
        started = torch.arange(tables.shape[1]) * PAGE < self.next[:, None]
        ref_counts = torch.bincount(tables[started], minlength=self.pages)
        free = (ref_counts == 0).nonzero().flatten().tolist()
        visited = set[int]()
        copies = list[tuple[int, int]]()
        # the others write to a new page next
        for row in (self.next % PAGE).nonzero().flatten().tolist():
            at = int(last[row])
            page = int(tables[row, at])
            if page in visited:
                copies.append((page, free.pop()))
                tables[row, at] = copies[-1][1]
            visited.add(page)
        tables[~started] = torch.tensor(free[: int((~started).sum())], dtype=torch.int32)
        source, target = (
            torch.tensor([pair[side] for pair in copies], dtype=torch.long) for side in (0, 1)
        )
        for layer_pages, _ in self.cache.pages:
            layer_pages.pages.copy(source, target)
        return tables
