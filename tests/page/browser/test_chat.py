"""A conversation in a browser: written as it comes, stopped, answered anew, and a token opened to its
logit."""

from __future__ import annotations

import time

import pytest
import torch

pytest.importorskip("jinja2", reason="chat templates need jinja2")

import glassformer
import served
from apart import close
from folders import read_json
from glassformer.formats.chat_template import CHATML, ChatTemplate
from glassformer.sight import answers

SEEDS = (3, 4, 5)  # of answers that do not end soon


@pytest.fixture(scope="module")
def talker(tmp_path_factory, serving):
    """A page over a model with a chat template, and over a base model."""
    folder = tmp_path_factory.mktemp("chat")
    models = served.talker(folder / "mine"), served.saved("gpt2", folder / "base")
    with serving(*models) as url:
        yield url, folder / "mine"


@pytest.fixture
def slow(monkeypatch):
    """A tenth of a second for each token that is written."""
    write = answers.tokens
    monkeypatch.setattr(answers, "tokens", lambda *args: time.sleep(0.1) or write(*args))


def say(tab, text):
    tab.get_by_label("message", exact=True).fill(text)
    tab.get_by_label("message", exact=True).press("Enter")


def test_a_chat_is_stopped_goes_on_and_shows_why(talker, new_tab, slow):
    url, folder = talker
    tab, seeds = new_tab, iter(SEEDS)
    tab.route(
        "**/api/generate",
        lambda route: route.continue_(
            post_data={**route.request.post_data_json, "seed": next(seeds)}
        ),
    )
    tab.goto(f"{url}#chat?m=mine")
    tab.get_by_label("system message").fill("a mat")
    say(tab, "the cat")
    tab.wait_for_function("() => document.querySelectorAll('.answer button').length > 6")
    tab.get_by_role("button", name="Stop").click()
    tab.wait_for_selector("text=The answer was stopped")
    ids = [int(token.get_attribute("data-id")) for token in tab.locator(".answer button").all()]
    with tab.expect_request("**/api/generate") as request:
        tab.get_by_role("button", name="Regenerate").click()
    messages = request.value.post_data_json["messages"]
    assert messages == [
        {"role": "system", "content": "a mat"},
        {"role": "user", "content": "the cat"},
    ]
    tab.wait_for_function("() => document.querySelectorAll('.answer button').length > 6")
    tab.get_by_role("button", name="Stop").click()
    tab.wait_for_selector("text=The answer was stopped")
    again = [int(token.get_attribute("data-id")) for token in tab.locator(".answer button").all()]
    assert again[:7] != ids[:7]
    with tab.expect_download() as saved:
        tab.get_by_role("button", name="Save").click()
    record = read_json(saved.value.path())["messages"]
    assert record[:2] == messages and record[2]["role"] == "assistant"
    with tab.expect_request("**/api/generate") as request:
        say(tab, "the dog")
    assert request.value.post_data_json["messages"] == [
        *record,
        {"role": "user", "content": "the dog"},
    ]
    tab.locator('[aria-label="answer 1"] button').nth(5).click()
    model, tokenizer = glassformer.load(folder)
    prompt = [*ChatTemplate(CHATML, tokenizer).tokens(messages), *again[:5]]
    value = tab.wait_for_selector('[aria-label="the arithmetic of one number"] .value .num')
    with torch.no_grad():
        logit = float(model(torch.tensor([prompt])).logits[0, -1, again[5]])
    assert value.get_attribute("data-addr") == f"logits[{len(prompt) - 1},{again[5]}]"
    assert close(float(value.get_attribute("data-v")), logit)


def test_a_base_model_says_that_it_is_one(talker, new_tab):
    new_tab.goto(f"{talker[0]}#chat?m=base")
    new_tab.wait_for_selector("text=This is a base model: it has no chat template")
    assert new_tab.locator(".tab.off", has_text="Chat").count() == 1
    new_tab.get_by_label("model", exact=True).select_option("mine")
    new_tab.get_by_label("message", exact=True).wait_for()
