"""A sentence encoder has no words: an edit turns its vector, and a second text lies near or far."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest
import torch

import served
import tiny
from apart import SENTENCE, close
from glassformer import config as c
from glassformer.core.nn import build_model
from glassformer.formats import store
from glassformer.sight.inputs import token_ids

SECOND = "a dog sat on the log"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pool = c.Pool("mean", normalize=True)
    model = build_model(served.worded(replace(tiny.ALL["bert"], head=None, pool=pool)), seed=3)
    path = tmp_path_factory.mktemp("vectors") / "sentences"
    store.save(model, path, served.tokenizer("wordpiece"))
    return path


@pytest.fixture(scope="module")
def link(folder, serving):
    with serving(folder) as url:
        yield url


def embedded(model: Any, tokenizer: Any, text: str) -> torch.Tensor:
    """The mean of the last vectors, by the model's parts alone."""
    ids = token_ids(model, tokenizer, text)
    with torch.no_grad():
        return model(ids).pooled[0].double()


def number(place: Any, nth: int) -> float:
    cell = place.locator('[data-addr^="cosine("]').nth(nth)
    cell.wait_for()
    return float(cell.get_attribute("data-v"))


def test_an_edit_turns_the_vector(folder, link, new_tab):
    tab = new_tab
    tab.goto(f"{link}#attention?{urlencode({'m': 'sentences', 't': SENTENCE, 'l': 1, 'h': 2})}")
    card = tab.get_by_role("region", name="what if", exact=True)
    second = card.get_by_role("textbox", name="a second text", exact=True)
    second.fill(SECOND)
    second.press("Enter")
    model, tokenizer = store.load(folder)
    text, second_vector = (embedded(model, tokenizer, first) for first in (SENTENCE, SECOND))
    alike = float(torch.cosine_similarity(text, second_vector, dim=0))
    assert close(number(card, 0), alike) and abs(alike) < 0.9999
    card.get_by_role("button", name="switch this head off", exact=True).click()
    card.locator(".moved .num").wait_for()
    attention = model.get_submodule("encoder.blocks.1.attn")
    width = text.shape[0] // 4
    with torch.no_grad():
        attention.out.weight[:, 2 * width : 3 * width] = 0
    edited = embedded(model, tokenizer, SENTENCE)
    turned = float(torch.cosine_similarity(text, edited, dim=0))
    assert turned < 0.999999
    card.get_by_text("with the edit", exact=False).nth(1).wait_for()
    values = [number(card, nth) for nth in range(3)]
    truth = [turned, alike, float(torch.cosine_similarity(edited, second_vector, dim=0))]
    assert all(close(first, two) for first, two in zip(values, truth, strict=True)), (values, truth)
    card.get_by_role("button", name="keep it on the page", exact=True).click()
    tab.get_by_role("group", name="edits of this run", exact=True).wait_for()
    tab.get_by_role("button", name="Playground", exact=True).click()
    region = tab.get_by_role("region", name="the text's vector", exact=True)
    assert [number(region, nth) for nth in range(3)] == values
    assert tab.get_by_role("region", name="labels", exact=True).count() == 0
