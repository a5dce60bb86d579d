"""A trace as one file: it holds the trace's numbers, is small, needs no network, and a real browser
shows it."""

from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

import glassformer
import tiny
from glassformer.serve.page.models import shipped
from glassformer.sight import export, wire
from mistakes import mistake
from test_packaging import licences

TEXT = "To be, or not to be: that is the question"
built = pytest.mark.skipif(
    not (Path(glassformer.__file__).parent / "static" / "inline.js").is_file(),
    reason="the page is not built (web/)",
)


@pytest.fixture(scope="module")
def trace():
    model, tokenizer = glassformer.load(shipped(), dtype="float32")
    assert tokenizer is not None
    return glassformer.trace(model, tokenizer, TEXT)


def inside(page):
    """The safetensors in a saved page."""
    results = re.search(r'id="glassformer-trace">([^<]*)<', page)
    assert results is not None
    return gzip.decompress(base64.b64decode(results[1]))


def facts(data):
    """Metadata beside the tensors."""
    size = int.from_bytes(data[:8], "little")
    return {
        key: json.loads(item)
        for key, item in json.loads(data[8 : 8 + size])["__metadata__"].items()
    }


@built
def test_a_saved_page_holds_the_numbers_bit_for_bit(trace, tmp_path):
    cells = ["logits[3,7]", "probs[3,7]"]
    path = trace.save(tmp_path / "it.html", cells=cells, computing=0)
    assert path.stat().st_size <= 2_000_000
    data = inside(path.read_text())
    tensors, output = load(data), facts(data)
    assert set(tensors) == {op.id for op in trace.plan}
    for address, values in tensors.items():
        expected = wire.TracePart(trace, address).to_array()
        assert values.tobytes() == expected.tobytes(), address
    (card,) = output["answers"]["GET api/models"]
    assert card["parameters"] == 917_760 and not card["abilities"]["generate"]
    assert card["name"] == "decoder" and card["unsaved"] == [
        "generate",
        "lens",
        "attribution",
        "edits",
    ]
    run = output["answers"][f"GET api/runs/{output['run']}"]
    raw = b"".join(base64.b64decode(item["bytes"]) for item in run["tokens"])
    assert (
        raw.decode() == TEXT and run["cut"] is None and run["saved"] == {"as": "f32", "left_out": 0}
    )
    query = export.canonical({"model": "decoder", "text": TEXT})
    assert output["answers"][f"POST api/runs {query}"] == run
    assert output["cells"]["logits[3,7]"]["value"] == trace.explain("logits[3,7]").value
    assert (
        len(output["cells"]["probs[3,7]"]["terms"])
        == output["cells"]["probs[3,7]"]["count"]
        > export.TERMS
    )


@built
def test_a_saved_page_of_a_mixture_holds_who_went_where():
    """The page holds the values of its screen of experts; a model without a mixture has that screen
    greyed out."""
    trace = glassformer.trace(tiny.model("mixtral"), None, tiny.tokens(1, 6))
    output = facts(inside(export.page(trace)))
    (card,) = output["answers"]["GET api/models"]
    result = output["answers"][f"GET api/runs/{output['run']}/experts"]
    assert card["abilities"]["experts"] and result["of"] == sum(
        item["experts"] for item in result["layers"]
    )
    for layer in result["layers"]:
        assert layer["chosen"] == trace[f"{layer['address']}.chosen"][0].tolist()
        assert sum(layer["load"]) == 2 * 6 and len(layer["probabilities"]) == 6


@built
def test_a_saved_page_asks_no_network(trace):
    page = export.page(trace)
    assert "default-src 'none'" in page
    addresses = set(re.findall(r"""["'(=]\s*(?:https?:)?//[^\s"')]+""", page))
    # names of XML, which nobody fetches
    assert all("www.w3.org" in address for address in addresses), addresses


@built
def test_a_live_page_keeps_markup_of_its_text_as_text():
    """Text that closes a script, or opens a comment in it, stays within the element that holds the
    start."""
    start = {"text": '</script><img src=x onerror="alert(1)"><!-- <script>', "source": "a < b"}
    elements: dict[str, str] = {}

    class Scripts(HTMLParser):
        def handle_starttag(self, tag, attrs):
            assert tag != "img"
            self.id = dict(attrs).get("id") or tag

        def handle_data(self, data):
            elements[self.id] = elements.get(self.id, "") + data

    Scripts().feed(export.live(start))
    assert json.loads(elements["glassformer-live"]) == start
    # a browser reads `<!--` and `<script` in a script in its own way
    assert "<" not in elements["glassformer-live"]


@built
@pytest.mark.parametrize("kind", ["trace", "live"])
def test_a_saved_page_names_the_packages_in_it(kind, trace):
    page = " ".join((export.page(trace) if kind == "trace" else export.live({})).split())
    for text in licences():
        assert text in page


@built
@pytest.mark.parametrize("room", [30_000, 250_000])
def test_what_does_not_fit_is_left_out_and_said(trace, room):
    around = re.sub(
        r'(id="glassformer-trace">)[^<]*', r"\1", export.page(trace)
    )  # script and style, as large as they are
    most = len(around.encode()) + room
    page = export.page(trace, most=most)
    assert len(page.encode()) <= most
    output = facts(inside(page))
    run = output["answers"][f"GET api/runs/{output['run']}"]
    stored = set(load(inside(page)))
    assert run["saved"]["left_out"] == len(trace.plan) - len(stored) or run["saved"]["as"] == "f16"
    assert run["cut"] and "glassformer page" in run["cut"]
    assert all(op.id in stored for op in trace.plan if op.id.endswith(".pattern")), (
        "attention is kept before the rest"
    )


@built
def test_a_notebook_shows_a_frame_and_what_reads_without_scripts(trace):
    displayed = trace._repr_html_()
    assert len(displayed.encode()) <= 2_000_000
    assert (
        displayed.startswith("<iframe") and 'sandbox="allow-scripts allow-downloads"' in displayed
    )
    remaining = displayed[displayed.index("</iframe>") :]
    assert (
        "<script" not in remaining and "that is the question" in remaining and "<table" in remaining
    )
    results = re.search(r"data:image/svg\+xml;base64,([^\"]+)", remaining)
    assert results is not None and b"data:image/png" in base64.b64decode(results[1])


@pytest.mark.parametrize("name", ["llama", "bert", "t5", "mixtral", "gru", "pooled"])
def test_every_shape_can_be_saved(name, tmp_path):
    """Without a tokenizer too; as safetensors every value is there."""
    cfg = tiny.ALL[name]
    pair = hasattr(cfg, "encoder") and hasattr(cfg, "decoder")
    ids = tiny.tokens(1, 6)
    trace = glassformer.trace(tiny.model(cfg), None, ids, ids if pair else None)
    data = gzip.decompress(export.container(trace, 1_000_000))
    assert set(load(data)) == {op.id for op in trace.plan}
    path = trace.save(tmp_path / "it.safetensors")
    loaded = load(path.read_bytes())
    for op in trace.plan:
        assert np.array_equal(
            loaded[op.id], wire.TracePart(trace, op.id).to_array(), equal_nan=True
        ), op.id
    assert export.summary(trace).startswith("<details>")


def test_a_file_of_another_kind_is_refused(trace, tmp_path):
    with mistake("html"):
        trace.save(tmp_path / "it.pdf")


@built
def test_a_browser_opens_the_file_from_the_disk(chromium, trace, tmp_path):
    """Numbers on the screen are the trace's; nothing is asked of any network, nothing goes
    wrong."""
    path = trace.save(tmp_path / "it.html")
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html>{trace._repr_html_()}")
    wrong: list[str] = []
    for url in (f"{path.as_uri()}#attention", f"{path.as_uri()}#inside", notebook.as_uri()):
        page = chromium.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda item: wrong.append(item.text) if item.type == "error" else None)
        page.on(
            "request",
            lambda item: wrong.append(item.url) if item.url.startswith(("http", "ws")) else None,
        )
        page.goto(url)
        frame = page.frames[-1]
        frame.wait_for_selector("[data-addr]", timeout=60_000)
        page.wait_for_timeout(500)
        assert "does not hold that" not in frame.inner_text("body")
        displayed = frame.eval_on_selector_all(
            "[data-addr]", "all => all.map(e => [e.dataset.addr, e.dataset.v])"
        )
        stored = 0
        for address, value in displayed:
            name = address.partition("[")[0]
            if name in trace.plan and value and trace[address].ndim == 0:
                assert abs(float(value) - trace[address].item()) <= 1e-5 * max(
                    1.0, abs(trace[address].item())
                )
                stored += 1
        assert stored or "#attention" not in url  # Inside opens with lengths of rows
    page = chromium.new_page()
    page.goto(f"{path.as_uri()}#lens")  # This file computes its lens
    page.wait_for_selector("main [data-addr]", timeout=60_000)
    assert "does not hold" not in page.inner_text("body")
    still = trace.save(tmp_path / "still.html", computing=0)
    page.goto(f"{still.as_uri()}#lens")
    message = page.locator("main .note").inner_text()
    assert (
        "This saved file does not hold the lens" in message
        and "no head" not in message
        and "`" not in message
    )
    page.close()
    assert not wrong, wrong


def test_a_saved_file_has_its_words(trace, monkeypatch):
    """Every entry of the vocabulary, so that what is likely next has a name; left out where it is
    too large."""
    output = facts(gzip.decompress(export.container(trace, 2_000_000, name="mine")))
    data, results = base64.b64decode(output["answers"]["GET api/vocab/mine"]["base64"]), []
    while data:
        length = int.from_bytes(data[:4], "little")
        results, data = [*results, data[4 : 4 + length]], data[4 + length :]
    tokenizer = trace.tokenizer
    assert tokenizer is not None
    assert results == [
        tokenizer.token(id).encode() if tokenizer.hides(id) else tokenizer.bytes_of(id)
        for id in range(tokenizer.size)
    ]
    monkeypatch.setattr(export, "WORDS", 0.001)
    small = facts(gzip.decompress(export.container(trace, 2_000_000, name="mine")))
    assert "GET api/vocab/mine" not in small["answers"]
