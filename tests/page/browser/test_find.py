"""Find the head: every head by its weight from one token to another, as in a model loaded apart."""

from __future__ import annotations

import pytest

from apart import close, numbers, typed

RANKED = '[aria-label="find the head"] .ranked'


@pytest.mark.parametrize(
    ("name", "stack", "kind", "title"),
    [("llama", "decoder", "attn", "Decoder self"), ("t5", "decoder", "cross", "Cross")],
)
def test_heads_are_listed_by_their_weight_at_a_pair(name, stack, kind, title, site, tab):
    apart = typed(tab, site, name, "attention")
    tab.get_by_role("combobox", name="from token", exact=True).select_option("3")
    tab.get_by_role("combobox", name="to token", exact=True).select_option("1")
    tab.wait_for_selector(f"{RANKED} li")
    patterns = {
        layer: apart.values[f"{stack}.blocks.{layer}.{kind}.pattern"][:, 3, 1].tolist()
        for layer in (0, 1)
    }
    truth = {
        f"{stack}.blocks.{layer}.{kind}.pattern[{head},3,1]": weight
        for layer, weights in patterns.items()
        for head, weight in enumerate(weights)
    }
    listed = numbers(tab.locator(f"{RANKED} [data-addr]"))
    assert len(listed) == len(truth) and {address for address, _ in listed} == truth.keys()
    assert all(close(value, truth[address]) for address, value in listed)
    assert [value for _, value in listed] == sorted((v for _, v in listed), reverse=True)
    best = max(truth, key=truth.__getitem__)
    layer, head = best.split(".")[2], best.partition("[")[2][0]
    line = tab.get_by_role("button", name=f"layer {layer}, head {head}: {truth[best]:.2g}")
    line.click()
    heading = f"{title} · layer {layer} · head {head}"
    tab.get_by_role("heading", name=heading, exact=True).wait_for()
    assert line.get_attribute("aria-pressed") == "true"
    tab.get_by_role("button", name="sort the pictures", exact=True).click()
    tab.wait_for_function(
        "() => document.querySelector('[aria-label=\"all heads\"] [role=grid]').ariaLabel"
        ".includes('weight at the locked pair')"
    )


def test_a_model_of_pairs_opens_on_cross_attention_with_a_pair(site, tab):
    tab.goto(f"{site.url}#attention?m=t5")
    cross = tab.get_by_role("button", name="Cross", exact=True)
    cross.wait_for()
    assert cross.get_attribute("aria-pressed") == "true"
    boxes = [tab.locator(box).input_value() for box in ("#source", "#prompt")]
    assert boxes == [
        "The animal didn't cross the street because it was too tired.",
        "L'animal n'a pas traversé la rue parce qu'",
    ]
    tab.get_by_role("combobox", name="model", exact=True).select_option("gpt")
    tab.get_by_role("heading", name="Decoder self · layer 0 · head 0", exact=True).wait_for()
    assert tab.locator("#prompt").input_value().startswith("The animal")
