"""Whole texts read at once, side by side in one row, each as if it were alone.

T tokens, C model dim, L labels, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...core import config
from ...core.errors import need
from ...core.nn import Model
from ...core.nn.attention import Attention
from ...core.nn.cache import ExternalKV
from ...core.nn.flow import Flow
from ...core.nn.mask import Mask
from ...core.nn.model import Output, Stack, inference
from ...core.nn.position import Position
from ...tasks.pool import Pool
from .sequence import Encode, check_tokens, first_outside


class SeparateTexts(ExternalKV):
    """In the cache's place: the texts in ``spans`` of one row, each attended to by itself as if it
    were alone."""

    def __init__(self, spans: Seq[tuple[int, int]], blocks: int) -> None:
        self.spans = spans
        self.layers = [(self, None)] * blocks

    def attention(self, module: Attention, x: Tensor, flow: Flow, position: Position) -> Tensor:
        q, k, v = module.qkv(x, flow, position)
        z = torch.empty_like(q)
        for first, end in self.spans:
            columns = slice(first, end)
            length = end - first
            mask = flow.cached(
                (length, module.causal, module.mask), partial(_mask_of, module, length, x.device)
            )
            z[:, :, columns] = module.attend(
                flow, q[:, :, columns], k[:, :, columns], v[:, :, columns], mask, position
            )
        return z


def _mask_of(module: Attention, length: int, device: torch.device) -> Mask:
    pos = torch.arange(length, device=device)[None]
    return Mask(pos, pos, module.causal, module.mask, contiguous=True)


def encode(model: Model, requests: Seq[Encode]) -> list[Tensor]:
    """Output of each Encode request, all texts side by side in one row, each attending to itself
    alone."""
    device = next(model.parameters()).device
    if model.config.has_source:
        return [_read_twice(model, request, device) for request in requests]
    spans = list[tuple[int, int]]()
    tokens, places, documents, segments = (list[int]() for _ in range(4))
    for number, request in enumerate(requests):
        spans.append((len(tokens), len(tokens) + len(request.tokens)))
        tokens += request.tokens
        places += range(len(request.tokens))
        documents += [number] * len(request.tokens)
        segments += request.segments or [0] * len(request.tokens)
    row, pos, ids, segment_ids = (
        torch.tensor([values], device=device) for values in (tokens, places, documents, segments)
    )
    body: Any = model.get_submodule(model.config.main_body)
    with inference(model):
        flow = model.flow(row, pos, ids)
        x = model.embed(row, flow, segment_ids if model.config.embed.segments else None)
        layers = [block.attn for block in body.blocks] if isinstance(body, Stack) else []
        if not all(isinstance(layer, Attention) for layer in layers):
            layers = []  # one that keeps a state takes the texts apart by their documents
        hidden: Tensor = body(x, flow, SeparateTexts(spans, len(layers)) if layers else None)
        return [
            _answer(model, request, hidden[:, a:b], row[:, a:b], pos[:, a:b])
            for request, (a, b) in zip(requests, spans, strict=True)
        ]


def _read_twice(model: Model, request: Encode, device: torch.device) -> Tensor:
    """Labels of one text by an encoder-decoder, both of whose sides read it."""
    with inference(model):
        output: Output = model(torch.tensor([request.tokens], device=device), logits="none")
    labels = output.pooled if request.output == "labels" else output.tagged
    assert labels is not None
    return labels[0]


def _answer(model: Model, request: Encode, hidden: Tensor, ids: Tensor, pos: Tensor) -> Tensor:
    """Output that one request names, from the hidden states (1, T, C) of its text."""
    flow, pooling = Flow(pos), model.config.pool
    flow.tokens = ids
    if request.output in ("vector", "labels"):
        own = pooling is not None and (request.output == "labels" or not pooling.labels)
        pool: Any = model.pool if own else Pool(config.Pool("mean"), model.config.dim)
        return pool(hidden, flow)[0]  # type: ignore[no-any-return]
    if request.output == "tags":
        return model.token_head(hidden, flow)[0]  # type: ignore[no-any-return, misc]
    hidden = hidden[0] if request.positions is None else hidden[0, list(request.positions)]
    return hidden if request.output == "hidden" else model.head(hidden, model.embed)  # type: ignore[misc]


def check_encode(request: Encode, model: Model, context: int) -> None:
    """UserError for what this model cannot say of a text."""
    cfg = model.config
    check_tokens(request.tokens, cfg.embed.vocab, context)
    need(
        not cfg.has_source or request.output in ("labels", "tags"),
        "An encoder-decoder has no vector for a text; use another.",
    )
    labelled = cfg.labels > 0
    need(
        request.output != "labels" or labelled,
        "This model has no labels for texts; train it with Classify.",
    )
    need(
        request.output != "tags" or model.token_head is not None,
        "This model has no labels for tokens; train with Tag.",
    )
    need(request.output != "logits" or cfg.head is not None, "This model has no head over tokens.")
    segments = cfg.embed.segments
    need(
        request.segments is None or bool(segments),
        "This model reads one text, not pairs; leave out segments.",
    )
    wrong = first_outside(request.segments or (), segments)
    need(
        wrong is None,
        f"Segment {wrong} is not one of this model's {segments}; give 0 to {segments - 1}.",
    )
