"""What stands on the screen before a model is loaded: the build's example, marked, then the
server's own run."""

from __future__ import annotations

from typing import Any

import pytest

NUMBERS = {
    "playground": "aside .bars .num",
    "inside": "main .num[data-length]",
    "attention": '[aria-label="one head"] .looks [data-sum]',
    "lens": "main .num",
}


@pytest.fixture
def waiting(tab, site):
    """A tab whose server has loaded nothing and reads no text until ``release`` is called."""
    stored: list[Any] = []
    released: list[bool] = []

    def unloaded(route):
        answer = route.fetch()
        route.fulfill(response=answer, json=[item | {"loaded": False} for item in answer.json()])

    tab.route("**/api/models", unloaded)

    def release():
        released.append(True)  # a run that is asked for only now passes too
        for route in stored:
            route.continue_()

    tab.route("**/api/runs", lambda route: route.continue_() if released else stored.append(route))
    tab.release = release
    return tab


@pytest.mark.parametrize("view", NUMBERS)
def test_numbers_are_shown_while_no_model_is_loaded(view, site, waiting):
    waiting.goto(f"{site.url}#{view}")
    waiting.wait_for_selector(NUMBERS[view])
    assert "an example from the build: tiny-page" in waiting.locator("[data-prebaked]").inner_text()
    assert waiting.locator(".failure").count() == 0
    waiting.release()
    waiting.wait_for_selector("[data-prebaked]", state="detached")
    waiting.wait_for_selector(NUMBERS[view])
    assert waiting.locator('select[aria-label="model"]').input_value() == "gpt"
    assert "The animal didn't cross" in waiting.locator("#prompt").input_value()
    assert waiting.locator(".failure").count() == 0


def test_a_link_is_not_kept_waiting_by_the_example(site, waiting):
    waiting.goto(f"{site.url}#inside?m=llama&t=a+cat")
    waiting.wait_for_selector("main .note")
    assert (
        waiting.locator("[data-prebaked]").count() == 0
        and waiting.locator("main .num").count() == 0
    )
    waiting.release()
    waiting.wait_for_selector("footer .badge")


def test_another_text_may_be_asked_for_meanwhile(site, waiting):
    waiting.goto(f"{site.url}#playground")
    waiting.wait_for_selector("[data-prebaked]")
    waiting.fill("#prompt", "a dog")
    waiting.press("#prompt", "Enter")
    waiting.wait_for_timeout(200)
    waiting.release()
    waiting.wait_for_selector("[data-prebaked]", state="detached")
    waiting.wait_for_function("() => document.querySelectorAll('.text .token').length < 8")
    assert waiting.locator("#prompt").input_value() == "a dog"
