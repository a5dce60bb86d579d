"""Models of the library transformers on the page: the numbers of cells that are clicked are torch's."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import pytest

transformers = pytest.importorskip("transformers")

# ruff: noqa: E402
import torch

import recorded_models
from apart import close
from glassformer.serve.page.models import RecordedEntry
from glassformer.sight.recording import outside

TEXT, SOURCE = "the cat sat on a mat", "a dog and a log"
OPENED = """address => {
  const here = document.querySelector('section.cell:not([aria-busy=true])'), shown = here?.querySelector('.value .num');
  if (!shown || !shown.dataset.addr.startsWith(address)) return null;
  return {
    address: shown.dataset.addr,
    value: shown.dataset.v,
    again: here.querySelector('[data-recomputed]')?.dataset.recomputed,
    kind: here.querySelector('.value .tag').innerText,
    operands: here.querySelectorAll('button.num.link').length,
  };
}"""
PLACES = {  # a block, the cards that are opened, the linear layer and its name, the attention
    "Llama": (
        "layer 1",
        ("model.layers.1.self_attn",),
        ("q_proj", "query_states.linear"),
        "attentions",
    ),
    "Bert": (
        "E1",
        ("bert.encoder.layer.1.attention", "bert.encoder.layer.1.attention.self"),
        ("query", "query_layer.linear"),
        "attentions",
    ),
    "T5": (
        "layer 1",
        ("decoder.block.1.layer.1", "decoder.block.1.layer.1.EncDecAttention"),
        ("q", "query_states.linear"),
        "cross_attentions",
    ),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: recorded_models.saved(name, tmp_path_factory.mktemp(name)) for name in PLACES}


@pytest.fixture(scope="module")
def link(folders, serving):
    entries = [
        RecordedEntry(name, outside.from_transformers(str(folder)))
        for name, folder in folders.items()
    ]
    with serving(*entries) as url:
        yield url


def truth(folder: Any, name: str) -> tuple[Any, Any]:
    """What one layer and one attention give, by a pass that this library has no part in."""
    _, (*_, path), (layer, _), attentions = PLACES[name]
    kind = getattr(transformers, recorded_models.CLASSES[name])
    model = kind.from_pretrained(folder, attn_implementation="eager").eval()
    reader = transformers.AutoTokenizer.from_pretrained(folder)
    outputs: list[Any] = []
    model.get_submodule(f"{path}.{layer}").register_forward_hook(
        lambda module, args, output: outputs.append(output)
    )
    inputs = {"input_ids": torch.tensor([reader(TEXT)["input_ids"]])}
    if name == "T5":
        ids = [model.config.decoder_start_token_id, *inputs["input_ids"][0].tolist()]
        inputs = {"input_ids": torch.tensor([reader(SOURCE)["input_ids"]])}
        inputs["decoder_input_ids"] = torch.tensor([ids])
    with torch.no_grad():
        result = model(**inputs, output_attentions=True)
    return outputs[0], result[attentions][1]


def at(tensor: Any, address: str) -> float:
    return float(tensor[tuple(map(int, re.findall(r"\d+", address.partition("[")[2])))])


def card(tab: Any, title: str) -> Any:
    return tab.locator(f'.cards button[title^="{title}:"]')


def opened(tab: Any, address: str, x: float, y: float) -> dict[str, str]:
    """The cell that a click on the matrix of a value opens, ``x`` and ``y`` of its sides from the
    corner."""
    card(tab, address).click()
    tab.wait_for_selector(f'main h2 code:text-is("{address}")')
    grid = tab.locator("main [role=grid]").first
    grid.wait_for()
    tab.wait_for_timeout(200)
    box = grid.bounding_box()
    tab.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
    cell: dict[str, str] = tab.wait_for_function(OPENED, arg=f"{address}[").json_value()
    return cell


@pytest.mark.parametrize("name", PLACES)
def test_a_clicked_cell_is_torchs_number(name, folders, link, new_tab):
    tab = new_tab
    block, modules, (_, variable), _ = PLACES[name]
    linear, pattern = truth(folders[name], name)
    tab.goto(f"{link}#inside?{urlencode({'m': name, 't': TEXT, 's': SOURCE})}")
    tab.locator("main").get_by_role("button", name=block, exact=True).click()
    for module in modules:
        card(tab, module).click()
    crumb = tab.get_by_role("button", name=modules[-1].split(".1.", 1)[1], exact=True)
    cell = opened(tab, f"{modules[-1]}.pattern", 0.3, 0.8)
    assert close(float(cell["value"]), at(pattern, cell["address"]))
    assert close(float(cell["again"]), float(cell["value"])) and cell["kind"] == "softmax"
    crumb.click()
    cell = opened(tab, f"{modules[-1]}.{variable}", 0.4, 0.6)
    assert close(float(cell["value"]), at(linear, cell["address"]))
    tab.get_by_role("button", name="Code", exact=True).click()
    assert f"modeling_{name.lower()}.py:" in tab.locator("section.cell").inner_text()
    tab.get_by_role("button", name="Plain", exact=True).click()
    calls = 0
    while cell["operands"]:  # back along the largest term, to where the arithmetic begins
        before = cell["address"]
        tab.locator("section.cell button.num.link").first.click()
        tab.wait_for_function(
            "(before) => document.querySelector('section.cell .value .num')?.dataset.addr !== before",
            arg=before,
        )
        cell = tab.wait_for_function(OPENED, arg="").json_value()
        calls += 1
        assert calls < 300
    assert cell["kind"] in ("weight", "leaf") and calls > 1, cell


def test_all_heads_stand_side_by_side_and_nothing_is_offered_that_cannot_be_asked(link, new_tab):
    tab = new_tab
    tab.goto(f"{link}#attention?{urlencode({'m': 'T5', 't': TEXT, 's': SOURCE})}")
    groups = tab.locator('[aria-label="which attention"] button')
    groups.first.wait_for()
    assert groups.all_inner_texts() == ["Encoder self", "Decoder self", "Cross"]
    groups.nth(2).click()
    tab.wait_for_selector('[data-sum^="decoder.block.0.layer.1.EncDecAttention.pattern[0,0,"]')
    assert not tab.locator('[aria-label="what if"]').count()
    assert "log" in tab.locator(".looks").inner_text()
    tab.get_by_role("button", name="Lens", exact=True).click()
    assert "its own code" in tab.locator("main").inner_text()
    tab.get_by_role("button", name="Playground", exact=True).click()
    tab.wait_for_selector("aside .bars .num")
    tab.locator("aside .bars .name").first.click()
    tab.wait_for_selector('section.cell .value .num[data-addr^="lm_logits[0,"]')
