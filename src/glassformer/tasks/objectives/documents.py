"""The parts that several objectives share: special tokens, documents of a packed batch, pools."""

# ruff: noqa: F401
# mypy: implicit-reexport
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.config import Decoder, Encoder, Model, Pool, serial
from ...core.config.objective import Objective

if TYPE_CHECKING:  # what the pages' signatures name; reading a page imports none of it
    from torch import Tensor

    from ...core.tokenizer.tokenizer import Tokenizer
    from ...core.training.batches import Array, Batch
    from ...core.training.loss import Loss
    from ..encoded import Fit, Framing, Item, Layout

ENCODER_SPECIALS = ("[PAD]", "<unk>", "[CLS]", "[SEP]", "[MASK]")


class SomeTokens(Objective):
    """An objective that asks about some of the tokens; the others' targets are -1."""

    def loss(self, model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
        """The cross-entropy where ``batch.targets`` asks; the head sees only those places, and all
        tokens count as read."""
        from ...core.training.loss import forward, token_loss, tokens_in

        # which are compiled for on a GPU
        few_shapes = 1 if batch.host is None else max(1, batch.tokens.numel() // 16)
        indices = batch.target_indices(few_shapes)
        loss = token_loss(model, forward(model, batch), batch.targets, smoothing, indices)
        return replace(loss, tokens=tokens_in(batch))


@dataclass(frozen=True)
class DocumentSpans:
    """The documents of a batch: where they begin in its flattened tokens, how long they are; ``of``
    (B, T), or -1."""

    starts: Array
    lengths: Array
    of: Array

    @property
    def place(self) -> Array:
        """Position of each token in its document (B, T)."""
        return np.arange(self.of.size).reshape(self.of.shape) - self.starts[self.of]


def positions(batch: Batch) -> Tensor:
    """The position of each token in its document (B, T), -1 at padding."""
    import torch

    if batch.pos is not None:
        return batch.pos
    return torch.arange(batch.tokens.shape[1], device=batch.tokens.device).expand_as(batch.tokens)


def documents(batch: Batch) -> DocumentSpans:
    """The documents of a batch."""
    from ...core.nn.flow import document_starts

    shape, pos = batch.tokens.shape, positions(batch)
    real = (pos >= 0).numpy()
    opens = document_starts(pos).numpy()
    of = np.where(real, opens.cumsum().reshape(shape) - 1, -1)
    return DocumentSpans(np.flatnonzero(opens), np.bincount(of[real]), of)


def in_pieces(model: Any, function: Callable[..., Tensor], *rows: Tensor) -> list[Tensor]:
    """A function of the logits of rows, piece by piece: no more than ``ONE_SHOT`` logits are held at
    once, and those of several pieces are computed again for their gradient."""
    import torch
    from torch.utils.checkpoint import checkpoint

    from ...core.training.loss import ONE_SHOT

    size = max(1, ONE_SHOT // len(model.head.table(model.embed)))
    pieces = [*zip(*(torch.split(x, size) for x in rows), strict=True)]
    if len(pieces) == 1:
        return [function(*pieces[0])]
    return [checkpoint(function, *piece, use_reentrant=False) for piece in pieces]


def without_head(objective: Objective, model: Model) -> tuple[Model, list[str]]:
    """A model without its head over tokens, which what asks about texts has no use for; and the
    note of it."""
    if model.head is None:
        return model, []
    note = f"The head over tokens is left out: {type(objective).__name__} has no use for it."
    return replace(model, head=None), [note]


def with_pool(objective: Objective, model: Model, labels: int) -> tuple[Model, list[str]]:
    """The config with a pool that ends in so many labels, or in a vector (0), and notes of what
    else changed."""
    vectors = model.is_decoder and not labels  # beside which it may still write
    config, notes = (model, list[str]()) if vectors else without_head(objective, model)
    if config.token_head is not None:
        config = serial.change(config, {"token_head": None})
        notes.append("The head over labels of tokens is left out.")
    if config.pool is not None:
        return replace(
            config,
            pool=replace(
                config.pool,
                labels=labels,
                normalize=config.pool.normalize and not labels,
                sigmoid=False,
            ),
        ), notes
    labelled = (
        Pool("last", None, labels, bias=False)
        if config.is_decoder
        else Pool("first", "tanh", labels)
    )
    pool = labelled if labels else Pool("mean", normalize=True)
    notes.append(f'The model has no pool; one of the kind "{pool.mode}" is added.')
    return replace(config, pool=pool), notes
