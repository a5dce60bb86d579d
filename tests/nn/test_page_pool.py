"""What a search leaves behind, the next one fills: nothing that it says depends on it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import tiny
from glassformer.generation import beam
from glassformer.nn import page_pool
from glassformer.nn.kernels import Pages
from glassformer.nn.kernels.library import has

HOW: dict[str, Any] = {"beams": 3, "best": 3, "max_new": 20, "eos": (), "start": 0}
SOURCES = [[5, 3, 9, 2], [1, 2, 8], [4] * 11]


@pytest.fixture
def model() -> Any:
    if not has("stack"):
        pytest.skip("needs the compiled kernels: python hatch_build.py")
    return tiny.model(tiny.ALL["vaswani"])


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The counts of all pages that are made."""
    counts, empty = list[int](), Pages.empty

    def counted(count: int, *like: Any) -> Pages:
        counts.append(count)
        return empty(count, *like)

    monkeypatch.setattr(Pages, "empty", counted)
    return counts


def spoil(pages: list[Pages]) -> None:
    for one in pages:
        one.keys.fill_(math.nan)
        one.values.fill_(math.nan)


def test_the_next_search_fills_the_same_memory_and_says_the_same(
    model: Any, made: list[int]
) -> None:
    alone = beam(model, None, SOURCES[:1], **HOW)
    first = beam(model, None, SOURCES, **HOW)
    assert made
    spoil(page_pool._idle[model])
    made.clear()
    assert beam(model, None, SOURCES, **HOW) == first
    assert beam(model, None, SOURCES[:1], **HOW) == alone
    assert not made and len(page_pool._idle[model]) == 2 * model.config.decoder.depth


def test_a_larger_search_makes_pages_and_a_failed_one_gives_them_back(
    model: Any, made: list[int]
) -> None:
    beam(model, None, SOURCES[:1], **HOW)
    made.clear()
    beam(model, None, SOURCES, **HOW)
    assert sum(made) > 0
    made.clear()
    steps = iter(range(4))
    with pytest.raises(StopIteration):
        beam(model, None, SOURCES, **HOW, check=lambda: (next(steps), None)[1])
    beam(model, None, SOURCES, **HOW)
    assert not made


def test_two_searches_at_once_share_nothing(model: Any) -> None:
    beam(model, None, SOURCES, **HOW)
    kept = page_pool._idle[model][0]
    one, other = page_pool.PagePool(model), page_pool.PagePool(model)
    like = kept.keys.shape[1], kept.head_dim, torch.float32
    held = [search.take(1, *like) for search in (one, one, other)]
    assert len({pages.keys.data_ptr() for pages in held}) == 3
    assert (
        len(one.take(999, *like).keys) == 999
        and one.take(1, 1, 2, torch.bfloat16).keys.dtype == torch.bfloat16
    )


def test_a_training_lets_them_go(model: Any) -> None:
    beam(model, None, SOURCES, **HOW)
    model.train()
    assert model not in page_pool._idle
