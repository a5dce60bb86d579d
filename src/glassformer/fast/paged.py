"""A cache in pages, for tokens of many texts in one packed row: each text sees its own keys,
wherever they lie.

    row      a a a a b c c        tokens of three texts, at any places of theirs
    tables   a: 7 2 9   b: 4   c: 0 7 5        the pages of each; two may share one
    page 7   keys and values of 32 tokens, for every layer its own

Layers that look back so many tokens at most may have tables and pages of their own, of those that
they still see.

A token's result depends on its own text alone, not on what else is in the row.

N tokens of S texts in the row, T of them of one text, H heads, K key-value heads, D head dim, L
keys of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from ..core import config
from ..core.nn.attention import AttentionInputs, attend, eager_attention
from ..core.nn.cache import Cache, ExternalKV
from ..core.nn.flow import Flow
from ..core.nn.mask import Mask
from ..core.nn.position import Position
from .kernels import PAGE, Pages, paged_attention
from .kernels.stack import VisibleKeys, addresses
from .packed_tape import PackedTape


@dataclass
class PackedTexts:
    """Positions and page tables of a packed row: token i is at place ``pos[0, i]`` of text
    ``rows[i]``.

    ``tables`` (S, most) are each text's pages, filled up with any; ``window_tables`` (None: the
    same) are those of layers that look back so far at most, any where these see nothing. ``spans``
    are each text's columns in the row, in order. ``sources`` are the pages (S, most) and the
    lengths (S,) int32 of what each text's encoder read; where texts share them, ``source_of`` (N,)
    int32 says which a token reads. ``previous`` (1, N, B) are the tokens before each one, -1 where
    there is none, for models that embed those.
    """

    pos: Tensor  # (1, N)
    rows: Tensor  # (N,) int32
    tables: Tensor  # (S, most) int32
    spans: Sequence[tuple[int, int]]
    sources: tuple[Tensor, Tensor] | None = None
    previous: Tensor | None = None
    source_of: Tensor | None = None
    window_tables: Tensor | None = None

    def __post_init__(self) -> None:
        self.lengths = (self.pos[0] + 1).int()  # keys that each token sees, itself included
        self.full_layout = self.tables, self._slots(self.tables)
        window_layout = self.window_tables
        self.window_layout = (
            self.full_layout
            if window_layout is None
            else (window_layout, self._slots(window_layout))
        )

    def _slots(self, tables: Tensor) -> Tensor:
        """Slots that each token's keys and values go to (N,)."""
        places = self.pos[0]
        return tables[self.rows.long(), places // PAGE].long() * PAGE + places % PAGE

    @cached_property
    def longest(self) -> int:
        """The most keys that a token sees."""
        return int(self.lengths.max())

    @cached_property
    def source(self) -> VisibleKeys | None:
        """The source's keys that each token attends to."""
        if self.sources is None:
            return None
        tables, lengths = self.sources
        rows = self.rows if self.source_of is None else self.source_of
        return VisibleKeys(tables, rows, lengths[rows.long()], int(lengths.max()))

    def start(self, text: int) -> int:
        """The place of a text's first token in the row."""
        return int(self.pos[0, self.spans[text][0]])

    def keys(self, text: int, tables: Tensor) -> tuple[int, Tensor]:
        """Number of keys of a text, and the slots they lie in (L,) by these tables."""
        first, end = self.spans[text]
        length = self.start(text) + end - first
        places = torch.arange(length, device=self.pos.device)
        return length, tables[text, places // PAGE].long() * PAGE + places % PAGE


class PagedKV(ExternalKV):
    """One layer's keys and values in ``pages``; whoever made the cache says in ``cache.texts``
    which are whose.

    ``lookback`` tokens are seen at most (None: all), and what lies before them may be gone.
    """

    def __init__(self, cache: PagedCache, pages: Pages, lookback: int | None = None) -> None:
        self.cache, self.pages, self.lookback = cache, pages, lookback

    @property
    def layout(self) -> tuple[Tensor, Tensor]:
        """The tables of this layer's pages, and the slots of the tokens in the row."""
        return (
            self.cache.texts.full_layout
            if self.lookback is None
            else self.cache.texts.window_layout
        )

    def attention(self, module: Any, x: Tensor, flow: Flow, position: Position) -> Tensor:
        """x (1, N, C) of many texts -> z (1, H, N, D) over the pages that each has."""
        if module.cross:
            q = flow.look(module, "q", module.split(module.q(x), module.q_norm))
            return self.across(q, module.scale, module.softcap, flow)
        q, k, v = module.qkv(x, flow, position)
        self.extend(k, v)
        bias = self.cache.bias(position)
        z = self.attend(module, q, bias, flow)
        if flow.watches(module, "scores", "pattern"):
            self.watch(module, q, bias, flow, z)
        return z

    def extend(self, k: Tensor, v: Tensor) -> None:
        """Keep k and v (1, K, N, D) of the tokens in the row."""
        self.pages.write(k[0].transpose(0, 1), v[0].transpose(0, 1), self.layout[1])

    def attend(self, module: Any, q: Tensor, bias: Tensor | None, flow: Flow) -> Tensor:
        """z (1, H, N, D) of queries (1, H, N, D) over what their texts have so far.

        ``bias`` (H, most) is by distance: of the key so many places before.
        """
        match module.mask:
            case config.Full() | config.Causal():
                window = None
            case config.Window(window):
                pass
            case _:
                return self._by_rule(module, q, bias, flow)
        texts = self.cache.texts
        flat, args = q[0].transpose(0, 1), (self.layout[0], texts.rows, texts.lengths)
        z = paged_attention(flat, self.pages, *args, module.scale, window, module.softcap, bias)
        return z.transpose(0, 1)[None]

    def across(self, q: Tensor, scale: float, softcap: float | None, flow: Flow) -> Tensor:
        """z (1, H, N, D) of queries (1, H, N, D) over all of what their texts' encoder read."""
        source = self.cache.texts.source
        assert source is not None
        flat, args = q[0].transpose(0, 1), (source.tables, source.rows, source.lengths)
        return paged_attention(flat, self.pages, *args, scale, None, softcap).transpose(0, 1)[None]

    def watch(self, module: Any, q: Tensor, bias: Tensor | None, flow: Flow, z: Tensor) -> None:
        """Scores and patterns of the texts that are watched, (1, H, T, L), and what edits of them
        make of ``z``."""
        assert isinstance(flow.tape, PackedTape)
        for text, ((first, end), tape) in flow.tape.tapes.items():
            names = [f"{module.path}.{name}" for name in ("scores", "pattern")]
            if not any(map(tape.watches, names)):
                continue
            text_inputs = self.of_text(module, q, bias, text, flow)
            if tape.place is not None:
                tape.place.keys, tape.place.visible = text_inputs.mask.k_pos, text_inputs.mask.dense
            output = eager_attention(
                text_inputs._replace(look=partial(flow.tape.look, text, tape, module.path))
            )
            if any(map(tape.changes, names)):
                z[:, :, first:end] = output

    def _by_rule(self, module: Any, q: Tensor, bias: Tensor | None, flow: Flow) -> Tensor:
        """The same by any rule over positions, one text after another."""
        z = torch.empty_like(q)
        for text, (first, end) in enumerate(self.cache.texts.spans):
            text_inputs = self.of_text(module, q, bias, text, flow)
            z[:, :, first:end] = attend(text_inputs, flow.engine)
        return z

    def of_text(
        self, module: Any, q: Tensor, bias: Tensor | None, text: int, flow: Flow
    ) -> AttentionInputs:
        """Attention inputs of one text's tokens in the row, with its keys and values (1, K, L, D)
        as any engine takes them."""
        texts = self.cache.texts
        first, end = texts.spans[text]
        length, slots = texts.keys(text, self.layout[0])
        k, v = (x.transpose(0, 1)[None].to(q.dtype) for x in self.pages.gather(slots))
        q_pos = texts.pos[:, first:end]
        if self.lookback is not None:  # what was given back is anything, and not a number perhaps
            for x in (k, v):
                x[:, :, : max(0, texts.start(text) + 1 - self.lookback)] = 0
        k_pos = torch.arange(length, device=q_pos.device)[None]
        make = partial(Mask, q_pos, k_pos, True, module.mask)
        mask = flow.cached(("paged", text, module.mask), make)
        if bias is not None:  # (H, most) -> (1, H, T, L)
            bias = bias[:, (q_pos[0, :, None] - k_pos).clamp(min=0)][None]
        return AttentionInputs(q[:, :, first:end], k, v, mask, bias, module.scale, module.softcap)


class PagedCache(Cache):
    """A decoder's pages: ``count`` of them for its own keys and ``source_count`` for those of its
    encoder's output.

    Set ``texts`` before each pass. ``context`` is the greatest number of tokens of a text. Layers
    that look back so far at most have ``window_count`` pages by tables of their own (None: as all
    others). ``make`` makes a layer's pages.
    """

    def __init__(
        self,
        cfg: config.Model,
        context: int,
        count: int,
        source_count: int = 0,
        dtype: torch.dtype = torch.float32,
        window_count: int | None = None,
        make: Callable[[int, int, int, torch.dtype], Any] = Pages.empty,
    ) -> None:
        super().__init__(cfg)
        self.context, self.contiguous = context, False
        self.texts: PackedTexts
        self._made: dict[object, tuple[Tensor, ...]] = {}
        blocks = cfg.stacks["decoder"].blocks

        def layer(attention: config.Attention, pages: int, lookback: int | None = None) -> PagedKV:
            heads = attention.kv_heads or attention.heads
            pages = pages if lookback is None or window_count is None else window_count
            return PagedKV(self, make(pages, heads, attention.width(cfg.dim), dtype), lookback)

        self.pages = [
            (
                layer(block.attention, count, block.attention.mask.lookback),
                None if block.cross is None else layer(block.cross, source_count),
            )
            for block in blocks
        ]
        self.layers = self.pages  # type: ignore[assignment]
        self.dtype = dtype

    @cached_property
    def addresses(self) -> Any:
        """Addresses of each layer's pages, for blocks in C."""
        return addresses(
            [
                (self_kv.pages, None if across is None else across.pages)
                for self_kv, across in self.pages
            ]
        )

    @staticmethod
    def page_bytes(
        cfg: config.Model,
        dtype: torch.dtype,
        make: Callable[[int, int, int, torch.dtype], Any] = Pages.empty,
    ) -> tuple[int, int, int]:
        """Bytes of one page through layers that see all, through those that look back so far, of
        its encoder's keys."""
        blocks = cfg.stacks["decoder"].blocks

        def size(attention: config.Attention) -> int:
            heads = attention.kv_heads or attention.heads
            size: int = make(1, heads, attention.width(cfg.dim), dtype).nbytes
            return size

        layer_sizes = [
            (size(block.attention), block.attention.mask.lookback is None) for block in blocks
        ]
        across = (size(block.cross) for block in blocks if block.cross is not None)
        return (
            sum(nbytes for nbytes, far in layer_sizes if far),
            sum(nbytes for nbytes, far in layer_sizes if not far),
            sum(across),
        )

    def advance(self, tokens: Tensor, pos: Tensor | None) -> Tensor:
        """The positions (1, N) of the tokens in the row."""
        return self.texts.pos

    def prepare(self, flow: Flow) -> None:
        """Let a flow take previous tokens and terms of positions from these pages' texts."""
        flow.previous, flow.by_position = self.texts.previous, self.by_position

    def by_position(
        self, key: object, make: Callable[[Tensor], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Returns ``make`` of positions (1, context), computed once, so that a position's numbers
        are the same bits in every pass."""
        if key not in self._made:
            self._made[key] = make(torch.arange(self.context, device=self.texts.pos.device)[None])
        return self._made[key]

    def bias(self, position: Position) -> Tensor | None:
        """A position scheme's term for scores by distance, (H, context); None where it has none."""

        def by_distance(pos: Tensor) -> tuple[Tensor, ...]:
            term = position.bias(pos[:, -1:], pos)  # of the last place, and each before it
            return () if term is None else (term[0, :, 0].flip(-1).float().contiguous(),)

        return next(iter(self.by_position((position, "bias"), by_distance)), None)
