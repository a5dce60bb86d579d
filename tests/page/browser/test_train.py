"""The Train screen: a log's numbers as they are, and a line that is appended is seen without a
reload."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch

import served
from folders import write_json, write_rows
from glassformer.core.config.run import PAUSED
from glassformer.formats import store
from glassformer.sight.heads import head_scores
from glassformer.sight.inputs import token_ids


def line(step: int) -> str:
    return (
        json.dumps(
            {
                "step": step,
                "loss": 4 / step**0.5 + (9 if step == 777 else 0),
                "lr": 0.01,
                "grad_norm": 1.0,
            }
        )
        + "\n"
    )


@pytest.fixture
def training(tmp_path, serving):
    """A page over a training's folder of 3,000 steps, one of them a spike: its URL and its log."""
    log = tmp_path / "log.jsonl"
    log.write_text("".join(map(line, range(1, 3001))))
    fields = {
        "train": {"steps": 9000, "objective": {"type": "Causal"}},
        "model": {"embed": {"vocab": 300}},
    }
    write_json(tmp_path / "run.json", fields)
    experts = [{"share": share, "tokens": [["e", 3, 1.0]]} for share in (0.125, 0.875)]
    routes = [
        {"step": step, "mixture": "decoder.blocks.0.ffn", "experts": experts}
        for step in (1000, 3000)
    ]
    write_rows(tmp_path / "routing.jsonl", routes)
    for step in (1000, 3000):
        served.saved("gpt2", tmp_path / f"step-{step:06d}", seed=step)
    (tmp_path / "last").write_text("step-003000\n")
    with serving(served.saved("gpt2", tmp_path / "model"), run=tmp_path) as url:
        yield url, log


def test_a_training_is_seen_as_it_grows(training, tab, monkeypatch):
    from glassformer.serve.page.events import POLL_SECONDS, Trainings

    url, log = training
    page, looks, query, news = tab, list[tuple[int, Any]](), list[str](), Trainings.updates

    def noted(self, cursors):
        size, output = log.stat().st_size, news(self, cursors)
        looks.append((size, output["trainings"]))
        return output

    monkeypatch.setattr(Trainings, "updates", noted)
    page.on(
        "request", lambda request: query.append(request.url) if "/series" in request.url else None
    )
    page.goto(f"{url}#train")
    page.wait_for_selector('.curves [role="slider"]')
    page.wait_for_function(
        "() => document.querySelector('.train [data-addr$=\".step\"]')?.dataset.v === '3000'"
    )
    box = page.locator('.curves [role="slider"]').first.bounding_box()
    for share in (0.2, 0.5, 0.9):
        metrics = page.evaluate(
            "([x, y]) => window.__glassformer.probe(x, y)",
            [box["x"] + 52 + share * (box["width"] - 64), box["y"] + 60],
        )
        step = int(metrics["addr"].rpartition("[")[2].rstrip("]"))
        steps = [
            index for index in range(step - 1, step + 1) if index >= 1
        ]  # a point is two steps here
        values = [json.loads(line(step))["loss"] for step in steps]
        assert metrics["value"] == pytest.approx(sum(values) / len(values), rel=1e-9), metrics
    with log.open("a") as opened:
        opened.write(line(3001))
    page.wait_for_function(
        "() => document.querySelector('.train [data-addr$=\".step\"]')?.dataset.v === '3001'"
    )
    # The first look at the longer log tells of the line, and the page shows it without asking for
    # the curves again.
    first = next(output for size, output in looks if size == log.stat().st_size)
    assert (
        [item["last"] for item in first.values()] == [[3001]]
        and len(query) == 1
        and POLL_SECONDS <= 0.5
    )
    last = page.locator('.train [data-addr$=".loss[3001]"]')
    assert float(last.get_attribute("data-v")) == pytest.approx(
        json.loads(line(3001))["loss"], rel=1e-12
    )
    samples = log.with_name("samples.jsonl")
    samples.write_text(
        json.dumps({"step": 3001, "text": "<img onerror=alert(1)> and the cat"}) + "\n"
    )
    page.wait_for_selector(
        'section[aria-label="samples"] >> text=<img onerror=alert(1)> and the cat'
    )
    share = page.locator('[data-addr$="decoder.blocks.0.ffn[1,3000]"]')
    assert float(share.get_attribute("data-v")) == 0.875
    displayed = page.locator('[data-addr*=".probe[1000].softmax"]').first
    token = int(displayed.get_attribute("data-addr").rpartition("[")[2].rstrip("]"))
    model, tokenizer = store.load(log.with_name("step-001000"))
    with torch.no_grad():
        row = model(token_ids(model, tokenizer, "The king said to the queen that")).logits[0, -1]
    row = row[: tokenizer.size].softmax(-1)  # of the words that there are
    assert float(displayed.get_attribute("data-v")) == pytest.approx(float(row[token]), rel=1e-4)
    page.get_by_role("button", name="Score the heads of 2 checkpoints").click()
    cell = page.locator('[data-addr*=".heads[1000]."]').first
    path, head = re.search(
        r"\]\.(.+)\[(\d)\]\.induction$", cell.get_attribute("data-addr")
    ).groups()
    (score,) = (
        x.scores["induction"]
        for x in head_scores(model, tokenizer).heads
        if (x.path, x.head) == (path, int(head))
    )
    assert float(cell.get_attribute("data-v")) == score
    row = page.locator('section[aria-label="heads over time"] tbody tr').first
    assert row.locator("td.num").first.inner_text() == ""  # a point is two steps here
    log.touch()  # it lives, however long this test has taken
    page.get_by_role("button", name="Pause").click()
    page.wait_for_selector("text=pauses after this step")
    log.with_name("pause").write_text(PAUSED)  # as a training does that waits
    page.wait_for_selector(".train .live >> text=paused")
    page.get_by_role("button", name="Go on").click()
    page.wait_for_selector(".train .live >> text=● live")
    assert not log.with_name("pause").exists()
    log.touch()
    page.get_by_role("button", name="Stop & save").click()
    page.wait_for_selector("text=saves and stops after this step")
    assert log.with_name("stop").is_file()
    page.mouse.click(box["x"] + 52 + 0.1 * (box["width"] - 64), box["y"] + 60)
    page.wait_for_function(
        "() => location.hash.startsWith('#inside') && location.hash.includes('%401000')"
    )
