"""The Attention screen: its weights, thumbnails and what-ifs are those of a model loaded apart."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import torch

from apart import Apart, close, numbers, probed, quick, typed
from glassformer.formats import store
from glassformer.sight.heads import head_scores

TABS = {"t5": ("Encoder self", "Decoder self", "Cross")}
LAST = '[aria-label="one head"] .looks [data-sum]'


def probes(tab: Any, grid: str, count: int, seed: str) -> list[tuple[str, float]]:
    """Values of the canvas of ``grid`` at points picked at random, by address."""
    luck, box = random.Random(seed), tab.locator(grid).bounding_box()
    tab.evaluate("y => window.scrollTo(0, y)", 0)
    high = min(box["height"], 880 - box["y"])
    return probed(
        tab,
        [
            (box["x"] + luck.random() * box["width"], box["y"] + luck.random() * high)
            for _ in range(count)
        ],
    )


@pytest.mark.parametrize("name", quick("t5", "odd"))
def test_every_weight_that_is_drawn_is_the_models(name, site, tab):
    apart = typed(tab, site, name, "attention")
    checked = 0
    for chosen in TABS.get(name, (None,)):
        if chosen is not None:
            tab.get_by_role("button", name=chosen, exact=True).click()
        tab.wait_for_selector(LAST)
        tab.wait_for_timeout(300)
        for address, value in probes(tab, '[aria-label="one head"] [role=grid]', 260, name):
            assert close(value, apart[address]), address
            checked += 1
        for address, value in probes(tab, '[aria-label="all heads"] [role=grid]', 60, name):
            kind, _, place = address.rpartition(" ")
            assert kind == "u8" and abs(value**0.5 - apart[place] ** 0.5) < 0.6 / 255, address
            checked += 1
        for address, value in numbers(tab.locator(".looks [data-addr]")):
            assert close(value, apart[address]), address
        assert close(float(tab.locator(LAST).get_attribute("data-v")), 1.0)
    assert checked >= 200, checked


@pytest.mark.parametrize("view", ["text", "lines"])
def test_words_and_lines_have_the_weights_too(view, site, tab):
    apart = typed(tab, site, "llama", "attention")
    tab.get_by_role("button", name=view, exact=True).click()
    displayed = f'[aria-label="one head"] .{"textview" if view == "text" else "lines"} [data-addr]'
    tab.wait_for_selector(displayed, state="attached")
    result = numbers(tab.locator(displayed))
    assert len(result) >= len(apart.values["logits"])
    for address, value in result:
        assert close(value, apart[address])


@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt", "odd"))]
)
def test_a_head_that_is_off_moves_the_answer_as_a_model_without_its_columns(name, site, tab):
    """The same model, loaded apart, with the head's columns of the output projection at 0."""
    apart: Apart = typed(tab, site, name, "attention")
    tab.get_by_role("button", name="switch this head off").click()
    tab.wait_for_selector(".answers .num")
    ids = [
        int(item)
        for item in tab.evaluate(
            "() => [...document.querySelectorAll('.strip .token')].map(e => e.dataset.id)"
        )
    ]
    displayed = numbers(tab.locator(".answers .num[data-addr]"))
    attention = apart.model.get_submodule("decoder.blocks.0.attn")
    width = attention.config.width(apart.model.config.dim) if hasattr(attention, "config") else None
    weight = attention.out.weight.detach()
    width = width or apart.values["decoder.blocks.0.attn.z"].shape[-1]
    before = apart.values["probs"][-1]
    with torch.no_grad():
        attention.out.weight[:, :width] = 0
        after = apart.model(torch.tensor([ids])).logits[0, -1].softmax(-1)
    assert weight.shape[1] > width and len(displayed) >= 10
    named = {int(address.rpartition("[")[2][:-1]) for address, _ in displayed}
    assert int((after - before).argmax()) in named, "who gained the most"
    remaining = [
        float(item.get_attribute("data-rest")) for item in tab.locator(".answers [data-rest]").all()
    ]
    for row, second_remaining in zip((before, after), remaining, strict=True):
        assert close(second_remaining, 1 - float(sum(row[token] for token in named)))
    assert tab.locator(".answers .change").last.inner_text().endswith("points")
    for at, (address, value) in enumerate(displayed):
        token = int(re.search(r"\[(\d+)\]$", address).group(1))
        assert close(value, float((before, after)[at % 2][token])), (address, at)
    assert not torch.equal(before, after)


def test_heads_are_sorted_and_shown_by_what_they_do_on_random_tokens(site, tab):
    apart = typed(tab, site, "llama", "attention")
    result = head_scores(apart.model, store.load(site.folders["llama"])[1])
    tab.select_option("select.sorts", "m.duplicate")
    grid = tab.locator('[aria-label="all heads"] [role=grid]')
    tab.wait_for_function(
        '() => document.querySelector(\'[aria-label="all heads"] '
        "[role=grid]').ariaLabel.includes('first time')"
    )
    best = result.sorted("duplicate").heads[0]
    grid.focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft"):
        tab.keyboard.press(key)
        tab.wait_for_timeout(60)
    layer = re.search(r"blocks\.(\d+)", best.path).group(1)
    assert f"layer {layer}, head {best.head}," in grid.get_attribute("aria-label")
    for address, value in numbers(tab.locator('[data-addr^="heads."]')):
        path, head, name = re.fullmatch(r"heads\.(.*)\[(\d+)\]\.(\w+)", address).groups()
        (local,) = [
            head_ for head_ in result.heads if (head_.path, head_.head) == (path, int(head))
        ]
        assert value == local.scores[name]
    for label in ("previous", "first"):
        tab.get_by_role("combobox", name="show").select_option(label)
        marked = sum(label in head.labels for head in result.heads)
        first = tab.locator('[aria-label="all heads"] p.soft').first
        first.filter(has_text=f"{marked} of" if marked else "No head here").wait_for()
