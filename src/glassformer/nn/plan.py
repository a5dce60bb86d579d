"""What a mask costs where only visited pairs are computed: blocks of queries, and the blocks of keys each may look at.

    rule -> terms    a union of simpler rules, each with the order of tokens in which its pairs lie close together
    term -> plan     tokens laid out in blocks in that order; which block may look at which is told from the smallest
                     and the largest position in each: no tensor of T x S is made
    plan -> steps    query blocks with equally many key blocks, for one batched product, and the pairs barred in them

T queries, S keys; R rows of positions (B or 1), M = B * H / R heads that share them; N slots of a layout, Q and P its
blocks of queries and of keys, E side of a block; a step has G blocks of queries, each with n blocks of keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from .. import config
from ..config.mask import Allows
from ..config.visible import Side
from .build import build
from .mask import Mask

SIDE = 64
"""Tokens in a block: enough for the matrix kernels, few enough that little is computed in vain."""
ROOM = 1 << 18
"""Scores worked on at once: they stay in the processor's cache."""
NOTHING = -1e30
"""The score of a pair that may not be: finite, so that a term in which a query sees nothing drops out of the merger."""


class Term(NamedTuple):
    """A rule whose pairs lie close together once tokens are sorted by position modulo ``step`` and keys are sifted."""

    rule: config.MaskRule
    step: int = 1
    key_filter: config.Tail | None = None


def terms(mask_rule: config.MaskRule) -> list[Term]:
    """Rules that together say what ``see`` says; pairs may be in more than one."""
    match mask_rule:
        case config.Strided() | config.Fixed():
            return terms(mask_rule.parts)
        case config.Every(step):
            return [Term(mask_rule, step)]
        case config.Tail():
            return [Term(config.Window(1)), Term(mask_rule, 1, mask_rule)]  # itself, and the keys that are sifted out
        case config.Either(rules):
            apart: dict[tuple[int, config.Tail | None], Term] = {}
            for term in (term for rule in rules for term in terms(rule)):
                same = apart.get(term[1:])
                apart[term[1:]] = term if same is None else Term(same.rule | term.rule, *term[1:])
            return list(apart.values())
        case config.Both(rules):
            return [reduce(_both, choice) for choice in product(*map(terms, rules))]
        case _:
            return [Term(mask_rule)]


def _both(one: Term, other: Term) -> Term:
    step = one.step if one.step > 1 else other.step
    return Term(one.rule & other.rule, step, one.key_filter or other.key_filter)


# --------------------------------------------------------------------------------------- plan


@dataclass
class Step:
    """Query blocks (G,) that look at as many key blocks each, (G, n); ``barred`` (G, E, n * E) pairs may not be."""

    queries: Tensor
    keys: Tensor
    barred: Tensor | None  # (1, E, n * E) where all query blocks are alike

    def bias(self, dtype: torch.dtype) -> Tensor | None:
        """What is added to the scores, so that pairs that may not be weigh nothing."""
        if self.barred is None:
            return None
        return torch.zeros(self.barred.shape, dtype=dtype, device=self.barred.device).masked_fill_(self.barred, NOTHING)


@dataclass
class Layout:
    """Tokens in blocks: the column of each slot (R, N) and the slot of each column (R, T), -1 where there is none."""

    columns: Tensor
    slots: Tensor
    side: int
    still: bool  # every column is its own slot

    @classmethod
    def of(cls, pos: Tensor, keep: Tensor, step: int) -> Layout:
        """The kept tokens of each row, sorted by position modulo ``step``; a class begins with a new block."""
        R, T = pos.shape
        kind = torch.where(keep, pos % step, -1)
        kinds = int(kind.max()) + 1  # fewer than ``step`` where it is longer than the row
        ordered, order = torch.where(keep, kind, kinds).sort(dim=1, stable=True)
        rank = torch.arange(T, device=pos.device) - torch.searchsorted(ordered, ordered)
        widest = int(torch.where(ordered < kinds, rank, 0).max()) + 1
        side = min(SIDE, -(-widest // 8) * 8)
        width = -(-widest // side) * side
        N = max(1, kinds) * width
        place = torch.where(ordered < kinds, ordered * width + rank, N)
        columns = pos.new_full((R, N + 1), -1).scatter_(1, place, order)[:, :N]
        slots = torch.empty_like(order).scatter_(1, order, place.where(place < N, -1))
        still = R == 1 and N == T and bool((slots == torch.arange(T, device=pos.device)).all())
        return cls(columns, slots, side, still)

    def gather(self, known: Side) -> Side:
        """What is known of the tokens, as blocks (R, N / E, E); position -1 where there is none."""
        at = self.columns.clamp(min=0)
        laid = known.map(lambda x: x.gather(1, at))
        laid = laid._replace(pos=laid.pos.masked_fill(self.columns < 0, -1))
        return laid.map(lambda x: (x if x.dtype == torch.bool else x.int()).view(len(x), -1, self.side))

    def lay(self, x: Tensor) -> Tensor:
        """x (R, M, T, D) -> blocks (M, R * N / E, E, D), zero where a slot is empty."""
        x = (x if self.still else _rows(x, self.columns)).transpose(0, 1)
        return x.reshape(len(x), -1, self.side, x.shape[3])

    def back(self, blocks: Tensor) -> Tensor:
        """Blocks (M, R * N / E, E, D) -> (R, M, T, D), zero where a column has no slot."""
        x = blocks.view(len(blocks), len(self.columns), -1, blocks.shape[3]).transpose(0, 1)
        return x if self.still else _rows(x, self.slots)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """x (R, M, T, D) at ``index`` (R, N) -> (R, M, N, D), zero where the index is -1."""
    R, M, T, D = x.shape
    first = torch.arange(R * M, device=x.device).view(R, M, 1) * T
    flat = (first + index.clamp(min=0)[:, None]).flatten()
    taken = x.reshape(-1, D).index_select(0, flat).view(R, M, -1, D)
    return taken.masked_fill_((index < 0)[:, None, :, None], 0)


@dataclass
class Plan:
    """One term's blocks of queries and of keys, which ``touch`` (R, Q, P) which, and the steps over them."""

    rule: Allows | None
    queries: Layout
    keys: Layout
    touch: Tensor
    steps: list[Step]

    @property
    def pairs(self) -> int:
        """Pairs in blocks that touch."""
        return int(self.touch.sum()) * self.queries.side * self.keys.side

    def blank(self, q: Tensor) -> Tensor:
        """Room for what comes of the blocks of queries, in fp32 at least; zeros where a block may see nothing."""
        make = torch.empty_like if bool(self.touch.any(2).all()) else torch.zeros_like
        return make(q, dtype=torch.promote_types(q.dtype, torch.float32))


def plans(mask: Mask) -> list[Plan]:
    """What to compute for a mask, without its steps; made once for all layers that share it."""
    if not mask.plans:
        for term in terms(mask.rule):
            rule: Allows | None = build(term.rule, mask.causal)
            q, k = _sides(mask)
            keep = k.pos >= 0
            if term.key_filter is not None:
                keep &= k.pos % term.key_filter.size >= term.key_filter.size - term.key_filter.last
            queries, keys = Layout.of(q.pos, q.pos >= 0, term.step), Layout.of(k.pos, keep, term.step)
            touch = touching(mask, term, queries.gather(q), keys.gather(k))
            mask.plans.append(Plan(rule, queries, keys, touch, []))
            if rule is None:
                break  # this term sees all there is
    return mask.plans


def share(mask: Mask) -> float:
    """The share of all pairs that the blocks hold which must be looked at: what ``sparse`` costs beside dense."""
    made = plans(mask)
    return sum(plan.pairs for plan in made) / (len(made[0].touch) * mask.q_pos.shape[1] * mask.k_pos.shape[1])


def _sides(mask: Mask) -> tuple[Side, Side]:
    """What is known of queries and keys, with the same number of rows everywhere."""
    q, k = mask.sides
    rows = max(len(x) for side in (q, k) for x in side if x is not None)
    return q.map(lambda x: x.expand(rows, -1)), k.map(lambda x: x.expand(rows, -1))


def with_steps(mask: Mask) -> list[Plan]:
    """The plans of a mask, ready to be computed."""
    before: list[Allows] = []
    for plan in plans(mask):
        if not plan.steps:
            q, k = (layout.gather(side) for layout, side in zip((plan.queries, plan.keys), _sides(mask), strict=True))
            q, k = q.map(lambda x: x.flatten(0, 1)), k.map(lambda x: x.flatten(0, 1))  # (R * Q or R * P, E)
            for q_blocks, k_blocks in _even(plan.touch, plan.queries.side * plan.keys.side):
                plan.steps.append(_step(mask, plan.rule, before, q, k, q_blocks, k_blocks))
        if plan.rule is not None:
            before.append(plan.rule)
    return mask.plans


def _step(
    mask: Mask, rule: Allows | None, before: list[Allows], q: Side, k: Side, q_blocks: Tensor, k_blocks: Tensor
) -> Step:
    some_q, some_k = q.map(lambda x: x[q_blocks][:, :, None]), k.map(lambda x: x[k_blocks].flatten(1)[:, None, :])
    may = mask.may(some_q, some_k, rule) & (some_q.pos >= 0)
    for other in before:  # what an earlier term sees is not seen twice
        may = may & ~other(some_q.pos, some_k.pos)
    alike = bool((may == may[:1]).all())
    return Step(q_blocks, k_blocks, None if bool(may.all()) else ~(may[:1].clone() if alike else may))


def _even(touch: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """touch (R, Q, P) -> query blocks (G,) with equally many key blocks (G, n), both counted through all rows."""
    R, Q, P = touch.shape
    flat = touch.flatten(0, 1)  # (R * Q, P)
    counts = flat.sum(1)
    first = torch.arange(R, device=touch.device).repeat_interleave(Q)[:, None] * P
    for count in sorted(set(counts.tolist())):
        if count:
            q_blocks = (counts == count).nonzero()[:, 0]
            k_blocks = flat[q_blocks].nonzero()[:, 1].view(-1, count) + first[q_blocks]
            several = max(1, ROOM // (size * count))
            yield from zip(torch.split(q_blocks, several), torch.split(k_blocks, several), strict=True)


def touching(mask: Mask, term: Term, q: Side, k: Side) -> Tensor:
    """Whether any pair of two blocks may be visited, (R, Q, P), from the least and the most of each: never too few."""
    q_low, q_high = (x[:, :, None] for x in _span(q.pos, q.pos >= 0))
    k_low, k_high = (x[:, None, :] for x in _span(k.pos, k.pos >= 0))
    touch = (q_low <= q_high) & (k_low <= k_high)  # neither is empty
    if mask.causal:
        before = (k_low <= q_high) | (k_low < mask.ahead)
        touch = touch & (before if k.prefix is None else before | k.prefix.any(2)[:, None, :])
    touch = touch & _near(term.rule, mask.causal, q_low, q_high, k_low, k_high)
    if term.step > 1:
        touch = touch & (q_low % term.step == k_low % term.step)  # a block holds one class
    if q.document_ids is not None and k.document_ids is not None:
        (q_low, q_high), (k_low, k_high) = _span(q.document_ids, q.pos >= 0), _span(k.document_ids, k.pos >= 0)
        touch = touch & (k_low[:, None] <= q_high[:, :, None]) & (q_low[:, :, None] <= k_high[:, None])
    return touch


def _span(x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the most of each block (R, N / E, E); of an empty one the least is above the most."""
    far = torch.iinfo(x.dtype).max // 2
    return x.masked_fill(~real, far).amin(2), x.masked_fill(~real, -far).amax(2)


def _near(
    mask_rule: config.MaskRule, causal: bool, q_low: Tensor, q_high: Tensor, k_low: Tensor, k_high: Tensor
) -> Tensor:
    """Whether a rule may allow any pair between two spans of positions; a rule that cannot say allows."""
    spans = (q_low, q_high, k_low, k_high)
    match mask_rule:
        case config.Window(size):
            return (k_low - q_high < size) & (q_low - k_high < size)
        case config.Chunk(size):
            return (k_low // size <= q_high // size) & (q_low // size <= k_high // size)
        case config.Causal() if not causal:
            return k_low <= q_high
        case config.Prefix(length) if not causal:
            return (k_low <= q_high) | (k_low < length)
        case config.Both(rules):
            return reduce(torch.Tensor.__and__, (_near(rule, causal, *spans) for rule in rules))
        case config.Either(rules):
            return reduce(torch.Tensor.__or__, (_near(rule, causal, *spans) for rule in rules))
        case _:
            return torch.ones_like(q_low <= k_low)
