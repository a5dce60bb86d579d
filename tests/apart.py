"""What a page shows, beside the same model loaded apart from it: for the tests that look with a
browser."""

from __future__ import annotations

import math
from urllib.parse import urlencode

import pytest
import torch

from glassformer import config as c
from glassformer.formats import store
from glassformer.sight.looking import look

FAMILIES = ("gpt", "llama", "mixture", "bert", "t5", "odd")
PROBE = """points => points.map(([x, y]) => __glassformer.probe(x, y)).filter(one => one)
  .map(one => [one.addr, String(one.value)])"""
SAID = "all => all.map(one => [one.dataset.addr, one.dataset.v])"
SENTENCE = "the cat sat on a mat"
SOURCE = "a dog and a log"


def quick(*names):
    """All families as parameters of a test; those that are not named are slow proofs."""
    return [
        name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES
    ]


class Apart:
    """The family's model, loaded apart from the page: numbers by address from a tape and from its
    weights."""

    def __init__(self, site, name, tab):
        self.model, tokenizer = store.load(site.folders[name])
        pair = isinstance(self.model.config, c.EncoderDecoder)

        def strip(label):
            present = tab.locator(f'.text .strip[aria-label="{label}"] .token')
            return torch.tensor(
                [[int(id) for id in present.evaluate_all("all => all.map(one => one.dataset.id)")]]
            )

        tokens = strip("tokens")
        source = strip("source tokens") if pair else None
        with torch.no_grad():
            plain = self.model(tokens) if source is None else self.model(tokens, source)
        self.values = {
            path: value.detach()[0]
            for path, value in look(self.model, tokenizer, tokens, "*", source=source).items()
        }
        self.values["logits"] = plain.logits[0]
        self.values["probs"] = plain.logits[0].softmax(-1)
        self.weights = {name: weight.detach() for name, weight in self.model.named_parameters()}

    def __contains__(self, address):
        name = address.partition("[")[0]
        return name in self.values or name in self.weights

    def __getitem__(self, address):
        name, _, index = address.partition("[")
        value = self.values[name] if name in self.values else self.weights[name]
        return float(value[tuple(int(piece) for piece in index.rstrip("]").split(","))])


def numbers(result):
    """Address and value of everything that a locator finds."""
    return [
        (address, float(value.replace("Infinity", "inf")))
        for address, value in result.evaluate_all(SAID)
    ]


def probed(tab, points):
    """Address and value of what is drawn at these points, where something is."""
    return [
        (address, float(value.replace("Infinity", "inf")))
        for address, value in tab.evaluate(PROBE, points)
    ]


def close(displayed, true):
    return displayed == true or math.isclose(displayed, true, rel_tol=1e-4, abs_tol=1e-5)


def typed(tab, site, name, view):
    """The sentence, typed into the page of a family."""
    tab.goto(f"{site.url}#{view}?{urlencode({'m': name, 't': 'a cat', 's': 'a dog'})}")
    tab.wait_for_selector(".text .token")
    if tab.locator("#source").count():
        tab.fill("#source", SOURCE)
    tab.fill("#prompt", SENTENCE)
    with tab.expect_response("**/api/runs"):
        tab.press("#prompt", "Enter")
    tab.wait_for_function("() => document.querySelectorAll('footer .badge').length === 1")
    tab.wait_for_timeout(200)
    return Apart(site, name, tab)
