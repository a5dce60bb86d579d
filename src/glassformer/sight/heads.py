"""Scores of each attention head: where it looks in random tokens that come
twice, beside a baseline.

Random tokens say nothing but their order, so that a head that looks back at the first copy does so
for the repetition alone. A text is one opening token, L drawn ones and the same L again; its
baseline has the second L shuffled.

    previous    weight on the token just before; ``next`` on the one just after, where the future is seen
    induction   weight on what came after this token the first time (Olsson et al. 2022, arXiv 2209.11895)
    duplicate   weight on this token the first time
    first       weight on the first token of all (a sink: Xiao et al. 2023, arXiv 2309.17453)
    entropy     of the weights, in bits: 0 looks at one token
    norm        size of what is moved: sum over keys of |weight x value x W_out| (Kobayashi et al. 2020, 2004.10102)
    first_norm  the first token's share of that

What lies on the first token is taken away before the others are measured: of the rest, what share
is on the target. Each is held to a baseline: induction and duplicate to the same places in the
shuffled text, previous and next to the other distances, first to the other tokens of the first
half; and to an even spread over all that a head may look at. B draws, H heads, T queries, S keys, L
drawn tokens, C model dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import need
from ..core.nn import Model
from ..core.tokenizer.framing import document_start, target_start
from . import passes
from .figures.charts import Chart, Folded, Heat, TableFigure
from .figures.shown import Records, Shown
from .gradients import lookups
from .recording.trace import record

LABELLED = ("previous", "next", "induction", "duplicate", "first")
SCORES = (*LABELLED, "entropy", "norm", "first_norm")
DEVIATIONS = 3.0  # above the baseline's mean, from which on a score gives its label
TINY = 1e-12


@dataclass(frozen=True)
class HeadReport:
    """One head's ``scores`` (means over the draws) by name, None where a score makes no sense for
    it.

    ``baseline`` and ``deviation`` are the mean and standard deviation of what the score is held to,
    ``even`` is what an even spread would give; ``labels`` are the scores above the baseline by more
    than DEVIATIONS deviations and above the even spread, the furthest above the baseline first.
    """

    path: str
    head: int
    scores: dict[str, float | None]
    baseline: dict[str, float]
    deviation: dict[str, float]
    even: dict[str, float]
    labels: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class HeadScores(Shown):
    """Every head's numbers, measured on ``draws`` texts of ``length`` random tokens and the same
    again."""

    heads: list[HeadReport]
    draws: int
    length: int
    seed: int

    def sorted(self, name: str) -> HeadScores:
        """The highest in one score first; those without it last. UserError for a name that is
        none."""
        return replace(self, heads=highest(self.heads, name))

    def first(self, count: int) -> HeadScores:
        """Only the first ``count``."""
        return replace(self, heads=self.heads[:count])

    @property
    def title(self) -> str:
        return (
            f"Head scores on {self.draws} draws of {self.length} random tokens that come "
            f"twice (seed {self.seed})"
        )

    def charts(self) -> Iterator[Chart]:
        """A map of attentions and heads for each score that is a share; the table, folded."""
        clear = [(f"{x.path} head {x.head}", ", ".join(x.labels)) for x in self.heads if x.labels]
        yield TableFigure("above the baseline", ("", "score"), clear, (0, 1))
        paths = list(dict.fromkeys(entry.path for entry in self.heads))[::-1]
        numbers = sorted({entry.head for entry in self.heads})
        by_place = {(entry.path, entry.head): entry.scores for entry in self.heads}
        named = [f"head {number}" for number in numbers]
        for name in self._shown():
            scores = [
                [by_place.get((path, head), {}).get(name) for head in numbers] for path in paths
            ]
            words = [list(map(short, row)) for row in scores]
            span = (0.0, 1.0) if name not in ("entropy", "norm") else None
            yield Heat(name, np.array(scores, dtype=float), paths, named, words, span=span)
        table = TableFigure("", *self.records())
        yield Folded("every score beside its baseline", [table])

    def records(self) -> Records:
        """A row for each head and score."""
        names = ("attention", "head", "score", "value", "baseline", "deviation", "even", "label")
        return names, [
            (
                head.path,
                head.head,
                name,
                value,
                *(held.get(name, math.nan) for held in (head.baseline, head.deviation, head.even)),
                name in head.labels,
            )
            for head in self.heads
            for name, value in head.scores.items()
            if value is not None
        ]

    def _shown(self) -> list[str]:
        return [
            name for name in SCORES if any(head.scores.get(name) is not None for head in self.heads)
        ]

    def _table(self) -> TableFigure:
        """A line a head, shares and bits to three places, a heading above; columns nobody has are
        left out."""
        names = self._shown()
        rows = [
            (
                head.path,
                str(head.head),
                *(short(head.scores.get(name)) for name in names),
                ", ".join(head.labels),
            )
            for head in self.heads
        ]
        heading = ("attention", "head", *names, "above baseline")
        return TableFigure("", heading, rows, (0, len(names) + 2))


def highest(heads: Iterable[HeadReport], name: str) -> list[HeadReport]:
    """The highest in one score first; those without it last. UserError for a name that is none."""
    need(name in SCORES, f'There is no score "{name}"; give one of {", ".join(SCORES)}.')

    def score(head: HeadReport) -> float:
        value = head.scores.get(name)
        return -math.inf if value is None else value

    return sorted(heads, key=score, reverse=True)


def short(score: float | None) -> str:
    return "-" if score is None else f"{score:.3f}"


def head_scores(
    model: nn.Module,
    tokenizer: Any = None,
    *,
    draws: int = 8,
    length: int = 32,
    seed: int = 0,
) -> HeadScores:
    """Measures what each attention head does, on repeated random tokens, beside a baseline.

    Args:
        model: A model of ours or of transformers, or any module that takes ids.
        tokenizer: The tokenizer that came with it, which gives what opens a text.
        draws: Draws of random tokens.
        length: Tokens that are drawn and repeated, at most half the context.
        seed: The seed of the draws.

    Returns:
        The scores of each head (previous token, induction, duplicate, first token), as a table.

    Raises:
        UserError: The model has no heads, or there are fewer than 2 draws or 4 tokens.

    Example:
        >>> print(glassformer.head_scores(model, tokenizer, draws=2, length=8))
    """
    length = min(length, (passes.limit(model) - 1) // 2)
    need(draws > 1, f"draws is {draws}; a baseline needs 2 or more.")
    need(length > 3, f"length is {length}; give 4 tokens or more, and a model whose context has 9.")
    generator = torch.Generator().manual_seed(seed)
    draws_by_path: dict[str, list[Measured]] = {}
    for _ in range(draws):
        for path, measured in _attentions(model, tokenizer, length, generator):
            draws_by_path.setdefault(path, []).append(measured)
    heads = [head for path, measured in draws_by_path.items() for head in _heads(path, measured)]
    return HeadScores(heads, draws, length, seed)


def _attentions(
    module: nn.Module, tokenizer: Any, length: int, generator: torch.Generator
) -> Iterator[tuple[str, Measured]]:
    """Scores of a model that reads one draw, by the path of each attention: wherever a softmax
    multiplies values."""
    two, shared = passes.has_source(module), True
    first_run = record(module, None, [0], [0] if two else None)
    tables = [operation.inputs[1].shape[0] for _, operation in lookups(first_run).values()]
    need(
        bool(tables),
        f"{type(module).__name__} has no token embedding, so random tokens cannot be drawn.",
    )
    opening = getattr(tokenizer, "bos_token_id", None)
    if isinstance(module, Model):
        need(
            bool(module.config.stacks),
            "A recurrent model has no attention heads; glassformer look shows its states and its "
            "pattern.",
        )
        shared = not two or module.config.source_embed is None
        opening = None if two or tokenizer is None else document_start(tokenizer)
        if two and tokenizer is not None:
            opening = next(iter(target_start(tokenizer, module.config)), None)
    texts, sources = _texts(min(tables), opening, length, generator)
    device = next(module.parameters()).device
    runs = [
        record(module, None, text[None].to(device), source[None].to(device) if two else None)
        for text, source in zip(texts, sources, strict=True)
    ]
    attentions = [run.structure.attentions for run in runs]
    need(
        bool(attentions[0]),
        f"{type(module).__name__} has no attention heads: no softmax multiplies values in it.",
    )
    for attention, again in zip(*attentions, strict=True):
        layer: Any = module.get_submodule(attention.path) if isinstance(module, Model) else None
        if layer is not None and not hasattr(layer, "kv_heads"):
            continue  # the one look of a recurrent decoder at its source
        pattern = torch.cat((attention.weights(), again.weights())).double()
        queries, keys = pattern.shape[-2:]
        causal = not pattern.triu(1).any() if layer is None else layer.causal
        kind = "causal" if causal else "both"
        if two and (queries, keys) != (2 * length + 1, 2 * length + 1):
            kind = "source" if queries == keys else "across"
        yield attention.path, measure(pattern, length, kind, attention.sizes(), shared)


def _texts(
    vocab: int, opening: int | None, length: int, draw: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Tokens (2, 1 + 2L), repeated and with the second half shuffled; and an encoder-decoder's
    sources (2, 1 + L)."""
    drawn = torch.randint(0, vocab, (length + 1,), generator=draw)
    if vocab > length:  # no token twice but by the repetition
        drawn = torch.randperm(vocab, generator=draw)[: length + 1]
    first = drawn[:1] if opening is None else torch.tensor([opening])
    shuffled = drawn[1:][_shuffle(length, draw)]
    texts = torch.stack([torch.cat((first, drawn[1:], again)) for again in (drawn[1:], shuffled)])
    return texts, drawn.repeat(2, 1)


def _shuffle(length: int, draw: torch.Generator) -> Tensor:
    """An order in which nothing keeps its place, nor follows what it followed: drawn until it is
    one."""
    for _ in range(1000):
        order = torch.randperm(length, generator=draw)
        if bool((order != torch.arange(length)).all() and (order[1:] != order[:-1] + 1).all()):
            return order
    return torch.arange(length).flip(0)


# --------------------------------------------------------------------------------------------
# measuring


@dataclass(frozen=True)
class Measured:
    """One draw's ``scores`` (H,) by name, what each is held to (N, H), and what an even spread
    gives."""

    scores: dict[str, Tensor]
    baselines: dict[str, Tensor]
    even: dict[str, float]


def measure(
    pattern: Tensor, length: int, kind: str, size: Tensor | None = None, shared: bool = True
) -> Measured:
    """Patterns (2, H, T, S) over the repeated text and over the shuffled one -> scores.

    ``kind`` is "causal", "both" (directions), "source" (of which there is one copy: L tokens after
    the opening one) or "across" (queries of the target, keys of such a source, in a ``shared``
    vocabulary). ``size`` (2, H, S) is what each key would write.
    """
    scores, baselines = _measure(pattern, length, kind, shared)
    spread = torch.ones_like(pattern[:, :1])
    spread = spread.tril() if kind == "causal" else spread
    even, _ = _measure(spread / spread.sum(-1, keepdim=True), length, kind, shared)
    scores["entropy"] = _entropy(pattern[0])
    if size is not None:
        moved = pattern[0] * size[0][:, None]  # (H, T, S)
        total = moved[:, 1:].sum((-1, -2)).clamp(min=TINY)
        scores["norm"] = moved.sum(-1).mean(-1)
        scores["first_norm"] = moved[:, 1:, 0].sum(-1) / total
    return Measured(scores, baselines, {name: float(value) for name, value in even.items()})


def _measure(
    pattern: Tensor, length: int, kind: str, shared: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The scores that are held to a baseline, and these."""
    repeated, shuffled = pattern
    scores: dict[str, Tensor] = {}
    baselines: dict[str, Tensor] = {}
    T = pattern.shape[2]
    place = torch.arange(T, device=pattern.device)
    reach = max(2, T // 4)  # the same queries for every distance
    near = place[reach + 1 : T if kind == "causal" else T - reach]
    second = place[length + 1 :]
    copied = kind in ("causal", "both") or (kind == "across" and shared)
    distances: dict[str, tuple[Tensor, int]] = {}  # queries, and how far before them a key is
    if kind != "across":
        distances["previous"] = near, 1
    if kind in ("both", "source"):
        distances["next"] = near, -1
    if copied:
        distances["duplicate"] = second, length
    if copied and kind != "both":
        distances["induction"] = second[: -1 if kind == "across" else None], length - 1
    for name, (queries, distance) in distances.items():
        scores[name] = _on(repeated, queries, queries - distance)
        if queries is near:
            steps = [distance * count for count in range(reach) if count != 1]
            rivals = [_on(repeated, queries, queries - step) for step in steps]
        else:
            rivals = [_on(shuffled, queries, queries - distance)]
        baselines[name] = torch.stack(rivals)
    half = T // 2
    # (H, keys) that all of them may see
    on_each = repeated[:, half:, : half if kind != "across" else None].mean(1)
    scores["first"], baselines["first"] = on_each[:, 0], on_each[:, 1:].T
    return scores, baselines


def _on(pattern: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """Share of attention on each query's key, the first key left out: (H, T, S)
    -> (H,)."""
    off_first = 1 - pattern[:, queries, 0]
    return pattern[:, queries, keys].sum(-1) / off_first.sum(-1).clamp(min=TINY)


def _entropy(pattern: Tensor) -> Tensor:
    """In bits, of the weights without the first key's, each query counted by what it spends on them
    (H,)."""
    weights = pattern[:, 1:, 1:]
    total = weights.sum(-1, keepdim=True)
    share = weights / total.clamp(min=TINY)
    bits = -(share * share.clamp(min=TINY).log2()).sum(-1)
    return (bits * total[..., 0]).sum(-1) / total.sum((-1, -2)).clamp(min=TINY)


def _heads(path: str, measured: Sequence[Measured]) -> list[HeadReport]:
    """The heads of one attention, over all draws."""
    first = measured[0]
    means = {
        name: torch.stack([draw.scores[name] for draw in measured]).mean(0) for name in first.scores
    }
    baselines = {
        name: torch.cat([draw.baselines[name] for draw in measured]) for name in first.baselines
    }
    heads = []
    for head in range(len(means["first"])):
        scores = {name: float(means[name][head]) if name in means else None for name in SCORES}
        baseline = {name: float(values[:, head].mean()) for name, values in baselines.items()}
        deviation = {
            name: float(values[:, head].std(correction=0)) for name, values in baselines.items()
        }
        above = {name: float(means[name][head]) - baseline[name] for name in baselines}
        labels = [
            name
            for name in sorted(above, key=above.__getitem__, reverse=True)
            if above[name] > DEVIATIONS * deviation[name] and means[name][head] > first.even[name]
        ]
        heads.append(HeadReport(path, head, scores, baseline, deviation, first.even, tuple(labels)))
    return heads
