"""Small things that a reader sees at once: what is said while a text is read, lines that fit, labels
that do not touch, names for runs."""

from __future__ import annotations

from itertools import pairwise
from urllib.parse import urlencode

from apart import SENTENCE

# of each label that is drawn: whether it lies flat, its middle, its width, its text
LABELS = """() => {
  const plain = CanvasRenderingContext2D.prototype.fillText;
  window.labels = [];
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    const m = this.getTransform(), wide = this.measureText(text).width;
    const label = [m.b === 0, m.e / m.a + x, wide, text];
    if (this.font.startsWith("11px") && this.textAlign !== "right") window.labels.push(label);
    return plain.call(this, text, x, y);
  };
}"""


def test_numbers_are_of_the_text_that_was_cut(site, tab):
    tab.goto(f"{site.url}#tokens?tn=gpt&tt=the+cat")
    panel = tab.get_by_role("region", name="tokenizer gpt", exact=True)
    panel.get_by_text("✓ decodes to the same text", exact=True).wait_for()
    waiting = []
    tab.route("**/api/tokenize", lambda route: waiting.append(route))
    with tab.expect_request("**/api/tokenize"):
        tab.get_by_role("textbox", name="the text to cut", exact=True).fill("the dog " * 40)
    panel.get_by_text("reads the new text …", exact=True).wait_for()
    assert (
        panel.locator('.facts [data-addr^="tokenize."]').count() == 0
        and "✓" not in panel.inner_text()
    )
    for route in waiting:
        route.continue_()
    panel.get_by_text("✓ decodes to the same text", exact=True).wait_for()
    ratio = panel.locator('[data-addr="tokenize.gpt.characters_per_token"]').get_attribute("data-v")
    tokens = panel.locator('[data-addr="tokenize.gpt.tokens"]').get_attribute("data-v")
    assert abs(float(ratio) * int(tokens) - len("the dog " * 40)) < 1e-6


def test_a_model_that_cannot_read_the_example(site, window):
    """A tokenizer of characters may have no capital T; the reader did not write that text."""
    message = 'The tokenizer does not know the character "T".'
    refusal = {"status": 400, "json": {"error": message}}
    tab = window.new_page()  # the console of a checked tab stays empty
    tab.route("**/api/runs", lambda route: route.fulfill(**refusal))
    tab.goto(f"{site.url}#inside?m=gpt")
    failure = tab.locator(".failure")
    failure.wait_for()
    example = "The example's text does not suit this model. Type a text of your own. "
    assert failure.inner_text() == example + message
    tab.locator("#prompt").fill("The cat")
    tab.get_by_role("button", name="Run").click()
    tab.get_by_text(message, exact=True).wait_for()
    tab.close()


def test_lines_of_code_are_whole(site, tab):
    query = {"m": "llama", "t": SENTENCE, "d": "code", "l": 0, "op": "decoder.blocks.0.attn.in"}
    tab.set_viewport_size({"width": 390, "height": 800})
    tab.goto(f"{site.url}#inside?{urlencode(query)}")
    line = tab.locator("aside pre code")
    line.wait_for()
    assert "rms_norm" in line.inner_text()
    assert tab.evaluate(
        "() => { const e = document.querySelector('aside pre');"
        " return e.scrollWidth <= e.clientWidth }"
    )


def test_labels_of_a_matrix_do_not_touch(site, tab):
    """Fifteen tokens in a row, most of them [MASK], which is wider than its column."""
    tab.add_init_script(f"({LABELS})()")
    tab.goto(f"{site.url}#attention?{urlencode({'m': 'bert', 't': '___ ' * 12 + 'cat'})}")
    tab.wait_for_function("() => window.labels.filter(one => one[3] === '[MASK]').length >= 12")
    assert tab.locator(".text .token").count() == 15
    flat = tab.evaluate("() => window.labels.filter(one => one[0]).map(one => one.slice(1, 3))")
    for (x, wide), (after, next_wide) in pairwise(flat):
        assert after <= x or x + wide / 2 <= after - next_wide / 2


def test_numbers_are_named_by_their_model(site, tab):
    tab.goto(f"{site.url}#compare?{urlencode({'m': 'gpt', 'cb': 'llama', 't': SENTENCE})}")
    for name, model in (("answer of A", "gpt"), ("answer of B", "llama")):
        numbers = tab.get_by_role("region", name=name, exact=True).locator(".num")
        numbers.nth(4).wait_for()
        assert numbers.nth(4).get_attribute("title").startswith(f"softmax({model}:logits")
