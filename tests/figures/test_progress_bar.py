"""A bar for long work: in a notebook without widgets, in a terminal, silent elsewhere."""

from __future__ import annotations

import io
import sys
import types
from typing import Any

import pytest

import glassformer
import tiny
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.sight import saliency, top_activations
from glassformer.sight.figures import progress_bar
from glassformer.sight.figures.progress_bar import Progress, in_notebook


class Handle:
    """Result of ``display`` in a notebook."""

    def __init__(self, first):
        self.pages = [first]

    def update(self, page):
        self.pages.append(page)


@pytest.fixture
def notebook(monkeypatch):
    """A kernel, as IPython makes itself known; the displays that were opened."""
    opened = []

    def display(page, display_id):
        assert display_id
        opened.append(Handle(page))
        return opened[-1]

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    tools = types.ModuleType("IPython.display")
    tools.HTML, tools.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", tools)
    monkeypatch.setattr(progress_bar, "OFTEN", 0.0)
    return opened


def test_a_notebook_gets_one_bar_that_moves(notebook):
    assert in_notebook()
    with Progress("patching <b>") as report:
        for done in range(1, 4):
            report(done, 3, "KL 0.5")
    (board,) = notebook
    assert len(board.pages) == 4
    assert "<b>" not in "".join(board.pages)
    assert '<progress value="1" max="3"' in board.pages[0]
    assert "1 of 3" in board.pages[0]
    assert "left" in board.pages[0]
    assert "3 of 3" in board.pages[-1]
    assert "left" not in board.pages[-1]
    assert "KL 0.5" in board.pages[-1]


def test_what_was_stopped_says_so(notebook):
    with pytest.raises(KeyboardInterrupt), Progress("patching") as report:
        report(1, 3)
        raise KeyboardInterrupt
    assert "(stopped)" in notebook[0].pages[-1]


def test_a_bar_is_not_drawn_more_often_than_can_be_seen(notebook, monkeypatch):
    monkeypatch.setattr(progress_bar, "OFTEN", 60.0)
    with Progress("patching") as report:
        for done in range(1, 101):
            report(done, 100)
    assert len(notebook[0].pages) == 2
    assert "100 of 100" in notebook[0].pages[-1]


def test_nothing_elsewhere(monkeypatch, capsys):
    ipython = types.ModuleType("IPython")  # imported by somebody, no kernel
    ipython.get_ipython = lambda: None
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert not in_notebook()
    with Progress("patching") as report:
        report(1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with Progress("patching") as report:
        report(2, 4, "KL 1.5")
    assert "patching" in screen.getvalue()
    assert "50%" in screen.getvalue()


def test_a_patch_grid_shows_it(notebook):
    """The bar of a grid is ours; ``progress=False`` opens none, a function is told instead."""
    model = tiny.model("llama")
    outputs = []

    def grid(**options):
        glassformer.patch_grid(
            model, None, [1, 2, 3], [1, 4, 3], answer=5, parts="resid", **options
        )

    grid()
    assert len(notebook) == 1
    assert notebook[0].pages[-1].count("of") == 1
    grid(progress=False)
    grid(progress=lambda done, total: outputs.append((done, total)))
    assert len(notebook) == 1
    assert outputs[-1][0] == outputs[-1][1] > 0


def test_a_work_of_unknown_length_says_how_far_it_is():
    bar = Progress("reading", False)
    bar(1234, 0)
    assert "reading: 1,234, 0" in bar.html()
    assert " of " not in bar.html()
    assert "left" not in bar.html()
    assert "<progress style" in bar.html()


@pytest.mark.parametrize("limit", [None, 6])
def test_neurons_and_saliency_tell_how_far_they_are(limit):
    model = tiny.model("llama")
    output = list[Any]()
    tokenizer = train_tokenizer("words", ["a b c d e f g"])
    requests = ["decoder.blocks.0.ffn.hidden[0]"]
    top_activations(
        model,
        tokenizer,
        ["a b c d e f g"],
        requests,
        limit=limit,
        progress=lambda *at: output.append(at),
    )
    assert output[-1] == (limit or 8, limit or 0)
    output.clear()
    saliency(model, None, [1, 2, 3], steps=3, progress=lambda *at: output.append(at))
    assert output == [(3, 3)]
