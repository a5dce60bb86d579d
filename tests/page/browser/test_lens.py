"""The Lens screen beside lenses made by hand, and the parts of a logit."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from apart import close, numbers, typed


@pytest.mark.parametrize("name", ["gpt", "llama", "mixture", "odd"])
def test_each_depth_says_what_norm_and_head_make_of_its_states(name, site, tab):
    """The states after each block through the last norm and the table, by hand."""
    apart = typed(tab, site, name, "lens")
    tab.wait_for_selector(".lensgrid [data-addr]")
    model: Any = apart.model
    cells = numbers(tab.locator(".lensgrid [data-addr]"))
    checked = 0
    for address, value in cells:
        path, at = re.fullmatch(r"lens\.probability\[(.+),(\d+)\]", address).groups()
        states = apart.values[path][int(at)]
        with torch.no_grad():
            normed = states if path.endswith(".out") else model.decoder.last_norm(states)
            chance = model.head(normed[None, None], model.embed)[0, 0].softmax(-1)
        if path != list(apart.values)[-1] and checked < 400:
            assert close(value, float(chance.max())), (path, at)
            checked += 1
    assert checked == len(cells) and checked >= 2 * len(apart.values["logits"])


@pytest.mark.parametrize("name", ["gpt", "llama", "bert", "t5", "odd"])
def test_the_parts_of_a_logit_add_up_to_the_models(name, site, tab):
    apart = typed(tab, site, name, "lens")
    tab.wait_for_selector(".parts .num")
    if tab.locator(".parts button").count():
        tab.locator(".parts button").click()
    values = [value for _, value in numbers(tab.locator(".parts .num"))]
    logit = tab.locator('[aria-label="who wrote it"] [data-addr^="logits["]')
    assert close(float(logit.get_attribute("data-v")), apart[logit.get_attribute("data-addr")])
    assert math.isclose(
        math.fsum(values), apart[logit.get_attribute("data-addr")], rel_tol=1e-4, abs_tol=1e-4
    )


def test_a_followed_word_has_the_models_own_probability_at_the_end(site, tab):
    apart = typed(tab, site, "llama", "lens")
    tab.locator(".bars .name").first.click()
    tab.wait_for_selector(".chart circle", state="attached")
    last = tab.locator(".chart circle").last
    at, token = re.search(r",(\d+),(\d+)\]$", last.get_attribute("data-addr")).groups()
    assert close(
        float(last.get_attribute("data-v")), float(apart.values["probs"][int(at), int(token)])
    )
