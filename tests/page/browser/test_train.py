"""The Train screen: a log's numbers as they are, and a line that is appended is seen without a reload."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import served


def line(step: int) -> str:
    return (
        json.dumps({"step": step, "loss": 4 / step**0.5 + (9 if step == 777 else 0), "rate": 0.01, "norm": 1.0}) + "\n"
    )


@pytest.fixture
def training(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A page over a training's folder of 3,000 steps, one of them a spike: its URL and its log."""
    import uvicorn

    from glassformer.page.app import application
    from glassformer.page.security import LOOPBACK

    log = tmp_path / "log.jsonl"
    log.write_text("".join(map(line, range(1, 3001))))
    listening = socket.create_server(("127.0.0.1", 0))
    own = application(served.page(served.saved("gpt2", tmp_path / "model"), run=tmp_path), frozenset(LOOPBACK))
    server = uvicorn.Server(uvicorn.Config(own, log_level="warning", lifespan="off", timeout_graceful_shutdown=1))
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/", log
    server.should_exit = True


def test_a_training_is_seen_as_it_grows(training: tuple[str, Path], chromium: Any) -> None:
    url, log = training
    page = chromium.new_page(viewport={"width": 1366, "height": 900})
    errors: list[str] = []
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{url}#train")
    page.wait_for_selector('.curves [role="slider"]')
    page.wait_for_function("() => document.querySelector('.train [data-addr$=\".step\"]')?.dataset.v === '3000'")
    box = page.locator('.curves [role="slider"]').first.bounding_box()
    for share in (0.2, 0.5, 0.9):
        found = page.evaluate(
            "([x, y]) => window.__glassformer.probe(x, y)", [box["x"] + 52 + share * (box["width"] - 64), box["y"] + 60]
        )
        step = int(found["addr"].rpartition("[")[2].rstrip("]"))
        steps = [one for one in range(step - 1, step + 1) if one >= 1]  # a point is two steps here
        values = [json.loads(line(one))["loss"] for one in steps]
        assert found["value"] == pytest.approx(sum(values) / len(values), rel=1e-9), found
    with log.open("a") as opened:
        opened.write(line(3001))
    page.wait_for_function(
        "() => document.querySelector('.train [data-addr$=\".step\"]')?.dataset.v === '3001'", timeout=5000
    )
    last = page.locator('.train [data-addr$=".loss[3001]"]')
    assert float(last.get_attribute("data-v")) == pytest.approx(json.loads(line(3001))["loss"], rel=1e-12)
    page.close()
    assert not errors, errors
