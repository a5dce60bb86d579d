"""Rows of packed documents for the objectives that change text, and the law that packing changes no
loss."""

from __future__ import annotations

import numpy as np
import torch
from torch.testing import assert_close

import tiny
from glassformer.core.training.batches import Batch

LETTERS = "abcdefghijklmnopqrstuvwxyz "
FRAME = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
MARKS = ("<pad>", "</s>", *(f"<extra_id_{i}>" for i in range(10)))


def random(seed=0):
    return np.random.default_rng(seed)


def packed(tokens, lengths):
    """Rows of documents of these lengths and padding behind them; targets are the next token of a
    document."""
    pos = torch.full_like(tokens, -1)
    document_ids = torch.full_like(tokens, -1)
    targets = torch.full_like(tokens, -1)
    at = 0
    for number, length in enumerate(lengths):
        pos[:, at : at + length], document_ids[:, at : at + length] = torch.arange(length), number
        targets[:, at : at + length - 1] = tokens[:, at + 1 : at + length]
        at += length
    return Batch(tokens, targets, pos, document_ids)


def alone(batch):
    """Each packed document, or each pair, as a batch of its own."""
    results = []
    ids = {"document_ids", "source_document_ids", "labels"}
    for row in range(len(batch.tokens)):
        for number in range(int(batch.document_ids[row].max()) + 1):
            pieces = {}
            for name, piece in vars(batch).items():
                if piece is not None and name not in ids:
                    of_source = name.startswith("source")
                    owner = batch.source_document_ids if of_source else batch.document_ids
                    pieces[name] = piece[row][owner[row] == number][None]
            if batch.labels is not None:
                pieces["labels"] = batch.labels[len(results)][None]
            results.append(Batch(**pieces))
    return results


@torch.no_grad()
def check_packed_equals_apart(family, objective, tokenizer):
    """The loss of packed documents is the sum of each by itself."""
    args = packed(tiny.tokens(3, 60) % len(LETTERS), [25, 7, 20])
    model = tiny.model(family)
    batch = objective.prepare(args, random(), tokenizer)
    loss = objective.loss(model, batch, 0.1)
    pieces = [objective.loss(model, piece, 0.1) for piece in alone(batch)]
    assert len(pieces) == 9
    assert loss.count == sum(piece.count for piece in pieces) > 9
    assert_close(loss.sum, sum(piece.sum for piece in pieces), rtol=1e-5, atol=1e-4)
