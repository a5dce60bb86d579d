"""Results in a notebook and on disk: every number is there, within the bound, and no token is more
than text."""

from __future__ import annotations

import base64
import csv
import json
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import glassformer
import tiny
from glassformer.serve.page.models import shipped
from glassformer.sight import TunedLens, fit_tuned_lens
from glassformer.sight.figures.charts import Curves, Heat, TableFigure, colours, thinned, ticks
from glassformer.sight.figures.drawing import plain, png, written
from glassformer.sight.figures.shown import fragment
from glassformer.sight.seen import Seen
from mistakes import mistake
from seeding import generator_from

HOSTILE = "<img src=x onerror=alert(1)>\"'&</style><script>alert(2)</script>\x00\u202e]]>"
TEXT = "<script>x</script> To be & not"


@pytest.fixture(scope="module")
def results():
    """One of each kind, of the model that comes with the package; the texts hold HTML."""
    model, tokenizer = glassformer.load(shipped(), dtype="float32")
    assert tokenizer is not None
    rows = [(torch.tensor([tokenizer.encode(f"To be or not {n} to be")]), None) for n in range(4)]
    clean = "The king <b> said"
    corrupted = "The duke <b> said"
    return {
        "attention": glassformer.look(model, tokenizer, TEXT, "*.pattern"),
        "values": glassformer.look(model, tokenizer, TEXT, "*.resid", "logits"),
        "lens": glassformer.logit_lens(model, tokenizer, TEXT, positions="all", track=["t"]),
        "tuned": fit_tuned_lens(model, rows, data=HOSTILE, steps=1, tokens=8),
        "heads": glassformer.head_scores(model, tokenizer, draws=2, length=6),
        "attribution": glassformer.attribute(model, tokenizer, TEXT, against="t"),
        "saliency": glassformer.saliency(model, tokenizer, TEXT, steps=2),
        "contexts": glassformer.word_in_contexts(model, tokenizer, "be", TEXT, "<b>be</b> or"),
        "grid": glassformer.patch_grid(
            model, tokenizer, clean, corrupted, answer="s", parts="resid", progress=False
        )
        if len(tokenizer.encode(clean)) == len(tokenizer.encode(corrupted))
        else glassformer.patch_grid(
            model, None, [5, 6, 7], [5, 9, 7], answer=3, parts="resid", progress=False
        ),
    }


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    lines = [{"step": n, "loss": 5 - n / 500, "tokens": 64, "seconds": 0.5} for n in range(1, 1001)]
    lines[700]["loss"] = 99.0
    lines[999]["valid_loss"] = 3.25
    (folder / "log.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 10'
    )
    (folder / "samples.jsonl").write_text(json.dumps({"step": 1000, "text": HOSTILE}) + "\n")
    return glassformer.training_log(folder)


KINDS = (
    "attention",
    "values",
    "lens",
    "tuned",
    "heads",
    "attribution",
    "saliency",
    "contexts",
    "grid",
    "log",
)


@pytest.fixture
def figure(request, results, log):
    return {**results, "log": log}[request.param]


class Parsed(HTMLParser):
    """Tags, attributes and text of a page, and what its pictures are made of."""

    def __init__(self, page):
        super().__init__()
        self.tags = []
        self.attributes = set()
        self.text = ""
        self.sources = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("figure", KINDS, indirect=True)
def test_a_notebook_shows_it_without_scripts_and_without_a_network(figure):
    page = figure._repr_html_()
    assert len(page.encode()) <= 2_000_000
    assert len(repr(figure)) < 1000
    parsed = Parsed(page)
    harmless = {"div", "b", "p", "table", "tr", "th", "td", "img", "details", "summary", "br"}
    assert set(parsed.tags) <= harmless, set(parsed.tags) - harmless
    assert not [name for name in parsed.attributes if name.startswith("on")]
    prefix = "data:image/svg+xml;base64,"
    assert parsed.sources
    assert all(source.startswith(prefix) for source in parsed.sources)
    for source in parsed.sources:
        drawn = ElementTree.fromstring(base64.b64decode(source.removeprefix(prefix)))
        names = {piece.tag.rpartition("}")[2] for piece in drawn.iter()}
        assert names <= {"svg", "title", "rect", "text", "image", "polyline"}, names
        links = [
            value
            for piece in drawn.iter()
            for name, value in piece.attrib.items()
            if name.endswith("href")
        ]
        assert all(link.startswith("data:image/png;base64,") for link in links)


@pytest.mark.parametrize("figure", KINDS, indirect=True)
@pytest.mark.parametrize("kind", ["html", "svg", "png"])
def test_it_is_saved_as_a_picture(figure, kind, tmp_path):
    data = figure.save(tmp_path / f"it.{kind}").read_bytes()
    if kind == "html":
        assert len(data) <= 2_000_000
        assert b"default-src 'none'" in data
        assert b"script-src" not in data
        assert Parsed(data.decode()).tags[:2] == ["html", "head"]
    elif kind == "svg":
        assert ElementTree.fromstring(data).tag.endswith("svg")
    else:
        assert data.startswith(b"\x89PNG\r\n")


def rows(figure, folder):
    with figure.save(folder / "it.csv").open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def test_a_table_has_every_number(results, log, tmp_path):
    """To the last bit: a float's text gives the float again."""
    observed, lens, grid, heads = (results[name] for name in ("attention", "lens", "grid", "heads"))
    ids = rows(observed, tmp_path)
    assert [float(row["value"]) for row in ids] == torch.cat(
        [x.flatten() for x in observed.values()]
    ).tolist()
    assert ids[-1]["key_token"].endswith(observed.words[-1])
    likely = [float(row["probability"]) for row in rows(lens, tmp_path) if not row["tracked"]]
    assert likely == np.array(lens.probability).flatten().tolist()
    effects = [float(row["effect"]) for row in rows(grid, tmp_path)]
    assert effects == np.array(grid.parts[0].effect).flatten().tolist()
    previous = [float(row["value"]) for row in rows(heads, tmp_path) if row["score"] == "previous"]
    assert previous == [head.scores["previous"] for head in heads.heads]
    losses = rows(log, tmp_path)
    assert len(losses) == 1000
    assert float(losses[700]["loss"]) == 99.0
    assert losses[0]["valid_loss"] == ""


def test_tensors_are_what_was_seen(results, log, tmp_path):
    observed = results["values"]
    stored = load_file(observed.save(tmp_path / "it.safetensors"))
    assert set(stored) == set(observed)
    assert all(np.array_equal(stored[path], observed[path].numpy()) for path in observed)
    stored = load_file(results["lens"].save(tmp_path / "lens.safetensors"))
    assert stored["kl"].tolist() == results["lens"].kl
    assert stored["tracked_rank"].shape[0] == 1
    stored = load_file(results["grid"].save(tmp_path / "grid.safetensors"))
    assert stored["resid.effect"].tolist() == results["grid"].parts[0].effect
    stored = load_file(log.save(tmp_path / "log.safetensors"))
    assert stored["loss"][700] == 99.0
    assert np.isnan(stored["valid_loss"][:999]).all()
    path = results["tuned"].save(tmp_path / "tuned.safetensors")
    assert torch.equal(TunedLens.load(path).weight, results["tuned"].weight)


@pytest.mark.parametrize("chart", [
    Heat(HOSTILE, np.eye(2), [HOSTILE] * 2, [HOSTILE] * 2, [[HOSTILE] * 2] * 2),
    Heat(HOSTILE, np.eye(2), [HOSTILE] * 2, [HOSTILE] * 2),
    TableFigure(HOSTILE, (HOSTILE,), [(HOSTILE,)]),
    Curves(HOSTILE, {HOSTILE: ([1, 2], [3, 4])}, HOSTILE),
])  # fmt: skip
def test_what_a_token_is_made_of_stays_text(chart):
    parsed = Parsed(chart.html())
    assert not {"script", "style", "b"} & set(parsed.tags)
    assert not [n for n in parsed.attributes if n.startswith("on")]
    assert all(source.startswith("data:image/svg+xml;base64,") for source in parsed.sources)
    if isinstance(chart, TableFigure):
        return
    message = "".join(ElementTree.fromstring(chart.drawing().svg()).itertext())
    assert "<script>alert(2)</script>" in message
    assert "\x00" not in message
    assert "\u202e" not in message
    chart.drawing().png()


def test_a_browser_shows_what_holds_html_and_runs_none_of_it(chromium, tmp_path):
    """With a notebook's own rights: no policy keeps a script from running but that there is
    none."""
    values = {
        f"a.{HOSTILE}.pattern": torch.eye(2)[None, None].expand(1, 2, 2, 2),
        HOSTILE: torch.ones(1, 2, 3),
    }
    path = tmp_path / "it.html"
    path.write_text(
        f"<!doctype html><body>{Seen(values, [HOSTILE, HOSTILE])._repr_html_()}", encoding="utf-8"
    )
    wrong = []
    page = chromium.new_page()
    page.on("dialog", lambda dialog: wrong.append(dialog.message) or dialog.dismiss())
    page.on(
        "request", lambda query: wrong.append(query.url) if query.url.startswith("http") else None
    )
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(f"file://{path}")
    page.locator("summary").first.click()
    pictures = page.locator("img").evaluate_all("all => all.map(one => one.naturalWidth)")
    page.close()
    assert not wrong and len(pictures) == 4 and min(pictures) > 20, (wrong, pictures)


def test_what_does_not_fit_is_said():
    values = {
        f"b.{n}.pattern": torch.rand(1, 12, 40, 40, generator=generator_from(n)) for n in range(9)
    }
    observed = Seen(values, ["a"] * 40)
    full = fragment(observed, 10**9)
    cut = fragment(observed, 300_000)
    assert len(cut.encode()) <= 300_000 < len(full.encode())
    assert "did not fit" in cut
    assert "did not fit" not in full


def test_a_head_by_itself(results):
    observed = results["attention"]
    item = observed.head(2)
    assert [*item] == [f"{path}[2]" for path in observed]
    assert all(
        torch.equal(a[:, 0], b[:, 2]) for a, b in zip(item.values(), observed.values(), strict=True)
    )
    assert "each of" in fragment(observed)
    assert "each of" not in fragment(item)
    with mistake("heads 0 to"):
        observed.head(99)
    with mistake("no attention"):
        results["values"].head(0)


@pytest.mark.parametrize("name", ["bert", "t5", "mixtral", "gru", "pooled"])
def test_every_shape_shows_itself(name):
    """Without a tokenizer too; across, rows are the target's and columns the source's tokens."""
    model = tiny.model(name)
    pair = hasattr(tiny.ALL[name], "encoder") and hasattr(tiny.ALL[name], "decoder")
    look = glassformer.look(model, None, [1, 2, 3], source=[4, 5, 6, 7, 8] if pair else None)
    assert "<img" in look._repr_html_()
    if pair:
        heat = next(
            chart
            for chart in look.charts()
            if isinstance(chart, Heat) and ".cross.pattern" in chart.title
        )
        assert [len(heat.rows), len(heat.columns)] == [3, 5]
        assert heat.columns[4] == "4:#8"


def test_files_that_cannot_be_written(results, tmp_path, monkeypatch):
    with mistake(r"\.html, \.svg, \.png, \.csv, \.safetensors"):
        results["lens"].save(tmp_path / "it.pdf")
    with mistake(r"too many for \.csv"):
        Seen({"x": torch.zeros(1, 500, 500)}).save(tmp_path / "it.csv")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with mistake(r"needs matplotlib; pip install matplotlib"):
        results["lens"].save(tmp_path / "it.png")
    assert not list(tmp_path.iterdir())


def test_colours_are_those_of_the_numbers():
    bounds = colours(np.array([0.0, 1.0, np.nan, -np.inf]), 0, 1, signed=False)
    assert bounds.tolist() == [[0xFA, 0xF9, 0xF5], [0x00, 0x22, 0x4E], [221] * 3, [221] * 3]
    middle = colours(np.array([-4.0, 0.0, 4.0, 2.0]), -4, 4, signed=True)
    assert middle[:3].tolist() == [[0x21, 0x66, 0xAC], [0xE2, 0xE2, 0xE2], [0xB3, 0x58, 0x06]]
    assert colours(np.array([3.0]), 3, 3, signed=False).tolist() == [[0xFA, 0xF9, 0xF5]]


def test_a_png_is_what_was_painted():
    from io import BytesIO

    from PIL import Image

    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    assert np.array_equal(np.array(Image.open(BytesIO(png(pixels)))), pixels)
    drawing = Heat("", np.array([[0.0, 1.0]]), ["r"], ["a", "b"], span=(0, 1)).drawing()
    painted = np.array(Image.open(BytesIO(drawing.png(1))).convert("RGB"))
    assert len(np.argwhere((painted == (0x00, 0x22, 0x4E)).all(-1))) >= 18 * 18 - 40
    assert painted.shape[:2] == (
        round(drawing.height),
        round(drawing.width),
    )


def test_no_spike_is_lost_in_a_long_curve():
    x = list(range(100_000))
    y = [0.0] * 100_000
    y[77_777], y[12], y[50] = 9.0, -3.0, float("nan")
    drawn = thinned(x, y)
    assert len(drawn) <= 300
    assert (77_777.0, 9.0) in drawn
    assert (12.0, -3.0) in drawn
    assert drawn == sorted(drawn)


@pytest.mark.parametrize(
    "low, high", [(0, 1), (2.514, 6.931), (1, 1000), (-1e-7, 3e-7), (1e8, 1.00001e8)]
)
def test_ticks_are_round_and_inside(low, high):
    result = ticks(low, high)
    assert 2 <= len(result) <= 7
    assert low - 1e-6 * abs(low) <= result[0]
    assert result[-1] <= high * (1 + 1e-9)


def test_texts_keep_what_can_be_seen():
    assert plain("a\x1b[0m鸟\ud83d") == "a\ufffd[0m鸟\ufffd"
    assert written("<a b='c'>&") == "&lt;a b=&#x27;c&#x27;&gt;&amp;"


def test_a_log_that_is_not_there(tmp_path):
    (tmp_path / "mine").mkdir()
    with mistake(r"holds no log\.jsonl"):
        glassformer.training_log(tmp_path / "mine")
    with mistake(r'Did you mean ".*mine"'):
        glassformer.training_log(tmp_path / "mien")


def test_words_on_a_colour_can_be_read():
    """WCAG's 4.5 to 1 on every colour of a coarse cube, by its own formula, term by term."""
    from glassformer.sight.figures.charts import ink_on

    def luminance(colour):
        pieces = [
            item / 255 / 12.92 if item / 255 <= 0.04045 else ((item / 255 + 0.055) / 1.055) ** 2.4
            for item in colour
        ]
        return sum(
            weight * piece for weight, piece in zip((0.2126, 0.7152, 0.0722), pieces, strict=True)
        )

    steps = (0, 39, 85, 118, 150, 197, 230, 255)
    for colour in ((r, g, b) for r in steps for g in steps for b in steps):
        ink = luminance(tuple(bytes.fromhex(ink_on(colour)[1:])))
        low, high = sorted((ink, luminance(colour)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, colour
