"""What a search leaves behind, the next one fills: nothing that it says depends on it."""

from __future__ import annotations

import math

import pytest
import torch

import tiny
from glassformer.core.generation import beam
from glassformer.fast import page_pool
from glassformer.fast.kernels import Pages
from glassformer.fast.kernels.shared_library import has

HOW = {"beams": 3, "best": 3, "max_new": 20, "eos": (), "start": 0}
SOURCES = [[5, 3, 9, 2], [1, 2, 8], [4] * 11]


@pytest.fixture
def model():
    if not has("stack"):
        pytest.skip("needs the compiled kernels: python hatch_build.py")
    return tiny.model("vaswani")


@pytest.fixture
def page_counts(monkeypatch):
    """The counts of all pages that are made."""
    totals = list[int]()
    empty = Pages.empty

    def counted(count, *args):
        totals.append(count)
        return empty(count, *args)

    monkeypatch.setattr(Pages, "empty", counted)
    return totals


def spoil(pages):
    for page in pages:
        page.keys.fill_(math.nan)
        page.values.fill_(math.nan)


def test_the_next_search_fills_the_same_memory_and_says_the_same(model, page_counts):
    alone = beam(model, None, SOURCES[:1], **HOW)
    first = beam(model, None, SOURCES, **HOW)
    assert page_counts
    spoil(page_pool._idle[model])
    page_counts.clear()
    assert beam(model, None, SOURCES, **HOW) == first
    assert beam(model, None, SOURCES[:1], **HOW) == alone
    assert not page_counts
    assert len(page_pool._idle[model]) == 2 * model.config.decoder.depth


def test_a_larger_search_makes_pages_and_a_failed_one_gives_them_back(model, page_counts):
    beam(model, None, SOURCES[:1], **HOW)
    page_counts.clear()
    beam(model, None, SOURCES, **HOW)
    assert sum(page_counts) > 0
    page_counts.clear()
    steps = iter(range(4))
    with pytest.raises(StopIteration):
        beam(model, None, SOURCES, **HOW, check=lambda: (next(steps), None)[1])
    beam(model, None, SOURCES, **HOW)
    assert not page_counts


def test_two_searches_at_once_share_nothing(model):
    beam(model, None, SOURCES, **HOW)
    saved = page_pool._idle[model][0]
    item = page_pool.SearchPages(model)
    second = page_pool.SearchPages(model)
    similar = saved.keys.shape[1], saved.head_dim, torch.float32
    stored = [search.take(1, *similar) for search in (item, item, second)]
    assert len({pages.keys.data_ptr() for pages in stored}) == 3
    assert len(item.take(999, *similar).keys) == 999
    assert item.take(1, 1, 2, torch.bfloat16).keys.dtype == torch.bfloat16


def test_a_training_lets_them_go(model):
    beam(model, None, SOURCES, **HOW)
    model.train()
    assert model not in page_pool._idle
