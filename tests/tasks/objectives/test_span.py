"""Span corruption: T5's lengths and shares, nothing lost, packed documents by themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import tiny
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.tasks.objectives import Span
from glassformer.tasks.objectives.span import cut_out
from mistakes import mistake
from packed import LETTERS, MARKS, check_packed_equals_apart, packed, random


def test_span_lengths_are_those_of_t5():
    """568 tokens become a source of 512 and a target of 114, ends included: T5's own settings (15
    %, spans of 3)."""
    source, target = cut_out(np.arange(568), random(), 0.15, 3.0, np.arange(1000, 1100))
    assert (len(source) + 1, len(target) + 1) == (512, 114)
    assert (source >= 1000).sum() == 28
    assert (target < 1000).sum() == 85


@pytest.mark.parametrize(
    "rate,length,sentinels", [(0.15, 3.0, 100), (0.5, 1.0, 100), (0.15, 3.0, 2), (0.9, 3.0, 100)]
)
def test_source_and_target_hold_the_document(rate, length, sentinels):
    draw = random()
    marks = np.arange(1000, 1000 + sentinels)
    hidden = []
    spans = []
    for size in [*range(4, 60), *[200] * 200]:
        ids = draw.integers(0, 50, size)
        source, target = cut_out(ids, draw, rate, length, marks)
        in_use = target[target >= 1000]
        assert in_use.tolist() == source[source >= 1000].tolist() == marks[: len(in_use)].tolist()
        stored = dict(
            zip(in_use.tolist(), np.split(target, np.flatnonzero(target >= 1000))[1:], strict=True)
        )
        full = [piece for id in source for piece in (stored[id][1:] if id >= 1000 else [id])]
        assert full == ids.tolist()
        assert not ((source[:-1] >= 1000) & (source[1:] >= 1000)).any(), "spans do not touch"
        assert all(len(span) > 1 for span in stored.values())
        assert max(len(source), len(target)) + 1 <= size
        hidden.append((size - (source < 1000).sum()) / size)
        spans.append(len(in_use))
    assert abs(np.mean(hidden[-200:]) - rate) < 0.01
    if rate == 0.15:
        assert np.mean(spans[-200:]) == (10 if sentinels == 100 else 2)


def test_where_spans_lie_is_uniform():
    count = np.zeros(12)
    draw = random()
    for _ in range(3000):
        source, _ = cut_out(np.arange(12), draw, 0.25, 1.5, np.arange(100, 110))
        count[np.setdiff1d(np.arange(12), source)] += 1
    # ends are hit a little less or more
    assert count.sum() == 3000 * 3
    assert abs(count / 3000 - 0.25).max() < 0.1
    assert count[0] / 3000 > 0.15
    assert count[-1] / 3000 > 0.15


def test_spans_of_packed_documents_stay_in_them(marked):
    tokens = tiny.tokens(3, 64) % len(LETTERS)
    tokens[:, 19] = marked.eos
    args = packed(tokens, [20, 3, 30])  # one too short, eleven of padding
    result = Span().prepare(args, random(), marked)
    assert result.source is not None
    assert result.pos is not None
    assert result.source_pos is not None
    assert result.document_ids is not None
    assert result.source_document_ids is not None
    assert result.source.shape == (3, 64)
    assert result.tokens.shape[1] % 8 == 0
    for row in range(3):
        for number, first, length in ((0, 0, 19), (1, 23, 30)):
            local = result.document_ids[row] == number
            present = result.source_document_ids[row] == number
            source = result.source[row][present].tolist()
            target = result.targets[row][local].tolist()
            assert source[-1] == target[-1] == marked.eos
            assert result.tokens[row][local].tolist() == [
                marked.pad,
                *target[:-1],
            ]
            assert result.source_pos[row][present].tolist() == list(range(len(source)))
            assert result.pos[row][local].tolist() == list(range(len(target)))
            stored = {}
            for id in target[:-1]:
                if id in marked.sentinels:
                    stored[id] = span = []
                else:
                    span.append(id)
            assert list(stored) == marked.sentinels[: len(stored)], (
                "each document counts from the first sentinel"
            )
            full = [piece for id in source[:-1] for piece in stored.get(id, [id])]
            assert full == tokens[row, first : first + length].tolist()
        assert result.document_ids[row].max() == result.source_document_ids[row].max() == 1
    assert (result.targets[result.pos < 0] == -1).all()
    opened = train_tokenizer("char", [LETTERS], specials=("<s>", *MARKS))
    tokens[:, 23], args = opened.bos, replace(args, tokens=tokens)
    started = Span(0.5).prepare(args, random(), opened)
    assert started.tokens[0, 0] == opened.bos and not (started.source == opened.bos).any(), (
        "ends are not part of the text"
    )
    assert not (started.targets == opened.bos).any()
    assert (started.targets == opened.eos).sum() == 6
    args = packed(tokens, [20, 3, 30])
    result = Span().prepare(args, random(), marked)
    again = Span().prepare(args, random(), marked)
    assert torch.equal(again.tokens, result.tokens)
    assert torch.equal(again.source, result.source)


def test_packed_equals_apart(marked):
    check_packed_equals_apart("t5", Span(0.3), marked)


def test_what_spans_lack_is_said(letters, marked):
    args = packed(torch.zeros(2, 10, dtype=torch.long), [3, 3, 3])
    with mistake("no sentinels"):
        Span().prepare(args, random(), letters)
    with mistake("longer documents"):
        Span().prepare(args, random(), marked)
    endless = train_tokenizer("char", ["ab"], specials=("<extra_id_0>",))
    with mistake("no end-of-text token"):
        Span().prepare(args, random(), endless)
