"""The Circuit screen draws the JSON of the command, node by node and edge by edge, and saves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from apart import SENTENCE, SOURCE, close, typed
from folders import read_json
from glassformer.formats import store
from glassformer.sight import circuit
from page.browser.test_access import AXE, SERIOUS

DRAWN = "all => all.map(one => [one.dataset.node ?? one.dataset.edge, Number(one.dataset.v)])"
CROSSING = """() => [...document.querySelectorAll('[data-node] rect')].map(one => one.getBBox())
  .some((a, at, all) => all.some((b, other) => other > at && a.x < b.x + b.width && b.x < a.x + a.width
    && a.y < b.y + b.height && b.y < a.y + a.height))"""


def request_circuit(tab: Any) -> Any:
    """Asks, and returns the answer of the server."""
    tab.get_by_label("answer", exact=True).fill("7")
    tab.get_by_label("instead of").fill("9")
    tab.get_by_label("least share").fill("0.1")
    with tab.expect_response("**/circuit") as response:
        tab.get_by_role("button", name="Find the circuit").click()
    tab.wait_for_selector("[data-node]")
    return response.value.json()


@pytest.mark.parametrize("name", ["mixture", "t5"])
def test_the_picture_is_the_commands_json(name, site, tab):
    apart = typed(tab, site, name, "circuit")
    answer = request_circuit(tab)
    model, tokenizer = store.load(site.folders[name])
    source = SOURCE if name == "t5" else None
    options = {"answer": "7", "instead": "9", "least": 0.1}
    result = circuit(model, tokenizer, SENTENCE, source=source, **options)
    assert answer == json.loads(json.dumps(result.to_dict()))
    nodes = {node["address"]: node["value"] for node in answer["nodes"]}
    edges = [[f"{x['writer']} > {x['reader']}", x["value"]] for x in answer["edges"]]
    assert dict(tab.locator("[data-node]").evaluate_all(DRAWN)) == nodes and len(nodes) > 4
    assert sorted(tab.locator("[data-edge]").evaluate_all(DRAWN)) == sorted(edges)
    assert tab.locator("[data-random]").count() == len(answer["faithfulness"]["random"]) == 20
    assert not tab.evaluate(CROSSING), "two boxes lie on each other"
    with tab.expect_download() as download:
        tab.get_by_role("button", name="save JSON").click()
    assert read_json(Path(download.value.path())) == answer
    head = next(x["address"] for x in answer["nodes"] if "head" in x["kind"])
    tab.locator(f'[data-node="{head}"]').press("Enter")
    opened = tab.locator("section.cell .value .num")
    address = opened.get_attribute("data-addr")
    path, _, place = head.rstrip("]").partition("[")
    row = apart.values[path][tuple(map(int, place.split(",")))]
    assert address.startswith(head.rstrip("]")) and close(
        abs(float(opened.get_attribute("data-v"))), float(row.abs().max())
    )
    into = {x["writer"] for x in answer["edges"] if x["reader"] == head}
    values = tab.locator(f'[aria-label="node"] [data-addr$="> {head})"]')
    assert values.count() == len(into)
    if AXE.exists():
        tab.evaluate(AXE.read_text(encoding="utf-8"))
        assert tab.evaluate(SERIOUS, {}) == []
