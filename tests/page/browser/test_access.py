"""Every screen for everybody: axe in four looks, each control by keyboard, narrow windows and twice
the size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

AXE = Path(__file__).parents[3] / "web/node_modules/axe-core/axe.min.js"
SERIOUS = """async rules => (await axe.run(document, { resultTypes: ['violations'], ...rules })).violations
  .filter(one => ['serious', 'critical'].includes(one.impact))
  .map(one => [one.id, one.nodes.slice(0, 3).map(node => node.html.slice(0, 200))])"""
# the rules to which a theme makes a difference
COLOURS = {"runOnly": ["color-contrast", "link-in-text-block"]}
CELL = "inside?m=llama&t=the+cat+sat&l=0&op=decoder.blocks.0.attn.pattern&c=decoder.blocks.0.attn.pattern[0,2,1]"
VIEWS = {
    "playground": ("playground?m=llama&t=the+cat+sat", "aside .bars .num"),
    "inside": ("inside?m=llama&t=the+cat+sat", "main .op"),
    "block": ("inside?m=llama&t=the+cat+sat&l=0", "main .op"),
    "cell": (CELL, "section.cell .value .num"),
    "attention": ("attention?m=llama&t=the+cat+sat", ".looks [data-sum]"),
    "lens": ("lens?m=llama&t=the+cat+sat", "main .num"),
    "circuit": ("circuit?m=llama&t=the+cat+sat", "main form.card"),
    "tokens": ("tokens?m=llama", "main .pieces"),
    "experts": ("experts?m=mixture&t=the+cat+sat", "main .num"),
    "train": ("train?m=llama", "main p"),
    "compare": ("compare?m=llama&t=the+cat+sat", "main .num"),
    "seq2seq": ("playground?m=t5&t=the+cat&s=a+dog", "aside .bars .num"),
    "fill": ("playground?m=bert&t=the+___+sat", "aside .bars .num"),
}
"""Screens with what stands there when they are ready."""
REACHED = """() => {
  const all = [...document.querySelectorAll('button, select, input, textarea, [tabindex="0"], a[href]')]
    .filter(one => !one.disabled && one.tabIndex >= 0 && one.checkVisibility());
  all.forEach(one => delete one.dataset.reached);
  return all.length;
}"""
WATCH = """() => {
  window.__unseen = [];
  document.addEventListener('focusin', ({ target }) => {
    const look = getComputedStyle(target);
    target.dataset.reached = '1';
    if (look.outlineStyle === 'none' && look.boxShadow === 'none') __unseen.push(target.outerHTML.slice(0, 200));
  });
}"""
LEFT = """() => [...document.querySelectorAll('button, select, input, textarea, [tabindex="0"], a[href]')]
  .filter(one => !one.disabled && one.tabIndex >= 0 && one.checkVisibility() && !one.dataset.reached)
  .map(one => one.outerHTML.slice(0, 120))"""

FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
LOOKS = """() => [...document.querySelectorAll('header .tab:not(.off)')].map(one => getComputedStyle(one))
  .map(look => [look.backgroundColor, look.borderColor])"""


def opened(tab: Any, site: Any, name: str) -> None:
    """The screen, with its numbers."""
    view, ready = VIEWS[name]
    tab.goto(f"{site.url}#{view}")
    tab.wait_for_selector(ready, state="attached")
    tab.wait_for_load_state("networkidle")


# opened once for the three tests below
every_screen = pytest.mark.parametrize("screen", VIEWS, indirect=True)


@every_screen
def test_nothing_is_wider_than_the_window(screen, site):
    """Covers a phone's window and one that grows; 683 is a window of 1366 at 200 %."""
    screen.set_viewport_size({"width": 320, "height": 800})
    opened(screen, site, screen.name)
    for width in (320, 390, 683, 900, 1366, 320):
        screen.set_viewport_size({"width": width, "height": 800})
        screen.evaluate(FRAMES)
        assert screen.evaluate("document.documentElement.scrollWidth") <= width
        assert screen.evaluate("document.querySelectorAll('*').length") <= 3000


@every_screen
def test_no_serious_finding_of_axe(screen, site):
    if not AXE.exists():
        pytest.skip("needs axe-core: npm ci in web/")
    if screen.url == "about:blank":
        opened(screen, site, screen.name)
    screen.evaluate(AXE.read_text(encoding="utf-8"))
    for width in (390, 1366):
        screen.set_viewport_size({"width": width, "height": 900})
        for scheme, rules in (("dark", COLOURS), ("light", {})):
            screen.emulate_media(color_scheme=scheme)
            screen.evaluate(FRAMES)
            metrics = screen.evaluate(SERIOUS, rules)
            assert not metrics, (scheme, width, metrics)


@every_screen
def test_every_control_is_reached_by_tab_and_seen_there(screen, site):
    screen.set_viewport_size({"width": 1366, "height": 900})
    if screen.url == "about:blank":
        opened(screen, site, screen.name)
    count = screen.evaluate(REACHED)
    screen.evaluate(WATCH)
    for pressed in range(count + 40):
        screen.keyboard.press("Tab")
        if pressed % 10 == 9 and not screen.evaluate(LEFT):
            break
    assert screen.evaluate("() => __unseen") == []
    assert screen.evaluate(LEFT) == []


@pytest.mark.parametrize("name", ["attention", "inside", "playground", "experts"])
def test_forced_colours_and_less_motion_leave_it_readable(name, site, tab):
    """The chosen tab and what is pressed differ from the others by more than a background, which is
    taken away."""
    tab.emulate_media(forced_colors="active", reduced_motion="reduce")
    opened(tab, site, name)
    looks = tab.evaluate(LOOKS)
    assert len({tuple(look) for look in looks}) > 1
    moving = (
        "() => document.getAnimations().filter(one => one.effect.getTiming().duration > 0).length"
    )
    assert tab.evaluate(moving) == 0
