"""The tour: each step rings an element that is there; it can be skipped, and only this browser
remembers it."""

from __future__ import annotations

from urllib.parse import urlencode

from apart import SENTENCE

TITLES = [
    "The text",
    "The answer",
    "The whole model",
    "Any number",
    "Find the head",
    "What if",
    "Depth by depth",
]
# whether the ring stands round the element that it names, which is seen and has a size
RINGED = """title => {
  const heading = document.querySelector('.tour h2'), ring = document.querySelector('.ring');
  if (!heading?.textContent.startsWith(title) || !ring) return false;
  const found = document.querySelectorAll(ring.dataset.ring);
  if (found.length !== 1) return false;  // its screen is still drawn
  const a = ring.getBoundingClientRect(), b = found[0].getBoundingClientRect();
  return b.width > 40 && b.height > 20 && Math.abs(a.left + 4 - b.left) < 3 &&
    Math.abs(a.top + 4 - b.top) < 3 && Math.abs(a.width - 8 - b.width) < 3 && b.top < innerHeight && b.bottom > 0;
}"""


def test_every_step_points_at_what_is_there(site, tab):
    tab.goto(f"{site.url}#playground?{urlencode({'m': 'llama', 't': SENTENCE})}")
    tab.wait_for_selector("footer .badge")
    button = tab.get_by_role("button", name="Tour", exact=True)
    button.click()
    dialog, count = tab.get_by_role("dialog", name="tour", exact=True), 0
    for nth, title in enumerate(TITLES):
        tab.wait_for_function(RINGED, arg=title)
        assert f"{nth + 1} of {len(TITLES)}" in dialog.inner_text()
        count += len(dialog.locator("p").inner_text().split())
        if nth == 2:  # a reader may act while it is shown, and come back
            dialog.get_by_role("button", name="Back", exact=True).click()
            tab.wait_for_function(RINGED, arg=TITLES[1])
            dialog.get_by_role("button", name="Next", exact=True).click()
            tab.wait_for_function(RINGED, arg=title)
        last = nth + 1 == len(TITLES)
        dialog.get_by_role("button", name="Done" if last else "Next", exact=True).click()
    dialog.wait_for(state="detached")
    assert count < 240  # read in two minutes at 120 words a minute
    assert tab.evaluate("() => localStorage.getItem('glassformer.tour')") == "done"
    assert "tour" not in tab.url and tab.context.cookies() == []


def test_it_is_skipped_and_goes_on_where_it_was(site, tab):
    tab.goto(f"{site.url}#playground?{urlencode({'m': 'bert', 't': SENTENCE})}")
    tab.wait_for_selector("footer .badge")
    tab.get_by_role("button", name="Tour", exact=True).click()
    dialog = tab.get_by_role("dialog", name="tour", exact=True)
    dialog.get_by_role("button", name="Next", exact=True).click()
    tab.wait_for_function(RINGED, arg="The answer")
    tab.reload()
    tab.wait_for_selector("footer .badge")
    tab.get_by_role("button", name="Tour", exact=True).click()
    tab.wait_for_function(RINGED, arg="The answer")
    dialog.get_by_role("button", name="Skip the tour", exact=True).click()
    dialog.wait_for(state="detached")
    tab.reload()
    tab.wait_for_selector("footer .badge")
    button = tab.get_by_role("button", name="Tour", exact=True)
    assert button.get_attribute("class") == "quiet"
    button.click()
    tab.wait_for_function(RINGED, arg="The text")
    tab.keyboard.press("Escape")
    dialog.wait_for(state="detached")


def test_the_page_opens_on_the_whole_model_and_it_looks_at_animal(new_tab, serving):
    """With the model of the package, one click from the drawing: the head that looks from "it" to
    "animal" with more than half of its weight."""
    with serving() as url:
        new_tab.goto(url)
        new_tab.wait_for_selector("footer .badge")
        new_tab.get_by_role("group", name="the whole model", exact=True).wait_for()
        new_tab.get_by_role("button", name="Attention", exact=True).click()
        new_tab.get_by_role(
            "heading", name="Decoder self · layer 3 · head 1", exact=True
        ).wait_for()
        pair = '[aria-label="find the head"] .ranked[aria-label="heads by their weight from ·it to ·an"]'
        best = new_tab.locator(f"{pair} .num").first
        best.wait_for()
        assert float(best.get_attribute("data-v")) > 0.5
        assert best.get_attribute("data-addr") == "decoder.blocks.3.attn.pattern[1,17,1]"
        new_tab.goto("about:blank")  # before its server ends, which later pictures would ask
