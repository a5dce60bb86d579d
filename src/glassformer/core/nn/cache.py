"""Keys and values of what was already read, so that a new token costs one token.

    Cache -- layers: (KV or MixerState, CrossKV) per block          what is kept
          `- slots: one Slots per lookback (full, window) where it is kept, shared by all its layers

Full attention keeps every column, in buffers that double when they are full. A window keeps a ring
of its own size, in which position p lies in slot p mod size. If one window is longer than the
context, every layer keeps every column. Masks are functions of the positions in the slots, so
padding, rings and chunks of any size need no case of their own.

B batch, T new tokens, S kept tokens, K key-value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import config
from ..errors import UserError
from .flow import Flow

# tokens of a window, above which all layers keep what comes as full attention does
LONGEST_RING = 1 << 16


class RowSelection:
    """Row i of a batch becomes what row ``index[i]`` was; some rows come twice, others not at all.

    ``in_place``: each row stays or moves up, so rows are copied within the memory that holds them.
    """

    def __init__(self, index: Tensor) -> None:
        self.index, order = index, index.tolist()
        self.moves = [(place, row) for place, row in enumerate(order) if row != place]
        self.in_place = all(row > place for place, row in self.moves)

    def of(self, x: Tensor, columns: int | None = None) -> Tensor:
        """The rows of x (B, ...); ``columns`` says how many along dimension 2 hold something."""
        filled = x if columns is None else x.narrow(2, 0, columns)
        if not self.in_place:
            if columns is None or columns == x.shape[2]:
                return x[self.index]
            # a buffer is filled as far as it holds something
            buffer = x.new_empty(len(self.index), *x.shape[1:])
            buffer.narrow(2, 0, columns).copy_(filled[self.index])
            return buffer
        for place, row in self.moves:
            filled[place].copy_(filled[row])
        return x[: len(self.index)]


class Slots:
    """Which position lies in which column, for all layers of one lookback; -1: empty."""

    def __init__(self, ring: int | None) -> None:
        self.ring = ring
        self.filled = 0  # columns that came, padding too; in a ring those overwritten as well
        self.capacity = ring or 0
        # (B or 1, capacity) or, in a ring, (B or 1, capacity + 1): the last is a bin
        self.pos = torch.empty(0)
        self.k_pos = self.pos  # of the keys that the tokens now coming in look at, (B or 1, S)
        self.index: Tensor | None = None  # a ring's target slots (B or 1, T)

    def advance(self, pos: Tensor, contiguous: bool) -> None:
        """Make room for tokens at ``pos`` (B or 1, T)."""
        rows, columns = pos.shape[0], self.capacity + bool(self.ring)
        if self.pos.ndim < 2:
            self.pos = torch.full((rows, columns), -1, device=pos.device)
        elif self.pos.shape[0] < rows:
            self.pos = self.pos.expand(rows, -1).clone()
        if self.ring is None:
            self._append(pos)
        else:
            self._wrap(pos, contiguous, self.ring)

    def _append(self, pos: Tensor) -> None:
        start, self.filled = self.filled, self.filled + pos.shape[1]
        if self.filled > self.capacity:
            self.capacity = max(2 * self.capacity, -(-self.filled // 64) * 64)
            self.pos = enlarged(self.pos, start, self.capacity, dim=1)
        self.pos[:, start : self.filled] = pos
        self.k_pos = self.pos[:, : self.filled]

    def _wrap(self, pos: Tensor, contiguous: bool, ring: int) -> None:
        old = self.pos[:, : min(self.filled, ring) if contiguous else ring].clone()
        last = torch.maximum(self.pos[:, :ring].amax(1, keepdim=True), pos.amax(1, keepdim=True))
        in_window = (pos >= 0) & (pos > last - ring)
        self.index = torch.where(in_window, pos % ring, ring)
        self.pos.scatter_(
            1, self.index.expand(self.pos.shape[0], -1), pos.expand(self.pos.shape[0], -1)
        )
        self.filled += pos.shape[1]
        if pos.shape[1] == 1:  # what it overwrites has just left the window
            self.k_pos = self.pos[:, : min(self.filled, ring) if contiguous else ring]
        else:
            self.k_pos = torch.cat((old.expand(pos.shape[0], -1), pos), dim=1)

    def select(self, rows: RowSelection) -> None:
        if self.pos.ndim == 2 and self.pos.shape[0] > 1:
            self.pos = rows.of(self.pos)


class KV:
    """One layer's keys and values (B, K, capacity, D) in the columns that its Slots tell."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.k = self.v = torch.empty(0)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keep k and v (B, K, T, D); returns all that the new tokens may see, (B, K, S, D)."""
        slots, new = self.slots, k.shape[2]
        start, room = slots.filled - new, slots.capacity + bool(slots.ring)
        if self.k.ndim < 4:
            # of a ring, empty columns are looked at
            buffer = k.new_empty if slots.ring is None else k.new_zeros
            self.k, self.v = (buffer(*x.shape[:2], room, x.shape[3]) for x in (k, v))
        elif self.k.shape[2] < room:
            self.k, self.v = (enlarged(x, start, room, dim=2) for x in (self.k, self.v))
        if slots.ring is None:
            self.k.narrow(2, start, new).copy_(k)
            self.v.narrow(2, start, new).copy_(v)
            return self.k.narrow(2, 0, slots.filled), self.v.narrow(2, 0, slots.filled)
        assert slots.index is not None
        width = slots.k_pos.shape[1]
        old_k, old_v = self.k[:, :, : width - new], self.v[:, :, : width - new]
        if new > 1:  # a chunk may overwrite what its first tokens still look at: look, then write
            visible = torch.cat((old_k, k), dim=2), torch.cat((old_v, v), dim=2)
        index = slots.index[:, None, :, None]
        self.k.scatter_(2, index.expand(k.shape), k)
        self.v.scatter_(2, index.expand(v.shape), v)
        return visible if new > 1 else (self.k[:, :, :width], self.v[:, :, :width])

    def select(self, rows: RowSelection) -> None:
        if self.k.ndim == 4:
            filled = self.k.shape[2] if self.slots.ring else self.slots.filled
            self.k, self.v = rows.of(self.k, filled), rows.of(self.v, filled)


class CrossKV:
    """One layer's keys and values of the encoder's output, made once."""

    def __init__(self) -> None:
        self.kv: tuple[Tensor, Tensor] | None = None

    def cached(self, make: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The encoder's keys and values (B, K, S, D), which ``make`` makes in the first call."""
        if self.kv is None:
            self.kv = make()
        return self.kv

    def select(self, rows: RowSelection) -> None:
        if self.kv is not None:
            self.kv = (rows.of(self.kv[0]), rows.of(self.kv[1]))


class MixerState:
    """Tensors (B, ...) that a layer's mixer keeps of the tokens read; none before its first."""

    def __init__(self) -> None:
        self.tensors: tuple[Tensor, ...] = ()

    def select(self, rows: RowSelection) -> None:
        self.tensors = tuple(tensor[rows.index] for tensor in self.tensors)


class ExternalKV:
    """Keys and values that are kept elsewhere, and attended to there: in pages, of many texts."""

    def attention(self, module: Any, x: Tensor, flow: Flow, position: Any) -> Tensor:
        """x (B, T, C) -> z (B, H, T, D) of an Attention ``module``."""
        raise NotImplementedError


class Cache:
    """Keys and values of the tokens that a decoder has processed, for one batch of sequences.

    ``length`` counts the columns read, padding included. Buffers grow by themselves; a token is
    written in place. A forward pass that fails half-way leaves the cache unusable.
    """

    def __init__(self, cfg: config.Model) -> None:
        body: config.Body = cfg.decoder  # type: ignore[union-attr]
        mixers = (
            [block.attention for block in body.blocks]
            if isinstance(body, config.Stack)
            else [None] * body.depth  # recurrent layers
        )
        masks = [mixer.mask for mixer in mixers if isinstance(mixer, config.Attention)]
        lookback = [mask.lookback for mask in masks]
        if max((size for size in lookback if size is not None), default=0) > min(
            cfg.context, LONGEST_RING
        ):
            # a ring takes its memory at once, a full cache as tokens come
            lookback = [None] * len(masks)
        self.slots = {ring: Slots(ring) for ring in lookback}
        rings = iter(lookback)
        # the state of each block's mixer, a KV of an attention's, and the encoder's keys
        self.layers: list[tuple[Any, CrossKV]] = [
            (
                KV(self.slots[next(rings)])
                if isinstance(mixer, config.Attention)
                else MixerState(),
                CrossKV(),
            )
            for mixer in mixers
        ]
        self.length = 0
        self.contiguous = True
        self._previous = cfg.embed.previous_token_embeddings
        # the last ``_previous`` tokens of each row and their positions, (B, N) each
        self.history: tuple[Tensor, Tensor] | None = None
        # first tokens that see each other: all of them have to be in the first pass
        self.prefix_length = max((mask.prefix_length for mask in masks), default=0)
        self._last: Tensor | None = None  # highest position of each row, (B, 1), once rows differ

    def advance(self, tokens: Tensor, pos: Tensor | None) -> Tensor:
        """Make room for ``tokens`` (B, T) and tell their positions (B or 1, T), if not passed."""
        rows, columns = tokens.shape
        offsets = torch.arange(columns, device=tokens.device)[None]
        if self.length == 0 and self.prefix_length > (
            columns if pos is None else int(pos.amax(1).min()) + 1
        ):
            raise UserError(
                f"this model's first {self.prefix_length} tokens see each other and are read in "
                "one go; give at least that many in the first pass."
            )
        if pos is not None:
            if self._last is None:
                self._last = torch.full((rows, 1), self.length - 1, device=tokens.device)
            self.contiguous = False
        elif self.contiguous:
            pos = offsets + self.length
        else:
            assert self._last is not None
            pos = self._last + 1 + offsets
        if self._last is not None:
            # in place: a step may be recorded
            torch.maximum(self._last, pos.amax(1, keepdim=True), out=self._last)
        for slots in self.slots.values():
            slots.advance(pos, self.contiguous)
        if self._previous:
            old = self.history or (tokens[:, :0], pos[:, :0].expand(len(tokens), 0))
            later = torch.cat((old[1], pos.expand_as(tokens)), 1)
            self._remember(torch.cat((old[0], tokens), 1), later)
        self.length += columns
        return pos

    def prepare(self, flow: Flow) -> None:
        """Set what a flow takes from its cache; called before each forward pass."""

    def _remember(self, tokens: Tensor, pos: Tensor) -> None:
        """Keep the latest tokens of each row, padding left out."""
        latest, columns = pos.topk(min(self._previous, pos.shape[1]), dim=1)
        self.history = (tokens.gather(1, columns.flip(1)), latest.flip(1))

    @property
    def evicts(self) -> bool:
        """True where older tokens are lost: overwritten in a window's ring, merged in a state."""
        return any(isinstance(state, MixerState) for state, _ in self.layers) or any(
            slots.ring is not None for slots in self.slots.values()
        )

    def select(self, index: Tensor, cross: bool = True) -> None:
        """Row i becomes what row ``index[i]`` was (beams); ``index`` may have another length.

        Where each row stays or moves up (index[i] >= i, as when finished rows are dropped), only
        the rows that move are copied, within the same memory; otherwise all keys and values are
        gathered anew. ``cross=False`` leaves the encoder's keys and values alone, for rows of one
        source that change places.
        """
        rows = RowSelection(index)
        entries: list[Slots | KV | MixerState | CrossKV] = [
            *self.slots.values(),
            *(kv for kv, _ in self.layers),
        ]
        entries += [cross_kv for _, cross_kv in self.layers if cross]
        for entry in entries:
            entry.select(rows)
        if self.history is not None:
            self.history = (self.history[0][index], self.history[1][index])
        if self._last is not None:
            self._last = self._last[index]


def enlarged(x: Tensor, filled: int, room: int, dim: int) -> Tensor:
    """A buffer with more columns, the first ``filled`` from ``x``, the others uninitialised."""
    shape = list(x.shape)
    shape[dim] = room
    larger = x.new_empty(shape)
    larger.narrow(dim, 0, filled).copy_(x.narrow(dim, 0, filled))
    return larger
