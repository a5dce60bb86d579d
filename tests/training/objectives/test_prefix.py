"""Prefix language modelling: each document is cut once, and what follows is learned."""

from __future__ import annotations

import torch

import tiny
from glassformer.tokenizer import Tokenizer
from glassformer.training.batches import Batch
from glassformer.training.objectives import Prefix
from packed import check_packed_equals_apart, packed, random


def test_each_document_is_cut_between_its_shares() -> None:
    given = packed(tiny.tokens(300, 60), [30, 1, 20])
    made = Prefix(0.2, 0.7).prepare(given, random())
    assert made.prefix is not None and torch.equal(made.tokens, given.tokens)
    for at, length in ((0, 30), (31, 20)):
        prefix, targets = (part[:, at : at + length] for part in (made.prefix, made.targets))
        size = prefix.sum(1)
        place = torch.arange(length)
        assert torch.equal(prefix, place < size[:, None]), "one piece, from the beginning"
        assert int(size.min()) == round(0.2 * length) and int(size.max()) == round(0.7 * length)
        asked = (place >= size[:, None] - 1) & (place < length - 1)
        assert torch.equal(targets >= 0, asked), "the last of the prefix predicts what follows"
        assert torch.equal(targets[asked], given.targets[:, at : at + length][asked])
    assert made.prefix[:, 30].all() and not made.prefix[:, 51:].any()
    plain = Batch(given.tokens, given.tokens.roll(-1, 1))
    cut = Prefix(0.5, 0.5).prepare(plain, random())
    assert (cut.targets >= 0).sum(1).unique().tolist() == [31] and cut.pos is None


def test_packed_equals_apart(letters: Tokenizer) -> None:
    check_packed_equals_apart("llama", Prefix(), letters)
