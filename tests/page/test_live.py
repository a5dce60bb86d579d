"""A trace as a live page: the messages of a notebook are answered as the server answers."""

from __future__ import annotations

import itertools
import json
import queue
import sys
from collections.abc import Callable
from typing import Any

import pytest

import glassformer
import served
import tiny
from glassformer.core.errors import UserError
from glassformer.core.nn import build_model
from glassformer.serve.page.live import WidgetBridge
from glassformer.serve.page.routes import starlette_app
from glassformer.sight.edits import head_off

Ask = Callable[..., tuple[int, bytes]]


@pytest.fixture
def traced():
    model = build_model(served.worded(tiny.ALL["llama"]), seed=1)
    return glassformer.trace(model, served.tokenizer(), "the cat sat")


@pytest.fixture
def ask(tmp_path):
    """ask(method, path, body) -> status and bytes of the whole answer."""
    heard: queue.Queue[Any] = queue.Queue()
    ids = itertools.count(1)
    answering = WidgetBridge(
        starlette_app(served.page(served.saved("llama", tmp_path))), lambda *args: heard.put(args)
    )

    def send(method, path, body=None, cancel_after=0):
        id = next(ids)
        answering.receive(
            {
                "to": "a",
                "id": id,
                "method": method,
                "path": path,
                "body": "" if body is None else json.dumps(body),
            }
        )
        status, stored, count = 0, b"", 0
        while True:
            output, data = heard.get(timeout=60)
            assert (output["to"], output["id"]) == ("a", id)
            status, stored, count = output.get("status", status), stored + b"".join(data), count + 1
            if count == cancel_after:
                answering.receive({"to": "a", "id": id, "cancel": True})
                while answering.disconnects:
                    pass
                return status, stored
            if not output["more"]:
                return status, stored

    return send


def test_it_answers_as_the_server_does(ask):
    status, cards = ask("GET", "api/models")
    name = json.loads(cards)[0]["name"]
    assert status == 200
    data = json.loads(ask("POST", "api/runs", {"model": name, "text": "the cat"})[1])
    status, values = ask("GET", f"api/runs/{data['run']}/t?address=logits%5B0%5D&as=f32")
    assert status == 200 and values[8:9] == b"{"
    status, message = ask("POST", "api/runs", {"model": name, "text": ""})
    assert status == 400 and "empty" in json.loads(message)["error"]
    assert ask("GET", "api/runs/none")[0] == 404
    assert ask("GET", "../pyproject.toml")[0] == 404


def test_what_nobody_waits_for_is_not_computed_to_its_end(ask):
    name = json.loads(ask("GET", "api/models")[1])[0]["name"]
    options = {"model": name, "text": "the", "max_new": 8}
    full = ask("POST", "api/generate", options)[1]
    assert 0 < len(ask("POST", "api/generate", options, cancel_after=3)[1]) < len(full)


def test_without_the_extra_it_says_what_to_install(traced, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(UserError, match=r"pip install 'glassformer\[live\]'"):
        traced.live()


def test_what_it_cannot_show_is_refused(traced):
    with pytest.raises(UserError, match="There is no screen"):
        traced.live("heads")
    with pytest.raises(UserError, match="no height"):
        traced.live(height=1)
    edited = glassformer.trace(
        traced.model, traced.tokenizer, "the cat", edits=[head_off("decoder.blocks.0.attn", 0)]
    )
    with pytest.raises(UserError, match="edits"):
        edited.live()
