"""The whole model as one drawing: its boxes and arrows are the plan's, and a click goes in."""

from __future__ import annotations

import pytest

from apart import quick, typed

# title, shape as it is written and width of each box, by group
BOXES = """group => [...document.querySelectorAll(`.flow [aria-label="${group}"] .part`)].map(one =>
  [one.querySelector('b').textContent, one.querySelector('small').textContent, one.offsetWidth])"""
ARROWS = (
    """kind => [...document.querySelectorAll(`.flow path${kind}`)].map(one => one.dataset.arrow)"""
)
ENDS = {  # of each cross arrow: whether it ends at the left edge of the box that it names
    "cross": """() => [...document.querySelectorAll('.flow path.cross')].map(one => {
      const name = one.dataset.arrow.split(' > ').pop(), end = one.getPointAtLength(one.getTotalLength());
      const part = [...document.querySelectorAll('.flow [data-part]')].find(box => box.dataset.part === name);
      const zero = document.querySelector('.flow').getBoundingClientRect(), box = part.getBoundingClientRect();
      return Math.abs(box.left - zero.left - end.x) < 2 && end.y > box.top - zero.top && end.y < box.bottom - zero.top;
    })"""
}
FAMILY = {  # blocks of the stacks, and what stands in each
    "gpt": {"decoder": ["Self-attention", "Feed-forward"]},
    "llama": {"decoder": ["Self-attention", "Feed-forward"]},
    "mixture": {"decoder": ["Self-attention", "Mixture of experts"]},
    "odd": {"decoder": ["Self-attention", "Feed-forward"]},
    "bert": {"encoder": ["Self-attention", "Feed-forward"]},
    "t5": {
        "encoder": ["Self-attention", "Feed-forward"],
        "decoder": ["Self-attention", "Cross-attention", "Feed-forward"],
    },
}


@pytest.mark.parametrize("name", quick("llama", "t5", "bert", "mixture"))
def test_every_block_is_drawn_with_its_parts_and_shapes(name, site, tab):
    apart = typed(tab, site, name, "inside")
    tab.get_by_role("group", name="the whole model", exact=True).wait_for()
    tab.wait_for_function("() => document.querySelectorAll('.flow path[data-arrow]').length > 4")
    arrows = tab.evaluate(ARROWS, "[data-arrow]")
    for stack, titles in FAMILY[name].items():
        for layer in (0, 1):
            boxes = tab.evaluate(BOXES, f"{stack} block {layer}")
            assert [title for title, _, _ in boxes] == titles
            for title, shape, _ in boxes:
                sub = {"Self-attention": "attn", "Cross-attention": "cross"}.get(title, "ffn")
                path = f"{stack}.blocks.{layer}.{sub}"
                true = "×".join(str(side) for side in apart.values[f"{path}.write"].shape)
                assert shape.split(" ")[0] == true
                if title == "Feed-forward":
                    hidden = apart.values[f"{path}.hidden"].shape[-1]
                    assert shape == f"{true} ({hidden})"
            widths = {title: width for title, _, width in boxes}
            if "Feed-forward" in widths:  # four or two times as wide a vector, and so a wider box
                assert widths["Feed-forward"] > widths["Self-attention"]
            inside = f"{stack}.{layer}/"
            assert sum(inside in arrow.split(" > ")[0] for arrow in arrows) >= len(titles) - 1
        assert f"{stack}.0 > {stack}.1" in arrows
    names = tab.locator(".flow .part b").all_inner_texts()
    assert names.count("Embedding") == len(FAMILY[name]) and "Head" in names
    if name == "t5":
        cross = tab.evaluate(ARROWS, ".cross")
        assert [arrow.split(" > ")[1] for arrow in cross] == ["decoder.0/cross", "decoder.1/cross"]
        assert tab.evaluate(ENDS["cross"]) == [True, True]
    else:
        assert tab.evaluate(ARROWS, ".cross") == []


def test_the_answer_is_the_models(site, tab):
    apart = typed(tab, site, "llama", "inside")
    answer = tab.get_by_role("group", name="the whole model", exact=True).get_by_role(
        "button", name="Answer"
    )
    number = answer.locator(".num")
    number.wait_for()
    best = apart.values["probs"][-1].max()
    assert abs(float(number.get_attribute("data-v")) - float(best)) < 1e-5


def test_a_click_goes_in(site, tab):
    typed(tab, site, "t5", "inside")
    block = tab.get_by_role("group", name="decoder block 1", exact=True)
    block.get_by_role("button", name="Cross-attention").click()
    tab.wait_for_selector('.cards button[title^="decoder.blocks.1.cross.pattern:"]')
    titles = tab.locator(".cards button.op").evaluate_all("all => all.map(one => one.title)")
    assert all(title.startswith("decoder.blocks.1.cross.") for title in titles)
    crumbs = tab.get_by_role("navigation", name="where you are", exact=True)
    crumbs.get_by_role("button", name="map", exact=True).click()
    tab.get_by_role("button", name="open encoder block 0", exact=True).click()
    tab.get_by_role("region", name="Feed-forward", exact=True).wait_for()
    tab.wait_for_selector('.cards button[title^="encoder.blocks.0.ffn.hidden:"]')
    crumbs.get_by_role("button", name="map", exact=True).click()
    tab.get_by_role("button", name="Source tokens").click()
    tab.get_by_role("heading", name="Source token numbers source", exact=True).wait_for()


def test_it_fits_a_small_window(site, tab):
    tab.set_viewport_size({"width": 390, "height": 800})
    typed(tab, site, "t5", "inside")
    tab.wait_for_function("() => document.querySelectorAll('.flow path.cross').length === 2")
    assert tab.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    overlap = tab.evaluate(
        "() => { const [a, b] = [...document.querySelectorAll('.flow .column')].map(column =>"
        " [...column.querySelectorAll('.part')].map(one => one.getBoundingClientRect()));"
        " return Math.max(...a.map(one => one.right)) > Math.min(...b.map(one => one.left)) }"
    )
    assert not overlap
