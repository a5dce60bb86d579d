"""Scores of a model's predictions of a text: loss, perplexity, bits per byte.

    document   [opening] t1 t2 t3 t4 t5 t6 t7 t8 t9 ...   each is a target once
    windows     ---------- t1 .. t6                       the first counts all it predicts,
                      ---------- t7 t8 t9                 the others what is new: `stride` tokens

B rows, T tokens, C model dim.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from ...core.errors import UserError, need
from ...core.nn import Model, Tape
from ...core.nn.finite import must_be_finite
from ...core.nn.hooks import ModelEdit, edited
from ...core.nn.model import inference
from ...core.tokenizer.framing import document_start, text_start
from ...core.tokenizer.tokenizer import Tokenizer
from ...core.training.shards import Shards
from ...formats.data.corpus import Source
from ...formats.data.tokenising import tokenise

Array = np.ndarray[Any, Any]
Progress = Callable[[int], None]  # tokens scored so far

_HEAD_ROWS = 2048  # logits made at a time: the whole batch's would be larger than the model


@dataclass(frozen=True)
class Score:
    """``loss`` in nats a token, ``perplexity`` its exponential, ``bits_per_byte`` of the UTF-8
    text.

    ``tokens`` were predicted, ``bytes`` is the size of the text they stand for, ``seconds`` the
    time it took.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    bytes: int
    seconds: float

    def to_dict(self) -> dict[str, float | None]:
        """The figures as JSON holds them: None for one that is infinite."""
        return {name: value if math.isfinite(value) else None for name, value in vars(self).items()}


class ScoredDocument(NamedTuple):
    """Tokens that see each other: ``tokens`` after the token that opens them, where that is not
    their own first.

    Every one but the very first is predicted; ``lost`` is the size of that one's text, where it is
    text.
    """

    tokens: Array
    opening: int | None = None
    lost: int = 0


@dataclass(frozen=True)
class ScoreWindow:
    """A stretch of a document: all but its last token go in, all from place ``new`` on are
    predicted."""

    tokens: Array
    new: int

    def __len__(self) -> int:
        return len(self.tokens) - 1


def score(
    model: Model,
    tokenizer: Tokenizer,
    text: str | Source | Shards,
    *,
    context: int | None = None,
    stride: int | None = None,
    batch: int = 8,
    closing: bool = True,
    progress: Progress | None = None,
    edits: Sequence[ModelEdit | str] = (),
) -> Score:
    """The model's score on a text, a corpus or its shards; every token counts once.

    A document's tokens see only that document, through windows of ``context`` tokens (None: the
    model's) that go on by ``stride`` (None: half a window), so each but the first ones has at least
    context - stride tokens before it. A document's first token follows the tokenizer's bos (or,
    without one, its eos, as in training) and is only looked at where there is neither. The eos that
    closes a document of a corpus counts as a token without bytes, as it does in training
    (``closing=False`` leaves it out, for a model that never learnt one); a plain text is taken as
    it is, unclosed. ``edits`` (sight.edits) change what the model computes; their positions
    count each window's tokens. Raises UserError when there is nothing to score and for an edit of
    what is not there.
    """
    cfg = model.config
    need(
        cfg.is_decoder,
        "Only a decoder predicts a text from left to right; give a decoder.",
    )
    context = cfg.context if context is None else context
    need(
        1 <= context <= cfg.context,
        f"context is {context}; give 1 to {cfg.context}, the model's own.",
    )
    stride = max(context // 2, 1) if stride is None else stride
    message = (
        f"stride is {stride}; give 1 to the context ({context}), so that no token is left out."
    )
    need(1 <= stride <= context, message)
    need(batch >= 1, f"batch is {batch}; give 1 row or more.")
    start = time.perf_counter()
    documents, size = _open(tokenizer, text, closing)
    total, count, lost = 0.0, 0, 0

    def windows() -> Iterator[ScoreWindow]:
        nonlocal lost
        for document in documents:
            lost += document.lost
            yield from _windows(document, context, stride)

    tape, *_ = edited(edits, model, tokenizer=tokenizer)
    rows = _rows(windows(), context) if tape is None else ([window] for window in windows())
    with inference(model):
        while batch_rows := list(islice(rows, batch)):
            tokens, targets, pos, document_ids = collate(batch_rows)
            highest = max(int(tokens.max()), int(targets.max()))
            last = cfg.embed.vocab - 1
            sentence = f"The text has token ids above {last}, the model's last"
            need(highest <= last, f"{sentence}; use the tokenizer it was trained with.")
            for logits, row_targets in predicted(model, tokens, targets, pos, document_ids, tape):
                total += (
                    F.cross_entropy(logits, row_targets, reduction="none").double().sum().item()
                )
                if math.isnan(total):
                    must_be_finite(model, logits)
            count += int((targets >= 0).sum())
            if progress:
                progress(count)
    need(count > 0, "There is too little text to score; give more than one token.")
    loss, size = total / count, size - lost
    perplexity = math.exp(loss) if loss < 700 else math.inf
    bits = total / math.log(2) / size if size else math.inf
    return Score(loss, perplexity, bits, count, size, time.perf_counter() - start)


def _open(
    tokenizer: Tokenizer, text: str | Source | Shards, closing: bool
) -> tuple[Iterable[ScoredDocument], int]:
    """The documents, and the size of their text."""
    if isinstance(text, str):
        need(bool(text), "The text is empty; give some text to score.")
        opening = text_start(tokenizer)
        tokens = np.asarray(tokenizer.encode(text), dtype=np.int64)
        lost = (
            len(text[: tokenizer.offsets(text)[0][1]].encode())
            if opening is None and len(tokens)
            else 0
        )
        return [ScoredDocument(tokens, opening, lost)], len(text.encode())
    shards = tokenise(text, tokenizer) if isinstance(text, Source) else text
    return _documents(shards, tokenizer, closing), shards.bytes


def _documents(shards: Shards, tokenizer: Tokenizer, closing: bool) -> Iterator[ScoredDocument]:
    has_opening = document_start(tokenizer) is not None
    for low, high in pairwise(shards.starts.tolist()):
        closed = not closing and shards.tokens[high - 1] == tokenizer.eos
        tokens = shards.tokens[low : high - closed]
        is_complete = low > 0 or shards.first in shards.corpus.starts  # a split may part a document
        if shards.shared_border and is_complete:
            yield ScoredDocument(tokens, tokenizer.eos)
        elif has_opening and is_complete:
            yield ScoredDocument(tokens)
        elif low == 0:
            before = shards.corpus.bytes_before
            yield ScoredDocument(tokens, None, before(shards.first + 1) - before(shards.first))
        else:
            yield ScoredDocument(tokens, None, len(tokenizer.decode(tokens[:1].tolist()).encode()))


def _windows(document: ScoredDocument, context: int, stride: int) -> Iterator[ScoreWindow]:
    opening = [] if document.opening is None else [document.opening]
    opened = len(opening)
    last, new = len(document.tokens) + opened - 1, 1
    while new <= last:
        end = min(context if new == 1 else new - 1 + stride, last)  # the last target
        start = max(end - context, 0)
        tokens = document.tokens[max(start - opened, 0) : end + 1 - opened].astype(np.int64)
        if opened and start == 0:
            tokens = np.concatenate((opening, tokens))
        yield ScoreWindow(tokens, new - start)
        new = end + 1


def _rows(windows: Iterable[ScoreWindow], context: int) -> Iterator[list[ScoreWindow]]:
    """Windows that share a row: as many as follow each other and fit."""
    row: list[ScoreWindow] = []
    row_length = 0
    for window in windows:
        if row_length + len(window) > context:
            yield row
            row, row_length = [], 0
        row.append(window)
        row_length += len(window)
    if row:
        yield row


def collate(rows: list[list[ScoreWindow]]) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """tokens, targets (-1: not counted), positions and documents, each (B, T).

    Positions are None where all rows are of one length, documents where each row is one window.
    """

    def padded(column: Callable[[int, ScoreWindow], Array], empty: int = -1) -> Tensor:
        arrays = (
            np.concatenate([column(number, window) for number, window in enumerate(row)])
            for row in rows
        )
        return pad_sequence(
            [torch.from_numpy(array) for array in arrays], batch_first=True, padding_value=empty
        )

    tokens = padded(lambda number, window: window.tokens[:-1], 0)
    targets = padded(
        lambda number, window: np.where(
            np.arange(len(window)) < window.new - 1, -1, window.tokens[1:]
        )
    )
    alone = all(len(row) == 1 for row in rows)
    even = len({sum(map(len, row)) for row in rows}) == 1
    pos = None if alone and even else padded(lambda number, window: np.arange(len(window)))
    document_ids = None if alone else padded(lambda number, window: np.full(len(window), number))
    return tokens, targets, pos, document_ids


def predicted(
    model: Model,
    tokens: Tensor,
    targets: Tensor,
    pos: Tensor | None,
    document_ids: Tensor | None,
    tape: Tape | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Runs the model on a collated batch: fp32 logits (up to 2,048 rows, V) and the targets that
    count.

    They come row by row, a piece at a time. Raises UserError for a model without a head over
    tokens.
    """
    if model.head is None:
        raise UserError(
            "This model has no head over tokens and predicts no text; give one that has."
        )
    device = next(model.parameters()).device
    pos, document_ids = (None if x is None else x.to(device) for x in (pos, document_ids))
    targets = targets.to(device)
    counted = targets >= 0
    if tape is not None:  # which may edit the logits too
        logits = model(tokens.to(device), pos=pos, document_ids=document_ids, tape=tape).logits
        yield logits[counted].float(), targets[counted]
        return
    hidden = model(tokens.to(device), pos=pos, document_ids=document_ids, logits="none").hidden[
        counted
    ]
    for rows, row_targets in zip(
        torch.split(hidden, _HEAD_ROWS), torch.split(targets[counted], _HEAD_ROWS), strict=True
    ):
        yield model.head(rows, model.embed).float(), row_targets
