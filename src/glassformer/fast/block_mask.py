"""The blocks of pairs that a mask leaves, so that an engine computes those and no others.

    mask.rule -> sub-rules      a union, each with an order of tokens in which its pairs lie close together
    sub-rule  -> BlockMask      tokens in blocks in that order, and which block of queries attends to which of keys,
                                from the least and greatest position in each block: no tensor of T x
                                S is made
    BlockMask -> tiles          query blocks with equally many key blocks, for one batched product, and the pairs masked

T queries, S keys; R rows of positions (B or 1), M = B * H / R heads that share them; N slots of a
layout, E tokens in a block, Q and P blocks of queries and of keys; a tile has G blocks of queries,
each with n blocks of keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import config
from ..core.config.mask import MaskFunction, TokenInfo, allowed
from ..core.nn.build import build
from ..core.nn.mask import Mask

BLOCK = 64
"""Tokens in a block: enough for the matrix kernels, few enough that little is computed in vain."""
TILE_SCORES = 1 << 18
"""Scores worked on at once: they stay in the processor's cache."""
MASKED = -1e30
"""The score of a masked pair: finite, so that where a query attends to nothing of a sub-rule,
that weighs nothing."""


class SubRule(NamedTuple):
    """A rule whose pairs lie close together once tokens are sorted by position modulo ``stride``
    and keys filtered."""

    rule: config.MaskRule
    stride: int = 1
    key_filter: config.Tail | None = None

    def intersect(self, sub: SubRule) -> SubRule:
        """The pairs of both."""
        stride = self.stride if self.stride > 1 else sub.stride
        return SubRule(self.rule & sub.rule, stride, self.key_filter or sub.key_filter)


def split_rule(rule: config.MaskRule) -> list[SubRule]:
    """Sub-rules whose union is ``rule``; pairs may be in more than one."""
    match rule:
        case config.Strided() | config.Fixed():
            return split_rule(rule.union)
        case config.Every(step):
            return [SubRule(rule, step)]
        case config.Tail():
            # itself, and the keys that are filtered
            return [SubRule(config.Window(1)), SubRule(rule, 1, rule)]
        case config.Either(rules):
            by_order: dict[tuple[int, config.Tail | None], SubRule] = {}
            for sub in (sub for branch in rules for sub in split_rule(branch)):
                merged = by_order.get(sub[1:])
                by_order[sub[1:]] = (
                    sub if merged is None else SubRule(merged.rule | sub.rule, *sub[1:])
                )
            return list(by_order.values())
        case config.Both(rules):
            return [
                reduce(SubRule.intersect, choice) for choice in product(*map(split_rule, rules))
            ]
        case _:
            return [SubRule(rule)]


@dataclass
class BlockLayout:
    """Queries or keys in blocks: the token in each slot (R, N) and the slot of each token (R, T),
    -1 for none."""

    tokens: Tensor
    slots: Tensor
    block_size: int
    identity: bool  # every token lies in its own slot
    # of the tokens in blocks, (R, N / E, E) each; position -1 where a slot is empty
    info: TokenInfo

    @classmethod
    def of(cls, info: TokenInfo, keep: Tensor, stride: int) -> BlockLayout:
        """The tokens to ``keep`` of each row, sorted by position modulo ``stride``; a class begins
        with a new block."""
        R, T = info.pos.shape
        kind = torch.where(keep, info.pos % stride, -1)
        kinds = int(kind.max()) + 1  # fewer than ``stride`` where it is longer than the row
        ordered, order = torch.where(keep, kind, kinds).sort(dim=1, stable=True)
        rank = torch.arange(T, device=kind.device) - torch.searchsorted(ordered, ordered)
        longest = int(torch.where(ordered < kinds, rank, 0).max()) + 1
        block_size = min(BLOCK, -(-longest // 8) * 8)
        width = -(-longest // block_size) * block_size
        N = max(1, kinds) * width
        slot = torch.where(ordered < kinds, ordered * width + rank, N)
        tokens = kind.new_full((R, N + 1), -1).scatter_(1, slot, order)[:, :N]
        slots = torch.empty_like(order).scatter_(1, order, slot.where(slot < N, -1))
        identity = R == 1 and N == T and bool((slots == torch.arange(T, device=kind.device)).all())
        laid = info.map(lambda x: x.gather(1, tokens.clamp(min=0)))
        laid = laid._replace(pos=laid.pos.masked_fill(tokens < 0, -1))
        laid = laid.map(lambda x: (x if x.dtype == torch.bool else x.int()).view(R, -1, block_size))
        return cls(tokens, slots, block_size, identity, laid)

    def to_blocks(self, x: Tensor) -> Tensor:
        """x (R, M, T, D) -> blocks (M, R * N / E, E, D), zero where a slot is empty."""
        x = (x if self.identity else _take(x, self.tokens)).transpose(0, 1)
        return x.reshape(len(x), -1, self.block_size, x.shape[3])

    def from_blocks(self, blocks: Tensor) -> Tensor:
        """Blocks (M, R * N / E, E, D) -> (R, M, T, D), zero where a token has no slot."""
        x = blocks.view(len(blocks), len(self.tokens), -1, blocks.shape[3]).transpose(0, 1)
        return x if self.identity else _take(x, self.slots)


def _take(x: Tensor, index: Tensor) -> Tensor:
    """x (R, M, T, D) at ``index`` (R, N) -> (R, M, N, D), zero where the index is -1."""
    R, M, T, D = x.shape
    first = torch.arange(R * M, device=x.device).view(R, M, 1) * T
    flat = (first + index.clamp(min=0)[:, None]).flatten()
    taken = x.reshape(-1, D).index_select(0, flat).view(R, M, -1, D)
    return taken.masked_fill_((index < 0)[:, None, :, None], 0)


class Tile(NamedTuple):
    """Query blocks (G,) that attend to as many key blocks each, (G, n), counted through all
    rows."""

    q_blocks: Tensor
    k_blocks: Tensor
    # (G, E, n * E), or (1, E, n * E) where all query blocks are alike; None: no pair is masked
    masked: Tensor | None

    def bias(self, dtype: torch.dtype) -> Tensor | None:
        """An additive mask for the scores: MASKED (or the lowest number fp16 can hold) for masked
        pairs, 0 for the others."""
        if self.masked is None:
            return None
        lowest = max(MASKED, torch.finfo(dtype).min / 2)  # half: a score is added to it
        return torch.zeros(self.masked.shape, dtype=dtype, device=self.masked.device).masked_fill_(
            self.masked, lowest
        )


@dataclass
class BlockMask:
    """Which key blocks each query block attends to by one sub-rule, ``blocks`` (R, Q, P), and the
    pairs within them."""

    queries: BlockLayout
    keys: BlockLayout
    blocks: Tensor
    # the pairs of this sub-rule and of none before it
    allowed: Callable[[TokenInfo, TokenInfo], Tensor]

    @property
    def pairs(self) -> int:
        """Pairs in the blocks that are computed."""
        return int(self.blocks.sum()) * self.queries.block_size * self.keys.block_size

    @cached_property
    def covers_queries(self) -> bool:
        return bool(self.blocks.any(2).all())

    @cached_property
    def tiles(self) -> list[Tile]:
        """The list of blocks to compute, made once for all layers that share the mask."""
        R, Q, P = self.blocks.shape
        flat = self.blocks.flatten(0, 1)  # (R * Q, P)
        key_counts = flat.sum(1)
        first = torch.arange(R, device=flat.device).repeat_interleave(Q)[:, None] * P
        tile_list: list[Tile] = []
        # blocks of queries with equally many blocks of keys
        for count in sorted(set(key_counts.tolist()) - {0}):
            q_blocks = (key_counts == count).nonzero()[:, 0]
            k_blocks = flat[q_blocks].nonzero()[:, 1].view(-1, count) + first[q_blocks]
            several = max(
                1, TILE_SCORES // (self.queries.block_size * self.keys.block_size * count)
            )
            tile_list += map(
                self._tile, torch.split(q_blocks, several), torch.split(k_blocks, several)
            )
        return tile_list

    def positions(self, tile: Tile) -> tuple[Tensor, Tensor]:
        """Positions of the queries (G, E) and of the keys (G, n * E) of a tile."""
        q, k = (layout.info.pos.flatten(0, 1) for layout in (self.queries, self.keys))
        return q[tile.q_blocks], k[tile.k_blocks].flatten(1)

    def _tile(self, q_blocks: Tensor, k_blocks: Tensor) -> Tile:
        q = self.queries.info.map(lambda x: x.flatten(0, 1)[q_blocks][:, :, None])
        k = self.keys.info.map(lambda x: x.flatten(0, 1)[k_blocks].flatten(1)[:, None, :])
        visible = self.allowed(q, k) & (q.pos >= 0)
        alike = bool((visible == visible[:1]).all())
        masked = None if bool(visible.all()) else ~(visible[:1].clone() if alike else visible)
        return Tile(q_blocks, k_blocks, masked)


def block_masks(mask: Mask) -> list[BlockMask]:
    """A block mask for each sub-rule, made once for all layers that share the mask."""
    if mask.block_masks:
        return mask.block_masks
    # for ``pairs``, which must not hold what holds it
    causal, prefix_length = mask.causal, mask.prefix_length
    q, k = mask.token_info(expand=True)
    rules: list[MaskFunction] = []
    for sub in split_rule(mask.rule):
        rule: MaskFunction | None = build(sub.rule, causal)
        keep = k.pos >= 0
        if sub.key_filter is not None:
            keep &= k.pos % sub.key_filter.size >= sub.key_filter.size - sub.key_filter.last
        queries, keys = (
            BlockLayout.of(q, q.pos >= 0, sub.stride),
            BlockLayout.of(k, keep, sub.stride),
        )

        def pairs(
            q: TokenInfo,
            k: TokenInfo,
            rule: MaskFunction | None = rule,
            earlier: tuple[MaskFunction, ...] = (*rules,),
        ) -> Tensor:
            visible: Tensor = allowed(q, k, causal, prefix_length, rule)
            for earlier_rule in earlier:  # what an earlier sub-rule allows is not counted twice
                visible = visible & ~earlier_rule(q.pos, k.pos)
            return visible

        mask.block_masks.append(
            BlockMask(queries, keys, visible_blocks(mask, sub, queries.info, keys.info), pairs)
        )
        if rule is None:
            break  # this sub-rule allows all there is
        rules.append(rule)
    return mask.block_masks


def density(mask: Mask) -> float:
    """The share of all pairs that lie in the blocks to be computed: ``block_sparse``'s cost beside
    a dense engine."""
    masks = block_masks(mask)
    return sum(block_mask.pairs for block_mask in masks) / (
        len(masks[0].blocks) * mask.q_pos.shape[1] * mask.k_pos.shape[1]
    )


def visible_blocks(mask: Mask, sub: SubRule, q: TokenInfo, k: TokenInfo) -> Tensor:
    """Marks the pairs of blocks (R, Q, P) in which a query may see a key, from the least and
    greatest position of each block: never too few.

    ``q`` (R, Q, E) and ``k`` (R, P, E) are tokens in blocks, position -1 where there is none.
    """
    q_low, q_high = (x[:, :, None] for x in _bounds(q.pos, q.pos >= 0))
    k_low, k_high = (x[:, None, :] for x in _bounds(k.pos, k.pos >= 0))
    blocks = (q_low <= q_high) & (k_low <= k_high)  # neither is empty
    if mask.causal:
        before = (k_low <= q_high) | (k_low < mask.prefix_length)
        blocks = blocks & (before if k.prefix is None else before | k.prefix.any(2)[:, None, :])
    blocks = blocks & _near(sub.rule, mask.causal, q_low, q_high, k_low, k_high)
    if sub.stride > 1:
        blocks = blocks & (q_low % sub.stride == k_low % sub.stride)  # a block holds one class
    if q.document_ids is not None and k.document_ids is not None:
        (q_low, q_high), (k_low, k_high) = (
            _bounds(q.document_ids, q.pos >= 0),
            _bounds(k.document_ids, k.pos >= 0),
        )
        blocks = (
            blocks & (k_low[:, None] <= q_high[:, :, None]) & (q_low[:, :, None] <= k_high[:, None])
        )
    return blocks


def _bounds(x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest of each block (R, N / E, E); of an empty one the least is above
    the greatest."""
    far = torch.iinfo(x.dtype).max // 2
    return x.masked_fill(~real, far).amin(2), x.masked_fill(~real, -far).amax(2)


def _near(
    rule: config.MaskRule,
    causal: bool,
    q_low: Tensor,
    q_high: Tensor,
    k_low: Tensor,
    k_high: Tensor,
) -> Tensor:
    """True where a rule may allow a pair between two ranges of positions; True for a rule that
    cannot tell."""
    bounds = (q_low, q_high, k_low, k_high)
    match rule:
        case config.Window(size):
            return (k_low - q_high < size) & (q_low - k_high < size)
        case config.Chunk(size):
            return (k_low // size <= q_high // size) & (q_low // size <= k_high // size)
        case config.Causal() if not causal:
            return k_low <= q_high
        case config.Prefix(length) if not causal:
            return (k_low <= q_high) | (k_low < length)
        case config.Both(rules):
            return reduce(torch.Tensor.__and__, (_near(rule, causal, *bounds) for rule in rules))
        case config.Either(rules):
            return reduce(torch.Tensor.__or__, (_near(rule, causal, *bounds) for rule in rules))
        case _:
            return torch.ones_like(q_low <= k_low)
