"""The Compare screen: answers, surprise and KL of two models loaded apart."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import torch

from apart import SENTENCE, Apart, close


def test_two_models_on_one_text(site: Any, tab: Any) -> None:
    tab.goto(f"{site.url}#compare?{urlencode({'m': 'gpt', 'cb': 'llama', 't': SENTENCE})}")
    tab.wait_for_selector(".positions .num")
    tab.wait_for_function("() => document.querySelectorAll('.compare .bars .num').length === 10")
    first, second = Apart(site, "gpt", tab), Apart(site, "llama", tab)
    ids = [int(one.get_attribute("data-id")) for one in tab.locator(".text .strip .token").all()]
    p, q = (one.values["logits"].double().log_softmax(-1) for one in (first, second))
    for number, one in enumerate(tab.locator(".compare .bars .num").all()):
        token = int(re.search(r"\[(\d+)\]$", one.get_attribute("data-addr")).group(1))  # type: ignore[union-attr]
        assert close(float(one.get_attribute("data-v")), float((p if number < 5 else q)[-1, token].exp()))
    kl = (p.exp() * (p - q)).sum(-1)
    seen = 0
    for one in tab.locator(".positions [data-addr]").all():
        kind, at = one.get_attribute("data-addr").partition("(")[0], one.get_attribute("data-addr").rpartition("[")[2]
        value, at = float(one.get_attribute("data-v")), int(at.rstrip("]"))
        if kind == "kl":
            assert close(value, float(kl[at])), at
        else:
            assert any(close(value, -float(row[at, ids[at + 1]])) for row in (p, q)), at
        seen += 1
    assert seen == 3 * len(ids) - 2 and torch.isfinite(kl).all()
