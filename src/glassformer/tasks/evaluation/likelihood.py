"""The likelihood of continuations: what multiple-choice tasks are answered by.

B rows, T tokens, C model dim, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ...core.errors import need
from ...core.nn import Model, Tape
from ...core.nn.hooks import ModelEdit, edited
from ...core.nn.model import inference
from .score import ScoreWindow, collate, predicted

Ids = Sequence[int]


class Likelihood(NamedTuple):
    """``logprob`` of a whole continuation, in nats; ``greedy``: each token of it was the likeliest
    one."""

    logprob: float
    greedy: bool


def likelihoods(
    model: Model,
    pairs: Sequence[tuple[Ids, Ids]],
    *,
    batch: int = 16,
    progress: Callable[[int], None] | None = None,
    edits: Sequence[ModelEdit | str] = (),
) -> list[Likelihood]:
    """log p(continuation | context) for each (context ids, continuation ids), in their order.

    The context must hold a token; where both together are longer than the model's context, the
    beginning is cut off, as lm-evaluation-harness does. ``edits`` (sight.edits) change what
    the model computes of each pair. Raises UserError for an empty side, an id out of range, a
    continuation that does not fit, a model that is not a decoder, an edit of what is not there, and
    logits that are not numbers.
    """
    cfg = model.config
    need(
        cfg.is_decoder and model.head is not None,
        "Only a decoder with a head predicts a text.",
    )
    need(batch > 0, f"batch is {batch}; give 1 row or more.")
    for context, continuation in pairs:
        need(
            min(len(context), len(continuation)) > 0,
            "A context or a continuation is empty; give each a token.",
        )
        size = (
            f"A continuation has {len(continuation)} tokens and the model's context is "
            f"{cfg.context}"
        )
        need(len(continuation) <= cfg.context, f"{size}; shorten it.")
        wrong = next(
            (token for token in (*context, *continuation) if not 0 <= token < cfg.embed.vocab), None
        )
        need(
            wrong is None,
            f"Token id {wrong} is not one of the model's; use the tokenizer it was trained with.",
        )
    # rows of like length together
    order = sorted(range(len(pairs)), key=lambda place: -sum(map(len, pairs[place])))
    results: dict[int, Likelihood] = {}
    tape, *_ = edited(edits, model)
    with inference(model):
        for start in range(0, len(order), batch):
            places = order[start : start + batch]
            answers = _answer(model, [pairs[place] for place in places], tape)
            results.update(zip(places, answers, strict=True))
            if progress:
                progress(len(results))
    return [results[place] for place in range(len(pairs))]


def _answer(
    model: Model, pairs: Sequence[tuple[Ids, Ids]], tape: Tape | None
) -> Iterator[Likelihood]:
    """The answers for one batch."""
    rows = []
    for context, continuation in pairs:
        ids = np.array((*context, *continuation)[-model.config.context - 1 :])
        rows.append([ScoreWindow(ids, len(ids) - len(continuation))])
    tokens, targets, pos, document_ids = collate(rows)
    pieces = [  # logits (N, V), targets (N,)
        (logits.log_softmax(-1).gather(1, t[:, None])[:, 0], logits.argmax(-1) == t)
        for logits, t in predicted(model, tokens, targets, pos, document_ids, tape)
    ]
    lengths: list[int] = (targets >= 0).sum(1).tolist()
    logprobs, greedy = (torch.cat(column).cpu() for column in zip(*pieces, strict=True))
    columns = torch.split(logprobs.double(), lengths), torch.split(greedy, lengths)
    for its, is_greedy in zip(*columns, strict=True):
        total = its.sum().item()
        need(
            not math.isnan(total),
            "The model's logits are not numbers (NaN); load another checkpoint.",
        )
        yield Likelihood(total, bool(is_greedy.all()))
