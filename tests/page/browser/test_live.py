"""A live page in Chromium: the widget's own script, a real model behind it, and no server."""

from __future__ import annotations

import base64
import queue
from collections.abc import Callable
from typing import Any

import pytest

import glassformer
from glassformer.formats import store

OPEN = """async ({ url, page, height }) => {
  const heard = [];
  const model = {
    get: name => ({ page, height })[name],
    send: message => window.toKernel(message),
    on: (name, hear) => heard.push(hear),
    off: () => undefined,
  };
  window.fromKernel = (told, data) => {
    const buffers = data.map(one => new DataView(Uint8Array.from(atob(one), char => char.charCodeAt(0)).buffer));
    heard.forEach(hear => hear(told, buffers));
  };
  const widget = (await import(url)).default;
  const el = document.createElement('div');
  document.body.append(el);
  widget.render({ model, el });
}"""


class Notebook:
    """A notebook between a widget in the kernel and its view in a tab."""

    def __init__(self, tab: Any, widget: Any) -> None:
        self.tab, self.told, self.asked = tab, queue.Queue(), []
        # in place of the kernel's socket
        widget.send = lambda message, buffers: self.told.put((message, buffers))
        tab.expose_function("toKernel", lambda message: self.hear(widget, message))
        script = base64.b64encode(str(widget._esm).encode()).decode()
        url = f"data:text/javascript;base64,{script}"
        tab.evaluate(OPEN, {"url": url, "page": widget.page, "height": widget.height})
        self.frame = tab.frames[-1]

    def hear(self, widget: Any, message: Any) -> None:
        self.asked.append(message.get("path", "cancel"))
        widget._handle_custom_msg(message, [])

    def until(self, ready: Callable[[], bool]) -> None:
        """Messages to and fro until that holds."""
        for _ in range(3000):
            while not self.told.empty():
                message, buffers = self.told.get()
                self.tab.evaluate(
                    "([told, data]) => fromKernel(told, data)",
                    [message, [base64.b64encode(buffer).decode() for buffer in buffers]],
                )
            if ready():
                return
            self.tab.wait_for_timeout(20)
        raise AssertionError("it did not come")


def test_the_kernel_answers_the_page(site, tab):
    pytest.importorskip("anywidget", reason="needs anywidget: pip install -e '.[live]'")
    model, tokenizer = store.load(site.folders["llama"])
    trace = glassformer.trace(model, tokenizer, "the cat sat")
    notebook = Notebook(tab, trace.live("inside"))
    frame, cards = notebook.frame, notebook.frame.locator("main .op")
    notebook.until(
        lambda: cards.count() > 0 and "connected" in frame.locator("footer").inner_text()
    )
    cell = "probs[2,10]"
    frame.evaluate(
        "cell => { location.hash = '#inside?' + location.hash.split('?')[1] + "
        "'&op=probs&c=' + cell }",
        cell,
    )
    value = frame.locator("section.cell .value .num")
    notebook.until(lambda: value.count() > 0)
    assert value.get_attribute("data-addr") == cell
    assert float(value.get_attribute("data-v") or "nan") == pytest.approx(
        float(trace[cell]), rel=1e-6
    )
    assert notebook.asked.count("api/runs") == 1  # and that one was the trace itself
    words = frame.locator(".text .token")
    before = words.count()
    frame.locator("#prompt").fill("the cat sat on the mat")
    frame.locator("#prompt").press("Enter")
    notebook.until(lambda: words.count() > before)
    assert notebook.asked.count("api/runs") == 2 and not frame.locator(".failure").count()


def test_a_kernel_that_says_nothing_is_told_of(site, tab):
    pytest.importorskip("anywidget", reason="needs anywidget: pip install -e '.[live]'")
    trace = glassformer.trace(*store.load(site.folders["gpt"]), "the cat")
    notebook = Notebook(tab, trace.live())
    notebook.until(lambda: notebook.frame.locator("aside .bars .num").count() > 0)
    notebook.hear = lambda *_: None
    notebook.frame.locator("#prompt").fill("another")
    notebook.frame.locator("#prompt").press("Enter")
    notebook.frame.wait_for_selector("main > .note:has-text('has not answered')")
