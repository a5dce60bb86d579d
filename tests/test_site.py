"""The site: cells that run, values in sentences, five depths, our own source, live frames; and the
whole of it."""

from __future__ import annotations

import ast
import functools
import html
import io
import re
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("sphinx", reason="sphinx is missing: pip install -e '.[docs]'")
from sphinx.application import Sphinx
from sphinx.errors import SphinxError

from folders import read_json
from site_page import DOCS, built

MOST = (
    16_000_000  # bytes of the site; each of six frames holds a model that computes, 0.9 to 2.2 MB
)


def test_what_a_page_can_do(site_page):
    text = (site_page / "index.html").read_text()
    assert "11.107" in text
    assert "<td>0.6652</td>" in text
    assert "torch.Size([3])" in text
    assert "printed" in text
    assert text.count('type="radio"') == 5
    assert "<mfrac>" in text
    assert "Why so?" in text
    plain = re.sub("<[^>]+>", "", text)
    assert "def forward(self, x" in plain
    assert "glassformer/core/nn/layers.py:" in plain
    assert "Every number on this page was computed when it was built, by Glassformer" in text
    assert 'title="A title &amp; more"' in text
    traces = [path for path in (site_page / "live").iterdir() if path.name != "sandbox.html"]
    assert len(traces) == 1 and text.count(f"live/{traces[0].name}#/") == 4, (
        "one trace shown twice is one file"
    )
    live = traces[0].read_text()
    assert '<script src="../_static/glass/inline.js">' in live
    assert "<title>The cat sat</title>" in live
    around = re.sub(
        r'(id="glassformer-trace">)[^<]*', r"\1", live
    )  # script and style are the site's, one for all frames
    assert len(around) < 2_000 < len(live)
    assert (site_page / "_static" / "glass" / "app.css").exists()


def test_a_table_and_a_figure_are_for_everybody(monkeypatch):
    """Columns of words stand left, of numbers right; a figure's box, which scrolls on a phone,
    takes the focus."""
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    from computed import shown
    from prelude import glassformer, small, table

    message = table(
        ["of", "loss", "reads"], [["a", 1.5, "all"], ["b", "34 % (31 to 35)", "-"]]
    )._repr_html_()
    assert re.findall(r'<(t[hd]) class="words">([^<]*)', message) == [
        *(("th", "of"), ("th", "reads"), ("td", "a"), ("td", "all"), ("td", "b"), ("td", "-"))
    ]
    (figure,) = shown(glassformer.logit_lens(*small(), "The cat"))
    (box,) = re.findall(r"<div[^>]*overflow-x:auto[^>]*>", figure.astext())
    assert 'tabindex="0"' in box


DRAWS = """# {name}

```{{computed}}
:code: hidden
model, tokenizer = small()
line = torch.randn(3)
print(held_out(model_of()), line)
```

{{value}}`torch.randn(1).item()`

```{{live}} seen("The cat sat")
```

```{{code-of}} glassformer.core.nn.{code}
```
"""


@pytest.mark.slow
def test_pages_are_the_same_in_any_order_and_by_several_processes(tmp_path):
    """Six pages by two processes: numbers, frames and pointed-to sources of one process; a failing
    cell is told."""
    (tmp_path / "source").mkdir()
    codes = [
        "layers.RMSNorm",
        "layers.LayerNorm",
        "model.Block",
        "layers.RMSNorm",
        "mask.Mask",
        "model.Stack",
    ]
    names = [f"page{number}" for number in range(6)]
    for name, code in zip(names, codes, strict=True):
        (tmp_path / "source" / f"{name}.md").write_text(DRAWS.format(name=name, code=code))
    output = "\n".join(names)
    (tmp_path / "source" / "index.md").write_text(f"# All\n\n```{{toctree}}\n{output}\n```\n")
    results = []
    for processes in (1, 2):
        done = built(tmp_path / "source", tmp_path / str(processes), processes)
        assert done.returncode == 0, done.stderr
        site = tmp_path / str(processes) / "site"
        saved = {str(path.relative_to(site)): path.read_text() for path in site.rglob("*.html")}
        # a trace holds the milliseconds that it took
        live = {name for name in saved if name.startswith("live/")}
        results.append({name: "" if name in live else text for name, text in saved.items()})
    assert results[0] == results[1]
    assert {
        "source/core/nn/layers.py.html",
        "source/core/nn/model.py.html",
        "source/core/nn/mask.py.html",
    } < results[0].keys()
    first, second = (
        re.findall(r"tensor\(.*?\)|-?\d\.\d{6,}", results[0][f"{name}.html"]) for name in names[:2]
    )
    assert first == second and len(first) > 1, "every page draws from the same seed"
    (tmp_path / "source" / "page3.md").write_text("# 3\n\n```{computed}\n1 / 0\n```\n")
    done = built(tmp_path / "source", tmp_path / "failing", 2)
    assert done.returncode != 0
    assert "page3, line" in done.stderr
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize(
    "cell, message",
    [
        ("```{computed}\n1 / 0\n```", "ZeroDivisionError"),
        ("{value}`nothing_here`", "NameError"),
        (":::{depths}\n:::", "depths are"),
        ("```{code-of} glassformer.core.nn.layers.Nothing\n```", "Nothing"),
        ("[gone](gone.md)", "gone"),
    ],
)
def test_a_page_that_fails_does_not_build(tmp_path, cell, message):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "index.md").write_text(f"# A page\n\n{cell}\n")
    folders = [tmp_path / "source", DOCS, tmp_path / "site", tmp_path / "trees"]
    buffer = io.StringIO()
    try:
        app = Sphinx(*folders, "html", status=None, warning=buffer, warningiserror=True)
        app.build()
        assert app.statuscode != 0
    except SphinxError as error:
        buffer.write(str(error))
    assert message in buffer.getvalue()


GOLDEN = {
    "01-tokens": [
        "2028, 7257, 1495, 690, 387, 4037, 1534",
        *("28,996", "30,522", "50,257", "32,100", "49,152", "32,011", "100,277", "151,657"),
    ],
    "04-attention": ["7.389", "2.718", "11.107", "0.665", "0.245", "0.090"],
    "09-efficient": [
        *(
            "8,030,261,248",
            "70,553,706,496",
            "405,853,388,800",
            "14,336",
            "28,672",
            "53,248",
            "128,256",
            "500,000",
        ),
        *("4,096", "8,192", "16,384", "3e-4", "1.5e-4", "8e-5"),
        *("  128  512", "  320  2,560", "  504  8,064"),
    ],
}
"""Published numbers that a page must come to by computing: of tokenizers, of softmax, of Llama
3."""


@pytest.fixture
def computed(monkeypatch):
    """The module that computes what a page's cells give."""
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    import computed

    return computed


@functools.cache
def text_of(computed, page):
    """What the cells of a page give; each page is computed once."""
    return computed.computed_text(DOCS / page)


@pytest.mark.parametrize("page", GOLDEN)
def test_golden_numbers(page, computed):
    text = text_of(computed, f"learn/{page}.md")
    if "it needs the folder" in text:
        pytest.skip("the data folder is missing")
    assert [number for number in GOLDEN[page] if number not in text] == []


ROW = re.compile(
    r"^\| (?P<number>\d+) \| .* \| \[[^]]+\]\((?P<path>[^)#]+)#?(?P<place>[^)]*)\) "
    r"\| (?P<look>.*?) \|$",
    re.MULTILINE,
)
ROWS = [row.groupdict() for row in ROW.finditer((DOCS / "claims.md").read_text(encoding="utf-8"))]


def test_eighty_examples_are_listed_and_their_places_exist():
    assert [int(row["number"]) for row in ROWS] == list(range(1, 81))
    for row in ROWS:
        text = (DOCS / row["path"]).read_text(encoding="utf-8")
        titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
        places = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert not row["place"] or row["place"] in places, row


@pytest.mark.parametrize("page", sorted({row["path"] for row in ROWS}))
def test_what_an_example_is_known_by_stands_on_its_page(page, computed):
    text = (DOCS / page).read_text(encoding="utf-8") + text_of(computed, page)
    plain = " ".join(html.unescape(text).split())
    looks = [row["look"] for row in ROWS if row["path"] == page]
    assert [look for look in looks if look.lower() not in plain.lower()] == []


def test_recorded_values_stand_in_for_the_data_folder(computed, monkeypatch):
    monkeypatch.setattr(computed, "pages", computed.Pages(data=False))
    text = computed.computed_text(DOCS / "learn" / "01-tokens.md")
    assert [number for number in GOLDEN["01-tokens"] if number not in text] == []
    assert "Recorded: this" in text
    assert "not computed" not in text.lower()
    shapes = (DOCS / "learn" / "06-shapes.md").read_text(encoding="utf-8")
    cells = re.findall(r"```\{computed\}\n(bert = .*?)\n```", shapes, re.DOTALL)
    _, value = computed.pages.run("06-shapes", cells[0], "")
    assert "[MASK]" in value._repr_html_() and "103" in value._repr_html_()


@pytest.mark.slow
@pytest.mark.parametrize("page", ["01-tokens", "06-shapes"])
def test_recorded_values_are_those_of_today(page, computed):
    from prelude import DATA

    if not (DATA / "tok-bert-cased").exists():
        pytest.skip("the data folder is missing")
    again = computed.store(DOCS / "learn" / f"{page}.md")
    assert again == computed.pages.stored[page], "python docs/_ext/computed.py"


PROSE = {
    "05-block": (
        'at_start["post-norm"][0] < at_start["post-norm"][-1] and at_start["pre-norm"][-1] < '
        'at_start["pre-norm"][0]',
        "first_by_last(False, False, 0) < 1e-3 < 0.1 < first_by_last(True, False, 0)",
        "alike(True, 0, 1) < alike(True, 0, 12) < 0.9 and alike(False, 0, 12) > 0.999",
        '[sum(end < 0.5 for end in run["ends"]) for run in told["runs"]] == [5, 5, 5, 5, 0, 5]',
        "[name(run).split(',')[0] for run in told['runs']] == ['pre-norm', 'post-norm', "
        "'post-norm'] * 2",
        'when(told["runs"][1]) < when(told["runs"][2]) and when(told["runs"][3]) < '
        'when(told["runs"][5])',
    ),
    "11-look-inside": ('rows[3][1] < float(plain[f"probs[-1,{best}]"]) < rows[-2][1]',),
}
"""What the sentences of a page say of its numbers, in the names of its cells."""


@pytest.mark.parametrize("page", PROSE)
def test_sentences_hold_for_the_numbers(page, computed):
    text_of(computed, f"learn/{page}.md")
    cells = computed.pages.space(str(DOCS / "learn" / f"{page}.md"))
    assert [message for message in PROSE[page] if not eval(message, cells)] == []


LEARN = sorted(path.name for path in (DOCS / "learn").glob("*.md"))
PARTS = {
    "five depths": r"^::::\{depths\}",
    "an equation that stands alone": r"^\$\$",
    "shapes": r"\bShapes?( |:)",
    "our own code": r"^```\{code-of\} glassformer\.",
    "a live figure": r"^```\{live\} ",
    "what goes wrong without it": r"^## What goes wrong with",
    "two questions": r"(?s)^:::\{question\} .*^:::\{question\} ",
}


@pytest.mark.parametrize("name", LEARN)
def test_a_page_of_the_road_is_whole(name):
    text = (DOCS / "learn" / name).read_text(encoding="utf-8")
    assert [piece for piece, form in PARTS.items() if not re.search(form, text, re.MULTILINE)] == []


@pytest.mark.parametrize("name", LEARN)
def test_every_cell_shows_what_it_computed(name):
    text = (DOCS / "learn" / name).read_text(encoding="utf-8")
    cells = re.findall(r"```\{computed\}\n(?::[^\n]*\n)*(.*?)\n```", text, re.DOTALL)
    silent = [
        cell
        for cell in cells
        if not isinstance(ast.parse(cell).body[-1], ast.Expr) and "print(" not in cell
    ]
    assert not silent, silent[0]


EXPLAINED = {
    **dict.fromkeys(
        ("training", "weights", "loss", "nats", "bits a byte", "seed", "WordPiece", "Unigram"), 1
    ),
    **dict.fromkeys(
        (
            "dot product",
            "cosine",
            "recurrent network",
            "state",
            "gates",
            "encoder",
            "decoder",
            "gradient",
            "tanh",
            "gain",
        ),
        2,
    ),
    **dict.fromkeys(("one-hot", "ALiBi"), 3),
    **dict.fromkeys(("stream", "learning rate", "warm-up", "bias"), 5),
    **dict.fromkeys(("padding", "GatedMLP"), 6),
    **dict.fromkeys(
        (
            "entropy",
            "beam search",
            "prefill",
            "greedy",
            "temperature",
            "top-k",
            "top-p",
            "KV cache",
        ),
        7,
    ),
    **dict.fromkeys(("document mask", "CoLA"), 8),
    **dict.fromkeys(("FLOPs", "GiB"), 9),
    **dict.fromkeys(("relative error", "codes"), 12),
}
"""Words and the page that explains each, in italics."""


def test_no_word_comes_before_it_is_explained():
    depth = re.compile(
        r"(?s)^::::\{depths\}.*?^::::$|^```.*?^```", re.MULTILINE
    )  # their reader chose them; code is code
    for word, page in EXPLAINED.items():
        texts = [(DOCS / "learn" / name).read_text(encoding="utf-8") for name in LEARN[:page]]
        assert re.search(rf"(?i)\*{word}\*", texts[-1]), f"page {page} does not explain {word}"
        for number, text in enumerate(texts[:-1], 1):
            assert not re.search(rf"(?i)(?<![\w-]){word}\b", depth.sub("", text)), (
                f"{word} stands on page {number}"
            )


def test_an_exercise_stands_on_its_page():
    from glassformer.learn.exercise import catalogue

    for item in catalogue():
        text = (DOCS / "learn" / LEARN[int(item.road) - 1]).read_text(encoding="utf-8")
        assert f"`glassformer learn start {item.name}`" in text, (
            f"{item.name} is of page {item.road}"
        )


def test_the_road_has_twelve_pages_and_every_sandbox():
    from glassformer.learn.exercise import ROAD

    assert len(LEARN) == len(ROAD) == 12
    full = "".join((DOCS / "learn" / name).read_text(encoding="utf-8") for name in LEARN)
    assert set(re.findall(r"^```\{sandbox\} (\w+)", full, re.MULTILINE)) == SANDBOXES


def test_every_public_name_stands_in_the_reference():
    import glassformer

    text = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    present = set(
        re.findall(r"^\.\. auto\w+:: (?:glassformer\.serve\.engine\.)?(\w+)$", text, re.MULTILINE)
    )
    assert set(glassformer.__all__) - {"__version__"} - present == set()


SANDBOXES = {"softmax", "av", "mask", "pos_sin", "rope", "sampling"}
TASKS = {"train", "load", "translate", "classify", "look-inside", "serve", "quantize", "scale-out"}


def test_each_task_has_a_page_whose_commands_were_run(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))

    import recorded

    assert {path.stem for path in (DOCS / "use").glob("*.md")} == TASKS
    data = read_json(recorded.KEPT)
    for name in TASKS:
        commands = [command for command, output in recorded.commands(f"use/{name}") if output]
        stored = [step["command"] for step in data.get(f"use/{name}", {"steps": []})["steps"]]
        assert commands == stored, f"python docs/_ext/recorded.py use/{name}"
    assert set(data) == {f"use/{name}" for name in TASKS}


def test_what_a_terminal_shows_in_the_end(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    import recorded

    assert recorded.clean("\x1b[31m 10%\r100%\x1b[0m\n/tmp/x/out\n\n", "/tmp/x") == "100%\nout"
    long = recorded.clean("\n".join(map(str, range(100))), "/tmp/x").split("\n")
    assert len(long) < 40
    assert long[-1] == "99"
    assert "[70 lines]" in long
    assert recorded.lines("a \\\n  b\nc") == ["a b", "c"]


class _Links(HTMLParser):
    """Links of a page, files that it loads, and its anchors."""

    def __init__(self):
        super().__init__()
        self.links, self.loads, self.places = list[str](), list[str](), set[str]()

    def handle_starttag(self, tag, attrs):
        args = dict(attrs)
        self.places |= {args[name] for name in ("id", "name") if args.get(name)}
        if tag == "a" and args.get("href"):
            self.links.append(args["href"])
        for name in ("src", "href") if tag in ("script", "link", "img", "iframe", "source") else ():
            if args.get(name):
                self.loads.append(args[name])


def _read(path):
    result = _Links()
    result.feed(path.read_text(encoding="utf-8"))
    return result


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_site(whole_site):
    """The site builds without a warning; every link leads somewhere; nothing is loaded from
    elsewhere; it is small."""
    site = whole_site
    pages = {path: _read(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for link in page.links + page.loads:
            pieces = urlsplit(link)
            if pieces.scheme:
                assert link in page.links or pieces.scheme == "data", f"{path.name} loads {link}"
                continue
            target = (path.parent / unquote(pieces.path)).resolve() if pieces.path else path
            assert target.exists(), f"{path.relative_to(site)} links to {link}"
            if pieces.fragment and target in pages and not pieces.fragment.startswith("/"):
                # its script shows one card, with numbers after ?v=
                cards = target == site / "live" / "sandbox.html"
                places = SANDBOXES if cards else pages[target].places
                place = unquote(pieces.fragment)
                place = place.partition("?v=")[0] if cards else place
                assert place in places, f"{path.relative_to(site)} links to {link}"
    for row in ROWS:  # what an example is known by stands in the section that its row links to
        text = (site / row["path"].replace(".md", ".html")).read_text(encoding="utf-8")
        if row["place"]:
            # a title with a mark such as ' has a second name, in a span
            heading = re.search(f'<(?:section|span) id="{row["place"]}">', text)
            assert heading, row
            text = text[heading.end() :].partition("<section ")[0]
        plain = " ".join(html.unescape(re.sub("<[^>]+>", "", text)).split())
        assert row["look"].strip("`").lower() in plain.lower(), row
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"url\(\s*['\"]?https?:", styles)
    assert "@import" not in styles
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < MOST


def test_the_command(terminal, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.resources.files", lambda name: tmp_path)
    assert "make docs" in terminal.refused("docs --print")
    (tmp_path / "site" / "learn").mkdir(parents=True)
    for name in ("index.html", "learn/04-attention.html"):
        (tmp_path / "site" / name).write_text("")
    page = terminal("docs --print learn/04-attention.md").strip()
    assert page.endswith("/site/learn/04-attention.html")
    notes = terminal.refused("docs --print learn/04-atention")
    assert 'Did you mean "learn/04-attention"?' in notes
