"""How likely a model finds given continuations: what multiple-choice tasks are answered by.

B rows, T tokens, C model dim, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ...core import config
from ...core.errors import need
from ...core.nn import Model, Tape
from ...core.nn.editing import ModelEdit, Reading, tape_of
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
    beginning is cut off, as lm-evaluation-harness does. ``edits`` (inspection.edits) change what
    the model computes of each pair. Raises UserError for an empty side, an id out of range, a
    continuation that does not fit, a model that is not a decoder, an edit of what is not there, and
    logits that are not numbers.
    """
    cfg = model.config
    need(
        isinstance(cfg, config.Decoder) and model.head is not None,
        "Only a decoder with a head predicts a text.",
    )
    need(batch > 0, f"batch is {batch}; give 1 row or more.")
    for context, continuation in pairs:
        need(
            len(context) > 0 and len(continuation) > 0,
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
    results: list[Likelihood] = [Likelihood(0.0, True)] * len(pairs)
    tape = tape_of(edits, Reading(model, None))
    with inference(model):
        for start in range(0, len(order), batch):
            places = order[start : start + batch]
            _answer(model, [pairs[place] for place in places], places, results, tape)
            if progress:
                progress(min(start + batch, len(order)))
    return results


def _answer(
    model: Model,
    pairs: Sequence[tuple[Ids, Ids]],
    places: Ids,
    results: list[Likelihood],
    tape: Tape | None,
) -> None:
    """Put the answers for one batch under their ``places``."""
    rows = []
    for context, continuation in pairs:
        ids = np.array((*context, *continuation)[-model.config.context - 1 :])
        rows.append([ScoreWindow(ids, len(ids) - len(continuation))])
    tokens, targets, pos, document_ids = collate(rows)
    logprobs: list[torch.Tensor] = []
    likeliest: list[torch.Tensor] = []
    for logits, row_targets in predicted(
        model, tokens, targets, pos, document_ids, tape
    ):  # (N, V), (N,)
        logprobs.append(logits.log_softmax(-1).gather(1, row_targets[:, None])[:, 0])
        likeliest.append(logits.argmax(-1) == row_targets)
    lengths: list[int] = (targets >= 0).sum(1).tolist()
    token_logprobs, greedy = torch.cat(logprobs).cpu().double(), torch.cat(likeliest).cpu()
    for place, its, is_greedy in zip(
        places, torch.split(token_logprobs, lengths), torch.split(greedy, lengths), strict=True
    ):
        total = its.sum().item()
        need(
            not math.isnan(total),
            "The model's logits are not numbers (NaN); load another checkpoint.",
        )
        results[place] = Likelihood(total, bool(is_greedy.all()))
