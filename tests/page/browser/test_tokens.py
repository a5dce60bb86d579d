"""The Tokens screen: each tokenizer's own ids, and the text as it is written."""

from __future__ import annotations

from typing import Any

from glassformer.checkpoints import store

TEXT = "the cat 🎵 <img src=x onerror=alert(1)>\tsat"


def test_ids_are_the_tokenizers(site: Any, tab: Any) -> None:
    tab.goto(f"{site.url}#tokens?tn=gpt,bert")
    tab.wait_for_selector(".pieces")
    tab.fill(".tokenscreen textarea", TEXT)
    for name in ("gpt", "bert"):
        tokenizer: Any = store.load(site.folders[name])[1]
        ids = [str(id) for id in tokenizer.encode(TEXT)]
        panel = f'section[aria-label="tokenizer {name}"]'
        tab.wait_for_function(
            "([panel, ids]) => [...document.querySelectorAll(panel + ' .piece')].map(e => e.dataset.v).join() === ids",
            arg=[panel, ",".join(ids)],
        )
    assert tab.locator("main img").count() == 0
