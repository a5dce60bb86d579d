"""Training folders as they grow: nothing twice, nothing lost, a spike always seen."""

from __future__ import annotations

import asyncio
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the page needs its extra: pip install 'glassformer[page]'")
pytest.importorskip("httpx", reason="tests of the page need httpx")

import served
from glassformer.page.events import Tail, Trainings


def line(step: int, **more: float) -> str:
    """A line of a log."""
    return json.dumps({"step": step, "loss": 5.0 / step, **more}) + "\n"


def write(path: Path, first: int, last: int, mode: str = "a", **more: float) -> None:
    """Lines of steps, as a training appends them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as opened:
        opened.writelines(line(step, **more) for step in range(first, last + 1))


def test_what_is_appended_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tail = Tail(path)
    assert tail.series(0, 100)["cursor"] == 0
    write(path, 1, 3)
    with path.open("a") as opened:
        opened.write(line(4)[:9])  # a line that is half written
    first = tail.series(0, 100)
    assert first["first"] == [1, 2, 3] and first["columns"]["loss"]["mean"] == [5.0, 2.5, 5 / 3]
    with path.open("a") as opened:
        opened.write(line(4)[9:] + "not json\n[1]\n")
    second = tail.series(first["cursor"], 100)
    assert second["first"] == [4] and not second["reset"] and second["cursor"] == 4


def test_a_column_that_comes_later_stands_at_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, 1, 2)
    write(path, 3, 3, valid=1.5)  # as it was called
    write(path, 4, 4, valid_loss=1.0)
    told = Tail(path).series(0, 100)
    assert told["columns"]["valid_loss"]["mean"] == [None, None, 1.5, 1.0]


def test_a_training_that_goes_back_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    tail = Tail(path)
    write(path, 1, 10)
    cursor = tail.series(0, 100)["cursor"]
    write(path, 1, 4, "w")  # resumed at step 4: what came after was dropped
    told = tail.series(cursor, 100)
    assert told["reset"] and told["first"] == [1, 2, 3, 4] and told["turn"] == 1


def test_a_spike_is_in_every_bucket_size(tmp_path: Path) -> None:
    """100,000 steps in 1,000 points: least, greatest and mean are NumPy's, and buckets do not move as it grows."""
    path = tmp_path / "log.jsonl"
    values = np.sin(np.arange(100_000) / 1000)
    values[54_321] = 99.0
    path.write_text("".join(json.dumps({"step": n + 1, "loss": value}) + "\n" for n, value in enumerate(values)))
    tail = Tail(path)
    told = tail.series(0, 1000)
    size = told["bucket"]
    assert size == 128 and len(told["first"]) == math.ceil(100_000 / 128)
    cut = [values[at : at + size] for at in range(0, len(values), size)]
    assert told["columns"]["loss"]["max"] == [part.max() for part in cut]
    assert told["columns"]["loss"]["min"] == [part.min() for part in cut]
    np.testing.assert_allclose(told["columns"]["loss"]["mean"], [part.mean() for part in cut])
    assert max(told["columns"]["loss"]["max"]) == 99.0
    write(path, 100_001, 100_010)
    later = tail.series(0, 1000)
    assert (
        later["first"] == told["first"] and later["columns"]["loss"]["max"][:-1] == told["columns"]["loss"]["max"][:-1]
    )
    part = tail.series(70_000, 100)
    assert part["first"][0] == 70_001 and part["first"][1] % part["bucket"] == 1


def test_a_run_folder_becomes_a_model(tmp_path: Path) -> None:
    """The page may be there before the training is."""
    page = served.page(run=tmp_path / "runs")
    client = served.client(page)
    assert client.get("/api/train").json() == []
    folder = tmp_path / "runs" / "mine"
    write(folder / "log.jsonl", 1, 20)
    told = {"train": {"steps": 40, "objective": {"type": "Causal"}}, "model": {"embed": {"vocab": 300}}}
    (folder / "run.json").write_text(json.dumps(told))
    for step in (10, 20):
        served.saved("gpt2", folder / f"step-{step:06d}", seed=step)
    (folder / "last").write_text("step-000020\n")
    (card,) = client.get("/api/train").json()
    assert (card["step"], card["steps"], card["live"], card["done"]) == (20, 40, True, False)
    assert card["chance"] == math.log(300)
    assert [one["model"] for one in card["checkpoints"]] == ["mine@10", "mine@20"]
    assert [one["name"] for one in client.get("/api/models").json()] == ["tiny-page", "mine"]
    probe = client.get("/api/train/mine/probe", params={"text": "the cat"}).json()
    runs = [one["run"] for one in probe["steps"]]
    assert len(set(runs)) == 2
    for run in runs:
        assert client.get(f"/api/runs/{run}/thumbs", params={"px": 8}).status_code == 200
    whole = client.post("/api/runs", json={"model": "mine", "text": "the cat"}).json()
    assert whole["run"] == runs[1], "the run's name is its last checkpoint"
    assert client.post("/api/runs", json={"model": "mine@15", "text": "the cat"}).status_code == 404
    assert client.post("/api/runs", json={"model": "mine@../10", "text": "the cat"}).status_code == 404
    assert client.get("/api/train/other/series").status_code == 404
    both = served.client(served.page(folder, run=tmp_path / "runs"))
    assert [one["name"] for one in both.get("/api/models").json()] == ["mine"], "given and watched: one model"


def test_news_come_by_cursor(tmp_path: Path) -> None:
    """A reader that sleeps, or a server that begins again, goes on from the last cursor without gap or jump."""
    folder = tmp_path / "mine"
    write(folder / "log.jsonl", 1, 5)
    client = served.client(served.page(run=folder))
    first = client.get("/api/events", params={"topics": "train:mine", "poll": 1}).json()
    assert first["trainings"]["mine"]["first"] == [1, 2, 3, 4, 5]
    write(folder / "log.jsonl", 6, 7)
    fresh = served.client(served.page(run=folder))
    asked = {"topics": "train:mine", "poll": 1, "since": first["cursor"]}
    second = fresh.get("/api/events", params=asked).json()
    assert second["trainings"]["mine"]["first"] == [6, 7]
    asked["since"] = second["cursor"]
    assert fresh.get("/api/events", params=asked).json()["trainings"] == {}


def test_the_stream_says_what_comes(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    write(folder / "log.jsonl", 1, 2)
    trainings = served.page(run=folder).trainings
    assert isinstance(trainings, Trainings)

    async def read() -> list[tuple[str, Any]]:
        found = []
        async for block in trainings.stream({"mine": 0}):
            fields = dict(one.partition(": ")[::2] for one in block.decode().strip().splitlines())
            if "data" in fields:
                told = json.loads(fields["data"])
                found.append((fields["id"], told["trainings"]["mine"]["first"]))
                write(folder / "log.jsonl", 3, 3)
            if len(found) == 2:
                return found
        return found

    with ThreadPoolExecutor() as apart:  # a browser's test may have left a loop in this thread
        found = apart.submit(lambda: asyncio.run(read())).result()
    assert found == [("mine:2", [1, 2]), ("mine:3", [3])]


def test_samples_are_the_last_lines(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    write(folder / "log.jsonl", 1, 2)
    rows = [{"step": n, "text": f"sample {n}"} for n in range(300)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "half")
    found = served.client(served.page(run=folder)).get("/api/train/mine/samples").json()
    assert found == rows[-200:]


def test_each_experts_share_at_each_validation(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    write(folder / "log.jsonl", 1, 20)
    rows = [
        {"step": step, "mixture": f"decoder.blocks.{layer}.ffn", "choices": 8, "experts": [
            {"share": 0.25 + layer / 10, "tokens": [["e", step, 1.0]]}, {"share": 0.75 - layer / 10, "tokens": []}]}
        for step in (10, 20) for layer in (0, 1)
    ]  # fmt: skip
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "routing.jsonl").write_text(text + '{"step": 30, "mixture": "decoder.blocks.0.ffn"}\n' + text[:40])
    first, second = served.client(served.page(run=folder)).get("/api/train/mine/routing").json()
    assert first["address"] == "decoder.blocks.0.ffn" and first["steps"] == [10, 20]
    assert second["share"] == [[0.35, 0.65], [0.35, 0.65]] and second["tokens"] == [[["e", 20, 1.0]], []]


def test_a_training_is_asked_to_stop_by_a_file(tmp_path: Path) -> None:
    """Only one that runs; the request is a file in its own folder, and no signal to whatever has its number now."""
    folder = tmp_path / "mine"
    write(folder / "log.jsonl", 1, 20)
    (folder / "run.json").write_text(json.dumps({"train": {"steps": 40}}))
    client = served.client(served.page(run=folder))
    assert client.post("/api/train/mine/stop", json={}).json()["asked"] and (folder / "stop").is_file()
    assert client.get("/api/train").json()[0]["stopping"]
    write(folder / "log.jsonl", 21, 40)
    refused = client.post("/api/train/mine/stop", json={})
    assert refused.status_code == 400 and "not running" in refused.json()["error"]
    assert client.post("/api/train/other/stop", json={}).status_code == 404
