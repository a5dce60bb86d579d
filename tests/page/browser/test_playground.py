"""Beams as branches, a sandbox without a model, what an edit did to the answer, and a server that
is unplugged."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import torch

from apart import SENTENCE, SOURCE, Apart, close
from glassformer import generation
from glassformer.formats import store
from glassformer.sight.attribution import attribute
from glassformer.sight.edits import mlp_off


def test_beams_become_branches(site, tab):
    tab.goto(
        f"{site.url}#playground?{urlencode({'m': 't5', 't': SENTENCE, 's': SOURCE, 'n_new': 5})}"
    )
    tab.get_by_role("button", name="Beams").click()
    tab.wait_for_selector(".tree")
    model, item = store.load(site.folders["t5"])
    start = [
        int(item.get_attribute("data-id"))
        for item in tab.locator('.strip[aria-label="tokens"] .token').all()
    ]
    (hypotheses,) = generation.beam(model, item, SOURCE, beams=4, best=4, max_new=5, start=start)
    means = [
        float(item.get_attribute("data-v"))
        for item in tab.locator('[aria-label="branches"] .num').all()
    ]
    assert all(
        close(mean, sum(hypothesis.logprobs) / len(hypothesis.logprobs))
        for mean, hypothesis in zip(means, hypotheses, strict=True)
    )
    written = [
        int(item.get_attribute("data-id"))
        for item in tab.locator('.strip[aria-label^="what was"] .token').all()
    ]
    assert written == hypotheses[0].tokens
    with tab.expect_response("**/api/runs"):
        tab.locator(".written").nth(1).click()
    tab.wait_for_function("n => document.querySelectorAll('.strip[aria-label=\"tokens\"] "
                          ".token').length === n",
                          arg=len(start) + len(hypotheses[1].tokens))  # fmt: skip


def test_a_search_is_stopped(site, tab):
    """The request is given up, which the server sees, and the button is what it was."""
    tab.goto(f"{site.url}#playground?{urlencode({'m': 'gpt', 't': SENTENCE})}")
    tab.wait_for_selector("footer .badge")
    tab.route("**/api/beam", lambda route: None)  # a search without an end
    tab.get_by_role("button", name="Beams").click()
    with tab.expect_event("requestfailed", lambda item: item.url.endswith("api/beam")):
        tab.get_by_role("button", name="Stop").click()
    tab.wait_for_function(
        "() => [...document.querySelectorAll('button')].some(one => one.textContent === 'Beams')"
    )
    assert tab.locator('[aria-label="output"] .failure').count() == 0


def test_the_sandbox_needs_no_model(site, tab):
    tab.goto(f"{site.url}#inside?{urlencode({'m': 'gpt', 't': SENTENCE, 'sb': 'softmax'})}")
    tab.wait_for_selector(".sandbox table")
    displayed = [item.inner_text() for item in tab.locator(".sandbox tbody b .num").all()]
    assert displayed == ["0.665", "0.245", "0.090"]
    tab.get_by_label("scores").fill("1 -2 0.5 7")
    true = torch.tensor([1, -2, 0.5, 7], dtype=torch.float64).softmax(0)
    numbers = [
        float(item.get_attribute("data-v")) for item in tab.locator(".sandbox tbody b .num").all()
    ]
    assert all(close(number, float(two)) for number, two in zip(numbers, true, strict=True))
    tab.get_by_role("button", name="Attention of a few words").click()
    tab.get_by_label("causal mask").check()
    X = torch.tensor([[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]], dtype=torch.float64)
    true = torch.nn.functional.scaled_dot_product_attention(
        X[None], X[None], X[None], is_causal=True
    )[0]
    cells = tab.locator('[aria-label="what comes out"] .num').all()
    numbers = [float(cell.get_attribute("data-v")) for cell in cells]
    assert all(
        close(number, float(two)) for number, two in zip(numbers, true.flatten(), strict=True)
    )


def test_the_map_says_what_an_edit_did(site, tab):
    edit = mlp_off("decoder.blocks.0.ffn")
    body = {"m": "llama", "t": SENTENCE, "e": json.dumps([repr(edit)])}
    tab.goto(f"{site.url}#inside?{urlencode(body)}")
    tab.wait_for_selector('[data-addr^="delta("]')
    apart = Apart(site, "llama", tab)
    model, item = store.load(site.folders["llama"])
    token = int(apart.values["logits"][-1].argmax())
    before, after = (
        attribute(model, item, SENTENCE, token=token, edits=group) for group in ((), [edit])
    )
    assert close(before.logit, float(apart.values["logits"][-1, token]))
    delta = float(tab.locator('[data-addr^="delta("]').get_attribute("data-v"))
    assert close(delta, after.logit - before.logit) and abs(delta) > 1e-6
    for name in ("decoder.blocks.0.ffn", "decoder.blocks.1.attn"):
        displayed = tab.locator(f'.added [data-addr$=" {name}"]').all()
        for place, output in zip(displayed, (before, after), strict=True):
            true = sum(item.value for item in output.parts if item.address.startswith(f"{name}."))
            assert close(float(place.get_attribute("data-v")), true), name


def test_a_server_that_is_unplugged_while_it_writes_is_said(site, tab):
    tab.goto(f"{site.url}#playground?{urlencode({'m': 'gpt', 't': SENTENCE, 'n_new': 20})}")
    tab.wait_for_selector("text=Generate")
    tab.evaluate("""() => {
      const real = window.fetch;
      window.fetch = async (path, how) => {
        if (!String(path).includes("api/generate")) return real(path, how);
        const answer = await real(path, how), reader = answer.body.getReader();
        const body = new ReadableStream({ async pull(c) {
          const { value } = await reader.read();
          c.enqueue(value);
          setTimeout(() => c.error(new TypeError("network error")), 50);
        } });
        return new Response(body, { status: 200, headers: answer.headers });
      };
    }""")
    tab.get_by_role("button", name="Generate").click()
    message = tab.wait_for_selector('[aria-label="output"] .failure').inner_text()
    assert "stopped in the middle" in message and message.endswith("?")
    assert tab.get_by_role("button", name="Generate").is_enabled()
