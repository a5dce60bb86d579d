"""Prefix language modelling: each document is cut once, and what follows is learned."""

from __future__ import annotations

import torch

import tiny
from glassformer.core.training.batches import Batch
from glassformer.tasks.objectives import Prefix
from packed import check_packed_equals_apart, packed, random


def test_each_document_is_cut_between_its_shares():
    args = packed(tiny.tokens(300, 60), [30, 1, 20])
    result = Prefix(0.2, 0.7).prepare(args, random())
    assert result.prefix is not None
    assert torch.equal(result.tokens, args.tokens)
    for at, length in ((0, 30), (31, 20)):
        prefix, targets = (piece[:, at : at + length] for piece in (result.prefix, result.targets))
        size = prefix.sum(1)
        place = torch.arange(length)
        assert torch.equal(prefix, place < size[:, None]), "one piece, from the beginning"
        assert int(size.min()) == round(0.2 * length)
        assert int(size.max()) == round(0.7 * length)
        query = (place >= size[:, None] - 1) & (place < length - 1)
        assert torch.equal(targets >= 0, query), "the last of the prefix predicts what follows"
        assert torch.equal(targets[query], args.targets[:, at : at + length][query])
    assert result.prefix[:, 30].all()
    assert not result.prefix[:, 51:].any()
    plain = Batch(args.tokens, args.tokens.roll(-1, 1))
    cut = Prefix(0.5, 0.5).prepare(plain, random())
    assert (cut.targets >= 0).sum(1).unique().tolist() == [31]
    assert cut.pos is None


def test_packed_equals_apart(letters):
    check_packed_equals_apart("llama", Prefix(), letters)
