"""The Compare screen: answers, surprise and KL of two models loaded apart."""

from __future__ import annotations

import re
from urllib.parse import urlencode

import torch

from apart import SENTENCE, Apart, close, numbers
from glassformer.formats import store
from glassformer.sight.contexts import word_in_contexts
from glassformer.sight.inputs import token_ids

TEXTS = ["the cat sat on the mat", "a dog and a cat"]


def test_two_models_on_one_text(site, tab):
    tab.goto(f"{site.url}#compare?{urlencode({'m': 'gpt', 'cb': 'llama', 't': SENTENCE})}")
    tab.wait_for_selector(".positions .num")
    tab.wait_for_function("() => document.querySelectorAll('.compare .bars .num').length === 10")
    first, second = Apart(site, "gpt", tab), Apart(site, "llama", tab)
    ids = [int(item.get_attribute("data-id")) for item in tab.locator(".text .strip .token").all()]
    p, q = (item.values["logits"].double().log_softmax(-1) for item in (first, second))
    for number, (address, value) in enumerate(numbers(tab.locator(".compare .bars .num"))):
        token = int(re.search(r"\[(\d+)\]$", address).group(1))
        assert close(value, float((p if number < 5 else q)[-1, token].exp()))
    kl = (p.exp() * (p - q)).sum(-1)
    observed = 0
    for address, value in numbers(tab.locator(".positions [data-addr]")):
        kind, at = address.partition("(")[0], int(address.rpartition("[")[2].rstrip("]"))
        if kind == "kl":
            assert close(value, float(kl[at])), at
        else:
            assert any(close(value, -float(row[at, ids[at + 1]])) for row in (p, q)), at
        observed += 1
    assert observed == 3 * len(ids) - 2 and torch.isfinite(kl).all()


def test_two_tokenizers_meet_where_both_cut(site, tab):
    """A stretch's surprise is the sum over its tokens, from models loaded apart; the stretches are
    the whole text."""
    tab.goto(f"{site.url}#compare?{urlencode({'m': 'gpt', 'cb': 'odd', 't': SENTENCE})}")
    tab.wait_for_selector(".positions .num")
    runs = [
        item.get_attribute("data-addr")[5:-1] for item in tab.locator('[data-addr^="bits("]').all()
    ]
    for name, run in zip(("gpt", "odd"), runs, strict=True):
        model, tokenizer = store.load(site.folders[name])
        ids = token_ids(model, tokenizer, SENTENCE)
        with torch.no_grad():
            row = model(ids).logits[0, :, : tokenizer.size].double().log_softmax(-1)
        calls: list[int] = []
        for address, value in numbers(tab.locator(f'.positions [data-addr^="surprise({run})"]')):
            places = [int(at) for at in address.rpartition("[")[2].rstrip("]").split("+")]
            local = -sum(float(row[at - 1, ids[0, at]]) for at in places)
            assert close(value, local), places
            calls += places
        assert calls == list(range(calls[0], ids.shape[1])) and calls[0] <= 3, (
            "all but what has nothing before it"
        )


def test_one_word_in_two_texts(site, tab):
    tab.goto(f"{site.url}#compare?{urlencode({'m': 'gpt', 't': SENTENCE})}")
    for name, text in zip(("the word", "one text", "another text"), ("cat", *TEXTS), strict=True):
        tab.get_by_label(name, exact=True).fill(text)
    tab.get_by_role("button", name="compare", exact=True).click()
    tab.wait_for_selector('[data-addr^="contexts(gpt)"]')
    model, tokenizer = store.load(site.folders["gpt"])
    result = word_in_contexts(model, tokenizer, "cat", *TEXTS)
    for path, cosine in zip(result.depths, result.cosine, strict=True):
        displayed = tab.locator(f'[data-addr="contexts(gpt).{path}"]').get_attribute("data-v")
        assert float(displayed) == cosine
