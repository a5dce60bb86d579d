"""Saliency, the share of each input token in an answer: its gradient, gradient times input,
and integrated gradients.

The input is a token's vector as its table gives it. Integrated gradients (Sundararajan et al. 2017)
walk from a baseline to it and sum to what the answer changes by on the way, up to a gap that is
told: the quadrature's error. It is great from zeros, where a norm turns everything about within a
step.

B points of the walk at once, T tokens, C model dim.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.errors import UserError, need
from ..core.nn import Model, Tape
from ..core.nn.model import inference
from . import streams
from .figures.charts import Chart, Heat, Prose, TableFigure
from .figures.progress_bar import Progress, Report
from .figures.shown import Records, Shown
from .inputs import Text
from .reading import Edits
from .recording.module_trace import ModuleTrace, fields
from .recording.operations import Operation
from .recording.rules import MOVES, behind
from .recording.rules import read as numbers_of
from .recording.trace import Trace, record
from .streams import TokenLabel

Baseline = Literal["mean", "zero", "pad"]
Of = Literal["logit", "logprob", "label"]
TOKENS = 1 << 11  # that are walked with at a time
OWN_TABLES = re.compile(r"(source_)?embed\.(token|lag\.\d+)")


@dataclass(frozen=True)
class TokenAttribution:
    """One token of the input: ``norm`` of its gradient, ``product`` with the input, ``integrated``
    gradients."""

    position: int
    token: int
    piece: TokenLabel
    norm: float
    product: float
    integrated: float


@dataclass(frozen=True, repr=False)
class Saliency(Shown):
    """Saliency of each token for the answer ``value``: ``of`` a logit, a log-probability or a
    label's logit.

    ``at_baseline`` is the answer where every token has the vector of the ``baseline``, in ``steps``
    points from which the walk goes; ``sum`` is that of the integrated gradients and ``gap`` what it
    lacks to value - at_baseline. ``tokens`` are the text's, ``source`` those that an
    encoder-decoder's encoder reads.
    """

    of: str
    token: int
    piece: TokenLabel
    position: int | None
    value: float
    baseline: str
    at_baseline: float
    steps: int
    sum: float
    gap: float
    tokens: list[TokenAttribution]
    source: list[TokenAttribution]

    @property
    def answer(self) -> str:
        """The number that is followed back."""
        place = "" if self.position is None else f" at position {self.position}"
        return f"{self.of} of {self.piece.display}{place}"

    @property
    def title(self) -> str:
        return f"Saliency: what the {self.answer} owes to each token"

    def charts(self) -> Iterator[Chart]:
        """The integrated gradients of each token as a map, zero in the middle; then all numbers."""
        summary = f"{self.value:.4f}, at the baseline ({self.baseline}) {self.at_baseline:.4f}"
        yield Prose(
            [summary, f"integrated gradients add up to {self.sum:.4f}: {self.gap:.1e} is lacking"]
        )
        for name, shares in self._sides():
            cells = np.array([[share.integrated for share in shares]])
            words = [[f"{share.integrated:+.2f}" for share in shares]]
            columns = [f"{share.position}:{share.piece.display}" for share in shares]
            yield Heat(name, cells, ["integrated"], columns, words, signed=True)
        yield self._table()

    def records(self) -> Records:
        """A row for each token."""
        rows = ((name, *vars(share).values()) for name, shares in self._sides() for share in shares)
        return ("side", *TokenAttribution.__dataclass_fields__), rows

    def _sides(self) -> list[tuple[str, list[TokenAttribution]]]:
        sides = (("source", self.source), ("text", self.tokens))
        return [(name, shares) for name, shares in sides if shares]

    def _table(self) -> TableFigure:
        """A line for each token, rounded to four places, with a bar of its integrated gradients."""
        most = max(abs(share.integrated) for share in (*self.source, *self.tokens)) or 1.0
        rows = []
        for side, shares in self._sides():
            for share in shares:
                place = f"source {share.position}" if side == "source" else str(share.position)
                bar = "-+"[share.integrated > 0] * round(20 * abs(share.integrated) / most)
                numbers = f"{share.norm:.4f}", share.product, share.integrated
                rows.append((place, share.piece.display, *numbers, bar))
        heading = ("at", "token", "gradient norm", "gradient x input", "integrated", "")
        return TableFigure("", heading, rows, (0, 1, 5), "+.4f")


def saliency(
    model: nn.Module,
    tokenizer: Any,
    text: Text,
    *,
    source: Text | None = None,
    token: str | int | None = None,
    position: int | None = None,
    of: Of | None = None,
    label: int | None = None,
    baseline: Baseline = "mean",
    steps: int = 50,
    edits: Edits = (),
    progress: Report = True,
) -> Saliency:
    """Measures what an answer owes to each token of the text, by gradients and integrated gradients.

    Args:
        model: A model of ours or of transformers, or any module that takes ids.
        tokenizer: The tokenizer that came with it.
        text: A text, or token ids.
        source: What an encoder-decoder's encoder reads.
        token: The token that is answered; None is the likeliest.
        position: The position asked; None is an encoder's only mask token, else the last.
        of: "logit", "logprob", or "label" for a classifier; None follows from the model.
        label: The label's number; None is the likeliest.
        baseline: Where the walk of integrated gradients begins: the "mean" of the embedding table,
            "zero", or the "pad" token's vector.
        steps: Points of the walk, after Gauss and Legendre.
        edits: Changes to the run.
        progress: True shows a bar; a function is called with (done, of all).

    Returns:
        The figures of each token; printing them shows a table.

    Raises:
        UserError: The model does not give this answer.

    Example:
        >>> print(glassformer.saliency(model, tokenizer, "Once upon a", steps=4))
    """
    need(steps >= 1, f"steps is {steps}; give 1 or more.")
    need(
        baseline in ("mean", "zero", "pad"),
        f'There is no baseline "{baseline}"; give mean, zero or pad.',
    )
    kind = _kind(model, of) if isinstance(model, Model) else None
    target = _Answer(record(model, tokenizer, text, source, edits), kind, of, position)
    is_label = target.of == "label"
    word = label if is_label else token
    target.chosen, piece = streams.choice(
        target.answers.shape[-1], target.tokenizers["embed"], target.answers, word, is_label
    )
    name, start = target.baseline(baseline)
    (value,), at_input = target.gradients(start, torch.ones(1))
    (empty,), _ = target.gradients(start, torch.zeros(1))
    walked = {path: torch.zeros_like(streams.fp64(grad[0])) for path, grad in at_input.items()}
    points, weights = (
        torch.from_numpy(nodes) / 2 for nodes in np.polynomial.legendre.leggauss(steps)
    )
    batch_size = max(1, TOKENS // sum(ids.shape[1] for ids in target.ids.values()))
    with Progress("integrated gradients", progress) as report:
        for low in range(0, steps, batch_size):
            batch = slice(low, low + batch_size)
            _, grads = target.gradients(start, points[batch] + 0.5)
            for path, grad in grads.items():
                share = weights[batch].to(walked[path].device)
                walked[path] += torch.tensordot(share, streams.fp64(grad), 1)
            report(min(low + batch_size, steps), steps)
    numbers = {}
    for path, x in target.vectors.items():
        grad, vector, away = map(streams.fp64, (at_input[path][0], x[0], x[0] - start[path]))
        numbers[path] = torch.stack(
            (grad.square().sum(-1), (grad * vector).sum(-1), (walked[path] * away).sum(-1))
        )
    total = math.fsum(triple[2].sum().item() for triple in numbers.values())
    return Saliency(
        target.of,
        target.chosen,
        piece,
        None if is_label else target.position,
        value.item(),
        name,
        empty.item(),
        steps,
        total,
        (value - empty).item() - total,
        target.shares("embed", numbers),
        target.shares("source_embed", numbers),
    )


class _Answer:
    """One answer of a model, and its input's vectors (1, T, C) by their path: ``embed.token``,
    ``embed.lag.0``, ..; ``tables`` are those that the vectors are rows of, ``ids`` the tokens."""

    def __init__(
        self, run: ModuleTrace, kind: Of | None, of: str | None, position: int | None
    ) -> None:
        self.recorded = run
        self.name = "pooled" if kind == "label" else "logits" if kind else run.structure.name
        is_label = run.outputs[self.name].ndim == 2
        self.of: str = kind or of or ("label" if is_label else "logit")
        choices = ("label",) if is_label else ("logit", "logprob")
        need(self.of in choices, f'There is no answer "{of}"; give {" or ".join(choices)}.')
        self.position = streams.place(position, run.tokens, run.tokenizer)
        self.chosen = 0
        self.answers = self.row(run.output)[0]  # (V), or labels
        self.tokenizers = {"embed": run.tokenizer, "source_embed": run.source_tokenizer}
        sides = {"embed": run.tokens, "source_embed": run.source}
        self.ids = {side: ids for side, ids in sides.items() if ids is not None}
        tables = lookups(run)
        need(bool(tables), f"{type(run.module).__name__} has no token embedding.")
        self.numbers = {path: number for path, (number, _) in tables.items()}
        self.vectors = {path: numbers_of(op.outputs[0]) for path, (_, op) in tables.items()}
        self.tables = {path: numbers_of(op.inputs[1]) for path, (_, op) in tables.items()}

    def row(self, output: Any) -> Tensor:
        """The logits of all tokens at the asked place, or of all labels: (B, V)."""
        answers = fields(output)[self.name]
        if answers.ndim == 3:  # of all places, or of the asked one alone
            answers = answers[:, min(self.position, answers.shape[1] - 1)]
        return streams.wide(answers)

    def baseline(self, kind: Baseline) -> tuple[str, dict[str, Tensor]]:
        """In words and as vectors (C): where the walk begins."""
        description = {"mean": "the mean embedding", "zero": "zeros"}.get(kind, "")
        start = {}
        for path, x in self.vectors.items():
            side, name, *_ = path.split(".")
            table = self.tables[path]
            if kind == "mean":
                start[path] = streams.wide(table).mean(0).to(x.dtype)
            elif kind == "zero":
                start[path] = torch.zeros_like(x[0, 0])
            elif name == "token":
                pad = self.pad(side)
                start[path] = table[pad]
                description = streams.pieces(self.tokenizers[side], [pad])[0]
            else:  # the last row of an earlier token's table is for none
                start[path] = table[-1]
        return description, start

    def pad(self, side: str) -> int:
        """The token that stands for nothing: an encoder's mask token, else the padding."""
        reads = self.tokenizers[side]
        model = self.recorded.module
        causal = isinstance(model, Model) and model.config.main_body != "encoder"
        empty: int | None = None if reads is None else reads.pad
        if reads is not None and not causal and reads.mask is not None:
            empty = reads.mask
        if empty is None:
            raise UserError(
                "This tokenizer has no pad or mask token as a baseline; use the "
                "baseline mean or zero."
            )
        return empty

    def gradients(
        self, start: dict[str, Tensor], share: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The answer (B) at so great a ``share`` (B) of the way to the input, and its gradients (B,
        T, C)."""
        leaves = {}
        for path, x in self.vectors.items():
            alpha = share.to(x.device, x.dtype)[:, None, None]
            between = start[path] + alpha * (x - start[path])
            # the very bits at the end
            leaves[path] = torch.where(alpha == 1, x, between).detach().requires_grad_()
        with (
            inference(self.recorded.module),
            torch.enable_grad(),
            streams.frozen(self.recorded.module),
        ):
            answers = self.answered(leaves, len(share))
            answers = answers.log_softmax(-1) if self.of == "logprob" else answers
            value = answers[:, self.chosen]
            grads = torch.autograd.grad(value.sum(), list(leaves.values()))
        return value.detach(), dict(zip(leaves, grads, strict=True))

    def answered(self, leaves: dict[str, Tensor], rows: int) -> Tensor:
        """The answers (B, V) with other vectors in the input's place."""
        replaced = {self.numbers[path]: leaf for path, leaf in leaves.items()}
        return self.row(again(self.recorded, replaced, rows, self.position))

    def shares(self, side: str, numbers: dict[str, Tensor]) -> list[TokenAttribution]:
        """Each token's numbers on one side; a vector for the token before counts for that token."""
        if f"{side}.token" not in numbers:
            return []
        ids = self.ids[side][0].tolist()
        total = numbers[f"{side}.token"].clone()  # (3, T)
        for path, more in numbers.items():
            if path.startswith(f"{side}.lag."):
                back = int(path.rpartition(".")[2]) + 1
                total[:, : max(0, len(ids) - back)] += more[:, back:]
        pieces = streams.pieces(self.tokenizers[side], ids)
        rows = enumerate(zip(ids, pieces, *total.tolist(), strict=True))
        return [
            TokenAttribution(at, id, piece, math.sqrt(square), product, walked)
            for at, (id, piece, square, product, walked) in rows
        ]


def _kind(model: Model, of: Of | None) -> Of:
    """The answer to differentiate; UserError where the model gives no such answer."""
    kind = streams.answer_kind(model, of, get_args(Of))
    if kind != "label":
        also = ", or for a label (--of label)" if model.config.labels else ""
        streams.needs_head(model, f"ask a model that has one{also}.")
    return cast(Of, kind)


def lookups(trace: ModuleTrace) -> dict[str, tuple[int, Operation]]:
    """The tables that the tokens are looked up in: ``embed.token``, ``source_embed.token``, ours by
    their own names; which of the pass's look-ups each is."""
    tables = {}
    operations = [op for op in trace.operations if op.name == "embedding"]
    sides = {"embed.token": trace.tokens, "source_embed.token": trace.source}
    for number, operation in enumerate(operations):
        if OWN_TABLES.fullmatch(name := operation.outputs[0].address):
            tables[name] = number, operation
        *_, ids = behind(operation.inputs[0], MOVES)
        for name, tokens in sides.items():
            if tokens is None or ids.tensor is None or ids.kind != "input":
                continue
            if torch.equal(ids.tensor, tokens):
                tables.setdefault(name, (number, operation))
    return tables


def again(trace: ModuleTrace, rows: Mapping[int, Tensor], count: int, position: int) -> Any:
    """The answer to ``count`` texts at once with other ``rows`` (B, T, C) of look-ups, by their
    number in the pass; of a model of ours logits at a position alone."""

    def widened(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.expand(count, *x.shape[1:])
        return x

    kwargs = {name: widened(x) for name, x in trace.kwargs.items()}
    if isinstance(trace, Trace):
        place = torch.tensor([position], device=trace.tokens.device)
        kwargs = {"tape": Tape(edits=trace.edits), "logits": place}
    with _OtherRows(rows):
        return trace.module(*map(widened, trace.args), **kwargs)


class _OtherRows(TorchFunctionMode):
    """Gives other rows than a table would, by the number of the look-up."""

    def __init__(self, rows: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.rows, self.count = rows, -1

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kw: Any = None) -> Any:
        if function is nn.functional.embedding:
            self.count += 1
            if self.count in self.rows:
                return self.rows[self.count]
        return function(*args, **(kw or {}))
