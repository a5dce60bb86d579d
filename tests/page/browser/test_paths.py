"""Ways through the page: a cell by keyboard alone, links, hostile texts."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest


def tabbed(tab: Any, until: str, most: int = 120) -> None:
    """Tab until the focused element matches."""
    for _ in range(most):
        tab.keyboard.press("Tab")
        if tab.evaluate("until => document.activeElement.matches(until)", until):
            return
    raise AssertionError(f"{until} is not reached by Tab")


def test_type_open_a_cell_and_read_its_arithmetic_by_keyboard_alone(site, tab):
    tab.goto(f"{site.url}#playground?m=llama")
    tab.wait_for_selector(".text .token")
    tab.keyboard.press("/")
    tab.keyboard.press("Control+A")
    tab.keyboard.type("the cat sat")
    tab.keyboard.press("Enter")
    tab.wait_for_function("() => document.querySelectorAll('.text .token').length < 12")
    tab.keyboard.press("Escape")
    tab.keyboard.press("2")
    tab.keyboard.press("]")
    tab.wait_for_selector(".cards .op")
    tabbed(tab, "button.op[title^='decoder.blocks.0.attn.pattern']")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("main [role=grid]")
    tabbed(tab, "[role=grid]")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowDown")
    assert tab.locator("[role=gridcell]").first.inner_text()
    tab.keyboard.press("Enter")
    tab.wait_for_selector("section.cell .value .num")
    assert (
        tab.locator("section.cell .value .num").get_attribute("data-addr")
        == "decoder.blocks.0.attn.pattern[0,2,0]"
    )
    tabbed(tab, "section.cell button.num.link")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("section.cell .value .num[data-addr^='decoder.blocks.0.attn.scores']")
    tab.keyboard.press("Backspace")
    tab.wait_for_selector(
        "section.cell .value .num[data-addr='decoder.blocks.0.attn.pattern[0,2,0]']"
    )


def test_a_link_shows_the_same_screen(site, tab):
    body = {
        "m": "mixture",
        "t": "the dog",
        "l": 1,
        "op": "decoder.blocks.1.ffn.router",
        "c": "decoder.blocks.1.ffn.router[1,2]",
    }
    tab.goto(f"{site.url}#inside?{urlencode(body)}")
    tab.wait_for_selector("section.cell .value .num")
    link, observed = tab.url, tab.locator("section.cell").inner_text()
    tab.goto("about:blank")
    tab.goto(link)
    tab.wait_for_selector("section.cell .value .num")
    assert tab.locator("section.cell").inner_text() == observed


@pytest.mark.parametrize(
    ("link", "message", "view"),
    [
        ("#v=attention", "The link names no model; llama stays.", "lens"),
        ("#inside?l=1", "The link names no model; llama stays.", "inside"),
        ("#inside?m=gone", "There is no model gone here; llama stays.", "inside"),
        ("#heads?m=llama", "There is no screen heads; lens stays.", "lens"),
        ("#inside?m=llama&l=1", "", "inside"),
    ],
)
def test_a_link_that_asks_for_what_is_not_here_leaves_what_is(link, message, view, site, tab):
    """Written into the address bar of an open page: model, text and numbers stay, and a sentence
    says so."""
    tab.goto(f"{site.url}#lens?m=llama&t=the+cat+sat")
    tab.wait_for_selector("main .num")
    words = tab.locator(".text .strip").inner_text()
    tab.evaluate("link => { location.hash = link }", link)
    tab.wait_for_function(
        "view => location.hash.startsWith('#' + view) && location.hash.includes('m=llama')",
        arg=view,
    )
    tab.wait_for_selector("main .num, main .op")
    assert tab.locator('select[aria-label="model"]').input_value() == "llama"
    assert (
        tab.locator("#prompt").input_value() == "the cat sat"
        and tab.locator(".text .strip").inner_text() == words
    )
    assert tab.locator("main > .note").all_inner_texts() == ([message] if message else [])
    assert tab.locator(".failure").count() == 0


@pytest.mark.parametrize("link", ["#v=x", "#inside?m=gone", "#gone", "#inside?m=gone&t=a+dog"])
def test_such_a_link_opens_the_first_model(link, site, tab):
    tab.goto(f"{site.url}{link}")
    tab.wait_for_function(
        "() => !document.querySelector('[data-prebaked]') && "
        "document.querySelector('footer .badge')"
    )
    assert tab.locator('select[aria-label="model"]').input_value() == "gpt"
    assert ("There is no" in "".join(tab.locator("main > .note").all_inner_texts())) == (
        "gone" in link
    )
    assert tab.locator("#prompt").input_value() == (
        "a dog" if "dog" in link else tab.locator("#prompt").input_value()
    )
    tab.wait_for_selector("main .num, main .op")
    assert tab.locator(".failure").count() == 0


def test_a_link_to_a_cell_shows_the_matrix_of_its_head(site, tab):
    cell = "decoder.blocks.0.attn.pattern[3,2,1]"
    tab.goto(
        f"{site.url}#inside?{urlencode({'m': 'gpt', 't': 'the cat sat', 'l': 0, 'op': cell[:-7], 'c': cell})}"
    )
    tab.wait_for_selector("section.cell .value .num")
    tab.wait_for_function(
        """head => {
      const box = document.querySelector('main [role=grid]').getBoundingClientRect();
      return __glassformer.probe(box.right - 3, box.bottom - 3)?.addr.includes(`pattern[${head},`);
    }""",
        arg=3,
    )
    assert "h=3" in tab.url


@pytest.mark.parametrize(
    "text", ["🎵鸟", "<img src=x onerror=alert(1)>", "שלום", "a", "the " * 400, "tab\there\nand"]
)
def test_any_text_is_read_or_refused_in_a_sentence(text, site, tab):
    tab.goto(f"{site.url}#inside?{urlencode({'m': 'llama', 't': text})}")
    tab.wait_for_selector("footer .badge, .failure")
    assert tab.locator("main img").count() == 0
    if len(text) > 1000:
        assert "left out" in tab.locator(".text .note").inner_text()


def test_hover_costs_no_request_and_no_repaint_of_the_matrix(site, tab):
    tab.goto(
        f"{site.url}#inside?m=llama&t=the+cat+sat+on+the+mat&l=0&op=decoder.blocks.0.attn.pattern"
    )
    tab.wait_for_selector("main [role=grid]")
    tab.wait_for_timeout(800)
    box = tab.locator("main [role=grid]").first.bounding_box()
    before, requests = tab.evaluate("({ ...__glassformer.counters })"), []
    tab.on("request", lambda item: requests.append(item.url))
    for at in range(20):
        tab.mouse.move(box["x"] + 60 + 5 * at, box["y"] + 60 + 4 * at)
    after = tab.evaluate("({ ...__glassformer.counters })")
    assert after["repaints"] == before["repaints"] and after["overlays"] > before["overlays"]
    assert not requests


def test_the_server_gone_is_said_in_a_sentence(site, tab):
    tab.goto(f"{site.url}#inside?m=gpt&t=the+cat")
    tab.wait_for_selector("footer .badge")
    tab.evaluate("() => { window.fetch = () => Promise.reject(new TypeError('gone')); }")
    tab.fill("#prompt", "another")
    tab.press("#prompt", "Enter")
    assert "does not answer" in tab.locator("main > .failure").inner_text()
