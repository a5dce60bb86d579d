"""Every number on Inside and Playground is the model's: a plain forward pass of a model loaded
apart says so."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from apart import FAMILIES, close, numbers, probed, quick, typed
from glassformer.formats import store

PLAN = """async () => {
  const runs = performance.getEntriesByType('resource').map(one => /runs.(r_[0-9a-f]+)/.exec(one.name)).filter(Boolean);
  return (await (await fetch('api/runs/' + runs.pop()[1])).json()).plan.map(op => op.id);
}"""
GO = """id => {
  const [name, rest] = location.hash.slice(1).split('?'), all = new URLSearchParams(rest);
  all.set('op', id);
  all.delete('c');
  location.hash = name + '?' + all;
}"""
CELL = """before => {
  const here = document.querySelector('section.cell:not([aria-busy=true])'), shown = here?.querySelector('.value .num');
  if (!shown || shown.dataset.addr === before) return null;
  return {
    address: shown.dataset.addr,
    value: shown.dataset.v,
    kind: here.querySelector('.value .tag').innerText,
    again: here.querySelector('[data-recomputed]')?.dataset.recomputed,
    operands: [...here.querySelectorAll('button.num.link')].map(one => [one.dataset.addr, one.dataset.v]),
  };
}"""
SHOWN = """id => {
  const grid = document.querySelector('main [role=grid]');
  if (document.querySelector('main h2 code')?.textContent !== id || !grid) return false;
  const box = grid.getBoundingClientRect();
  return (window.__glassformer.probe(box.right - 3, box.bottom - 3)?.addr ?? '').startsWith(id + '[');
}"""


@pytest.mark.parametrize("name", quick("bert", "mixture"))
def test_what_inside_draws_is_the_models(name, site, tab):
    """200 points of canvases picked at random, of every value that a tape records, read by what is
    drawn there."""
    apart, luck = typed(tab, site, name, "inside"), random.Random(name)
    tab.wait_for_selector(".cards .op")
    plan = tab.evaluate(PLAN)
    listed = [id for id in plan if id in apart]
    assert len(listed) > 15
    checked, output = 0, set()
    for id in luck.sample(listed, min(len(listed), 24)):
        tab.evaluate(GO, id)
        tab.wait_for_function(SHOWN, arg=id)
        box = tab.locator("main [role=grid]").first.bounding_box()
        high = min(box["height"], 850 - box["y"])
        points = [
            (box["x"] + luck.random() * box["width"], box["y"] + luck.random() * high)
            for _ in range(16)
        ]
        for address, displayed in probed(tab, points):
            assert close(displayed, apart[address]), (address, displayed, apart[address])
            checked += 1
            output.add(address)
    assert checked >= 200 and len(output) > 100, (checked, len(output))


@pytest.mark.parametrize("name", quick("gpt", "t5"))
def test_a_cell_opens_to_its_arithmetic_and_every_operand_is_the_models(name, site, tab):
    """From the answer's probability back, operand by operand, to a weight or a token, without a
    dead end."""
    apart = typed(tab, site, name, "inside")
    last = len(apart.values["logits"]) - 1
    best = int(apart.values["logits"][last].argmax())
    tab.evaluate(
        "cell => { location.hash = location.hash + '&op=probs&c=' + encodeURIComponent(cell) }",
        f"probs[{last},{best}]",
    )
    calls: list[str] = []
    for _ in range(400):
        cell = tab.wait_for_function(CELL, arg=calls[-1] if calls else "").json_value()
        address, value, kind = cell["address"], float(cell["value"]), cell["kind"]
        calls.append(address)
        if address in apart:
            assert close(value, apart[address]), address
        if kind in ("weight", "leaf"):
            break
        assert close(value, float(cell["again"])), (address, value, cell["again"])
        for operand, displayed in cell["operands"][:12]:
            if operand in apart and displayed not in ("", "-Infinity"):
                assert close(float(displayed), apart[operand]), operand
        assert cell["operands"], f"{address} is a dead end"
        tab.locator("section.cell button.num.link").first.click()
    assert kind in ("weight", "leaf") and len(calls) > 5, calls


@pytest.mark.parametrize("name", FAMILIES)
def test_the_playgrounds_probabilities_are_the_models(name, site, tab):
    apart = typed(tab, site, name, "playground")
    tab.wait_for_selector("aside .bars .num")
    displayed = numbers(tab.locator("aside .bars [data-addr]"))
    assert len(displayed) >= 14
    for address, value in displayed:
        assert close(value, apart[address]), address
    row = apart.values["probs"][int(re.search(r"\[(\d+)", displayed[0][0]).group(1))]
    bits = float(-(row * row.log2()).sum())
    assert close(float(tab.locator("[data-entropy]").get_attribute("data-v")), bits)


OPEN = """cell => {
  const rest = location.hash.replace(/&(op|c)=[^&]*/g, '');
  location.hash = rest + '&op=' + cell.split('[')[0] + '&c=' + cell;
}"""


def opened(tab: Any, cell: str) -> list[Any]:
    """The rows of a cell's terms."""
    tab.evaluate(OPEN, cell)
    tab.wait_for_selector(f"section.cell:not([aria-busy=true]) .value .num[data-addr='{cell}']")
    return list(tab.locator("section.cell .terms tbody tr").all())


def test_a_number_of_a_sum_stands_beside_the_name_of_its_own_part(site, tab):
    typed(tab, site, "llama", "inside")
    for order in ("by size", "by index"):
        rows = opened(tab, "decoder.blocks.1.resid[2,3]")
        tab.get_by_role("button", name=order).click()
        names = [row.locator("code").inner_text().strip() for row in rows]
        assert sorted(names) == ["L1.ffn.write", "L1.mid"]
        for row, name in zip(rows, names, strict=True):
            address = row.locator("button.num").get_attribute("data-addr")
            assert address == f"decoder.blocks.{name[1:]}[2,3]"
        assert "L1" not in tab.locator("section.cell .terms thead").inner_text()


def test_every_term_of_a_probability_is_shown_with_its_word(site, tab):
    apart, tokenizer = typed(tab, site, "llama", "inside"), store.load(site.folders["llama"])[1]
    rows, count = opened(tab, "probs[2,10]"), apart.values["probs"].shape[-1]
    assert len(rows) == 65 < count
    tab.get_by_role("button", name=f"show more of {count - 64}").click()
    tab.wait_for_function(
        "() => document.querySelectorAll('section.cell .terms tbody tr').length > 65"
    )
    while tab.get_by_role("button", name="show more of").count():
        tab.get_by_role("button", name="show more of").click()
        tab.wait_for_timeout(300)
    tab.wait_for_selector("section.cell .terms td.mono")
    displayed = tab.locator("section.cell .terms tbody tr").evaluate_all(
        "all => all.map(row => [...row.children].slice(0, 2).map(one => one.textContent))"
    )
    assert sorted(int(id) for id, _ in displayed) == list(range(count))
    for id, word in displayed:
        if not tokenizer.hides(int(id)) and (text := tokenizer.decode([int(id)]).strip()).isalnum():
            assert word.strip("·") == text
