"""A cache in pages of 32 keys and values, and attention that reads it where it lies.

T tokens of S sequences, H heads, K heads of keys, D numbers a head, P pages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .shared_library import LARGE, function, large_pages, path

PAGE = 32
CHUNK = 512  # keys whose part of the result is computed apart


@dataclass(frozen=True)
class Pages:
    """``keys`` (P, K, D / step, 32, step) and ``values`` (P, K, 32, D); step is 1 for fp32, 2 for
    bf16.

    The D of values is filled up to a multiple of 16.
    A register holds one number (bf16: two) of 16 keys, so that a query's product with 16 keys needs
    no sum across it. Slot s is key s % 32 of page s // 32.
    """

    keys: Tensor
    values: Tensor
    functions: Mapping[str, Any] = field(default_factory=dict)  # of the build; none: torch computes

    @staticmethod
    def empty(count: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> Pages:
        """``count`` pages, which take memory once they are written; ``head_dim`` is even."""
        step = 2 if dtype == torch.bfloat16 else 1
        if head_dim % 2:
            raise ValueError(f"heads of {head_dim} numbers: pages take an even number")
        keys = _room((count, kv_heads, head_dim // step, PAGE, step), dtype)
        values = _room((count, kv_heads, PAGE, -(-head_dim // 16) * 16), dtype)
        names = () if path() == "torch" else ("write_pages", "copy_pages", "paged_attention")
        return Pages(keys, values, {name: function(name, path()) for name in names})

    @property
    def head_dim(self) -> int:
        """D."""
        return self.keys.shape[2] * self.keys.shape[4]

    @property
    def nbytes(self) -> int:
        """The memory of all pages."""
        return self.keys.nbytes + self.values.nbytes

    def write(self, k: Tensor, v: Tensor, slots: Tensor) -> None:
        """Put k, v (T, K, D) into ``slots`` (T,) int64."""
        if self.functions:
            k, v = (x.detach().to(self.keys.dtype).contiguous() for x in (k, v))
            slots, sizes = slots.contiguous(), (*k.shape, self.values.shape[3], k.element_size())
            self.functions["write_pages"](
                *(x.data_ptr() for x in (k, v, self.keys, self.values, slots)), *sizes
            )
            return
        page, at = slots // PAGE, slots % PAGE
        step = self.keys.shape[-1]
        self.keys[page, :, :, at] = k.to(self.keys.dtype).view(*k.shape[:-1], -1, step)
        self.values[page, :, at, : self.head_dim] = v.to(self.values.dtype)

    def gather(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values (T, K, D) that lie in ``slots`` (T,) int64."""
        page, at = slots // PAGE, slots % PAGE
        return self.keys[page, :, :, at].flatten(-2), self.values[page, :, at, : self.head_dim]

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Whole pages ``source`` to pages ``target``, both (n,) int64: before one of several
        sharers writes."""
        for tensor in (self.keys, self.values):
            if not self.functions:
                tensor[target] = tensor[source]
            else:
                addresses = source.contiguous().data_ptr(), target.contiguous().data_ptr()
                self.functions["copy_pages"](
                    tensor.data_ptr(), *addresses, len(source), tensor[:1].nbytes
                )


def _room(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    size = math.prod(shape) * dtype.itemsize
    return (
        large_pages(size).view(dtype).view(shape)
        if size >= 2 * LARGE
        else torch.empty(shape, dtype=dtype)
    )


def paged_attention(
    q: Tensor,
    pages: Pages,
    tables: Tensor,
    rows: Tensor,
    lengths: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Each token's softmax(q k^T) v over the keys of its sequence: q (T, H, D) -> (T, H, D); no
    gradients.

    ``tables`` (S, n) int32 are the sequences' pages, in order; ``rows`` (T,) int32 says which
    sequence a token belongs to, ``lengths`` (T,) int32 how many of its keys it sees: the first
    ones, itself included where it is causal; with ``window`` the last so many of these. ``softcap``
    bounds scores; ``bias`` (H, most) fp32 is added to the score of the key that lies so many places
    before the last one seen. Every length is at least 1.
    """
    if pages.functions:
        return _compiled(q, pages, tables, rows, lengths, scale, window or 0, softcap or 0.0, bias)
    y = torch.empty_like(q)
    heads, kv_heads = q.shape[1], pages.values.shape[1]
    for row in set(rows.tolist()):
        tokens = (rows == row).nonzero().flatten()
        length = lengths[tokens].long()
        # what is before may be gone
        first = 0 if window is None else max(0, int(length.min()) - window)
        places = torch.arange(first, int(length.max()))
        slots = tables[row, places // PAGE].long() * PAGE + places % PAGE
        k, v = (x.float().repeat_interleave(heads // kv_heads, 1) for x in pages.gather(slots))
        scores = torch.einsum("thd,khd->thk", q[tokens].float(), k) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        back = length[:, None] - 1 - places  # (t, keys): how far before the last one seen
        if bias is not None:
            scores = scores + bias[:, back.clamp(0, bias.shape[1] - 1)].transpose(0, 1)
        visible = (back >= 0) if window is None else (back >= 0) & (back < window)
        pattern = scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1)
        y[tokens] = torch.einsum("thk,khd->thd", pattern, v).to(q.dtype)
    return y


def _compiled(
    q: Tensor,
    pages: Pages,
    tables: Tensor,
    rows: Tensor,
    lengths: Tensor,
    scale: float,
    window: int,
    softcap: float,
    bias: Tensor | None,
) -> Tensor:
    queries = q.detach().to(pages.keys.dtype).contiguous()
    (tokens, heads, dim), (kv_heads, wide) = q.shape, pages.values.shape[1:4:2]
    if dim != pages.head_dim or heads % kv_heads:
        raise ValueError(
            f"{heads} heads of {dim} for pages of {kv_heads} heads of {pages.head_dim}"
        )
    y = torch.empty_like(queries)
    tables, rows, lengths = (
        tensor.to(torch.int32).contiguous() for tensor in (tables, rows, lengths)
    )
    bias = None if bias is None else bias.detach().float().contiguous()
    chunks = -(-int(lengths.max()) // CHUNK) if tokens else 0
    partials = torch.empty(tokens * heads * chunks * (2 + wide) if chunks > 1 else 0)
    runs = torch.empty(3 * (tokens + 1), dtype=torch.int32)
    tensors = (queries, pages.keys, pages.values, tables, rows, lengths, bias, y, partials, runs)
    sizes = (
        tokens,
        heads,
        kv_heads,
        dim,
        wide,
        tables.shape[1],
        window,
        0 if bias is None else bias.shape[1],
        chunks,
    )
    bf16 = queries.dtype == torch.bfloat16
    addresses = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    pages.functions["paged_attention"](
        *addresses, *sizes, scale, softcap, bf16, torch.get_num_threads()
    )
    return y.to(q.dtype)
