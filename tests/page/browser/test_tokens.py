"""The Tokens screen: each tokenizer's own ids, and the text as it is written."""

from __future__ import annotations

from typing import Any

from glassformer.formats import store
from glassformer.sight.tokens import segmentation

TEXT = "the cat 🎵 <img src=x onerror=alert(1)>\tsat"


def test_ids_are_the_tokenizers(site, tab):
    tab.goto(f"{site.url}#tokens?tn=gpt,bert")
    tab.wait_for_selector(".pieces")
    tab.fill(".tokenscreen textarea", TEXT)
    for name in ("gpt", "bert"):
        tokenizer: Any = store.load(site.folders[name])[1]
        ids = [str(id) for id in tokenizer.encode(TEXT)]
        panel = f'section[aria-label="tokenizer {name}"]'
        tab.wait_for_function(
            "([panel, ids]) => [...document.querySelectorAll(panel + ' .piece')].map(e => "
            "e.dataset.v).join() === ids",
            arg=[panel, ",".join(ids)],
        )
    assert tab.locator("main img").count() == 0


def test_a_token_shows_its_merges(site, tab):
    tab.goto(f"{site.url}#tokens?tn=gpt,bert")
    tab.fill(".tokenscreen textarea", "the cat sat")
    panel = tab.locator('section[aria-label="tokenizer gpt"]')
    first = panel.locator(".piece", has_text="cat").first
    first.click()
    tab.wait_for_selector(".steps")
    displayed = [row.inner_text() for row in panel.locator(".steps tr").all()]
    tokenizer: Any = store.load(site.folders["gpt"])[1]
    (_, local, _) = segmentation.trace(tokenizer, "the cat sat")
    assert len(displayed) == len(local.steps) + 2 and displayed[-1].split("\t")[1].split() == [
        str(id) for id in local.ids
    ]
    for row, step in zip(displayed[1:-1], local.steps, strict=True):
        assert row.startswith(f"merge {step.rank}:")
    first.press("ArrowRight")
    assert tab.evaluate("() => document.activeElement.dataset.v") == str(
        tokenizer.encode("the cat sat")[2]
    )
