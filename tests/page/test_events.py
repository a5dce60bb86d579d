"""Training folders as they grow: nothing twice, nothing lost, a spike always seen."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("starlette", reason="the page needs its extra: pip install -e '.[page]'")
pytest.importorskip("httpx", reason="tests of the page need httpx")

import served
from folders import write_json
from glassformer.core.config.run import PAUSED
from glassformer.formats.checkpoint import Checkpoint
from glassformer.serve.page.events import MAX_LOADED, Trainings
from glassformer.serve.page.routes import starlette_app

from .test_tail import write


def test_a_run_folder_becomes_a_model(tmp_path):
    """The page may be there before the training is."""
    page = served.page(run=tmp_path / "runs")
    client = served.client(page)
    assert client.answer("/api/train") == []
    folder = tmp_path / "runs" / "mine"
    write(folder / "log.jsonl", 1, 20)
    fields = {
        "train": {"steps": 40, "objective": {"type": "Causal"}},
        "model": {"embed": {"vocab": 300}},
    }
    write_json(folder / "run.json", fields)
    for step in (10, 20):
        served.saved("gpt2", folder / f"step-{step:06d}", seed=step)
    (folder / "last").write_text("step-000020\n")
    (card,) = client.answer("/api/train")
    assert (card["step"], card["steps"], card["live"], card["done"]) == (20, 40, True, False)
    assert card["chance"] == math.log(300)
    assert [item["model"] for item in card["checkpoints"]] == ["mine@10", "mine@20"]
    names = [item["name"] for item in client.answer("/api/models")]
    shipped = ["tiny-page", "tiny-encoder", "tiny-stories", "tiny-translator"]
    assert names == [*shipped, "mine"]
    probe = client.answer("/api/train/mine/probe", text="the cat")
    runs = [item["run"] for item in probe["steps"]]
    assert len(set(runs)) == 2
    for run in runs:
        assert client.get(f"/api/runs/{run}/thumbs", params={"px": 8}).status_code == 200
    body = client.ask("/api/runs", model="mine", text="the cat")
    assert body["run"] == runs[1], "the run's name is its last checkpoint"
    assert client.post("/api/runs", json={"model": "mine@15", "text": "the cat"}).status_code == 404
    assert (
        client.post("/api/runs", json={"model": "mine@../10", "text": "the cat"}).status_code == 404
    )
    assert client.get("/api/train/other/series").status_code == 404
    assert client.get(f"/api/vocab/mine@{'1' * 5000}").status_code == 404, "no number has as many"
    pair = served.client(served.page(folder, run=tmp_path / "runs"))
    assert [item["name"] for item in pair.answer("/api/models")] == ["mine"], (
        "given and watched: one model"
    )


def test_news_come_by_cursor(tmp_path):
    """A reader that sleeps, or a server that begins again, goes on from the last cursor without gap
    or jump."""
    folder = tmp_path / "mine"
    write(folder / "log.jsonl", 1, 5)
    client = served.client(served.page(run=folder))
    first = client.answer("/api/events", topics="train:mine", poll=1)
    assert first["trainings"]["mine"]["first"] == [1, 2, 3, 4, 5]
    write(folder / "log.jsonl", 6, 7)
    fresh = served.client(served.page(run=folder))
    body = {"topics": "train:mine", "poll": 1, "since": first["cursor"]}
    second = fresh.answer("/api/events", **body)
    assert second["trainings"]["mine"]["first"] == [6, 7]
    body["since"] = second["cursor"]
    assert fresh.answer("/api/events", **body)["trainings"] == {}


def test_the_stream_says_what_comes(tmp_path):
    folder = tmp_path / "mine"
    write(folder / "log.jsonl", 1, 2)
    trainings = served.page(run=folder).trainings
    assert isinstance(trainings, Trainings)

    async def read_events():
        results = []
        async for block in trainings.stream({"mine": 0}):
            fields = dict(line.partition(": ")[::2] for line in block.decode().strip().splitlines())
            if "data" in fields:
                data = json.loads(fields["data"])
                results.append((fields["id"], data["trainings"]["mine"]["first"]))
                write(folder / "log.jsonl", 3, 3)
            if len(results) == 2:
                return results
        return results

    with ThreadPoolExecutor() as apart:  # a browser's test may have left a loop in this thread
        result = apart.submit(lambda: asyncio.run(read_events())).result()
    assert result == [("mine:2", [1, 2]), ("mine:3", [3])]


def test_samples_are_the_last_lines(tmp_path):
    folder = tmp_path / "mine"
    write(folder / "log.jsonl", 1, 2)
    rows = [{"step": n, "text": f"sample {n}"} for n in range(300)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "half")
    body = served.client(served.page(run=folder)).answer("/api/train/mine/samples")
    assert body == rows[-200:]


def test_each_experts_share_at_each_validation(tmp_path):
    folder = tmp_path / "mine"
    write(folder / "log.jsonl", 1, 20)
    rows = [
        {"step": step, "mixture": f"decoder.blocks.{layer}.ffn", "choices": 8, "experts": [
            {"share": 0.25 + layer / 10, "tokens": [["e", step, 1.0]]}, {"share": 0.75 - layer / 10, "tokens": []}]}
        for step in (10, 20) for layer in (0, 1)
    ]  # fmt: skip
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "routing.jsonl").write_text(
        text + '{"step": 30, "mixture": "decoder.blocks.0.ffn"}\n' + text[:40]
    )
    first, second = served.client(served.page(run=folder)).answer("/api/train/mine/routing")
    assert first["address"] == "decoder.blocks.0.ffn" and first["steps"] == [10, 20]
    assert second["share"] == [[0.35, 0.65], [0.35, 0.65]] and second["tokens"] == [
        [["e", 20, 1.0]],
        [],
    ]


def nested(value, depth):
    """JSON of a value in so many lists."""
    return "[" * depth + value + "]" * depth


@pytest.mark.parametrize("steps", [nested("NaN", 480), nested("1", 900), "Infinity", "9" * 4000])
def test_a_damaged_run_file_hides_no_other_training(steps, tmp_path):
    write(tmp_path / "mine" / "log.jsonl", 1, 20)
    write(tmp_path / "other" / "log.jsonl", 1, 20)
    objective = nested("NaN", 480)
    text = f'{{"train": {{"steps": {steps}, "objective": {{"type": {objective}}}}}}}'
    (tmp_path / "other" / "run.json").write_text(text)
    (tmp_path / "mine" / "run.json").write_text(json.dumps({"train": {"steps": 40}}))
    cards = served.client(served.page(run=tmp_path)).answer("/api/train")
    assert [(card["name"], card["steps"]) for card in cards] == [("mine", 40), ("other", None)]
    assert cards[1]["objective"] is None


@pytest.mark.parametrize("value", [nested("NaN", 480), nested("1", 900), "NaN", "{}", '"a"'])
def test_damaged_lines_of_routing_are_passed_over(value, tmp_path):
    folder = tmp_path / "mine"
    write(folder / "log.jsonl", 1, 20)
    line = '{"step": %d, "mixture": %s, "experts": [{"share": %s, "tokens": %s}]}\n'
    whole = '[["e", 1, 0.5]]'
    (folder / "routing.jsonl").write_text(
        line % (10, '"ffn"', "1.0", whole)
        + line % (20, '"ffn"', value, whole)
        + line % (30, '"ffn"', "1.0", value)
        + (line % (40, value, "1.0", whole) if value != '"a"' else "")
    )
    (mixture,) = served.client(served.page(run=folder)).answer("/api/train/mine/routing")
    assert mixture["steps"] == [10] and mixture["tokens"] == [[["e", 1, 0.5]]]


def test_a_training_is_asked_to_stop_by_a_file(tmp_path):
    """Only one that runs; the request is a file in its own folder, and no signal to whatever has
    its number now."""
    folder = tmp_path / "mine"
    write(folder / "log.jsonl", 1, 20)
    write_json(folder / "run.json", {"train": {"steps": 40}})
    client = served.client(served.page(run=folder))
    assert client.ask("/api/train/mine/stop")["asked"] and (folder / "stop").is_file()
    assert client.answer("/api/train")[0]["stopping"]
    write(folder / "log.jsonl", 21, 40)
    refused = client.post("/api/train/mine/stop", json={})
    assert refused.status_code == 400 and "not running" in refused.json()["error"]
    assert client.post("/api/train/other/stop", json={}).status_code == 404


def test_a_training_waits_as_long_as_a_file_is_there(tmp_path):
    """A run that waits writes no line and yet lives, by the age of that file; one killed meanwhile
    does not."""
    folder = tmp_path / "mine"
    write(folder / "log.jsonl", 1, 20, seconds=0.1)
    write_json(folder / "run.json", {"train": {"steps": 40}})
    client = served.client(served.page(run=folder))
    pause = folder / "pause"

    def card_state():
        (card,) = client.answer("/api/train")
        return card["live"], card["pausing"], card["paused"]

    def ask(paused):
        return client.post("/api/train/mine/pause", json={"paused": paused})

    assert card_state() == (True, False, False) and ask("yes").status_code == 400
    assert ask(True).json()["asked"] and card_state() == (True, True, False)
    pause.write_text(PAUSED)
    long_ago = time.time() - 600
    os.utime(folder / "log.jsonl", (long_ago, long_ago))
    served.saved("gpt2", folder / "step-000020")
    assert card_state() == (True, False, True), (
        "its last step was saved and nothing came since: it waits"
    )
    assert ask(True).json()["asked"] and pause.read_text() == PAUSED
    os.utime(pause, (long_ago, long_ago))
    assert card_state() == (False, False, False), "nobody waits there any more"
    assert ask(False).json()["asked"] and not pause.exists() and ask(False).status_code == 200
    refused = ask(True)
    assert refused.status_code == 400 and "not running" in refused.json()["error"]


DAMAGED = ("[]", "[" * 100_000, '{"train": 3, "model": []}', '{"train": {"objective": [1]}}', "\0")


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_run_file_keeps_no_other_training_from_the_list(tmp_path, text):
    for name in ("good", "odd"):
        write(tmp_path / name / "log.jsonl", 1, 3)
    (tmp_path / "odd" / "run.json").write_text(text)
    cards = served.client(served.page(run=tmp_path)).answer("/api/train")
    assert [(card["name"], card["step"], card["steps"]) for card in cards] == [
        ("good", 3, None),
        ("odd", 3, None),
    ]


def test_a_folder_that_cannot_be_read_keeps_no_training_from_the_list(tmp_path, monkeypatch):
    """Another user's, beside this one's."""
    for name in ("good", "locked"):
        write(tmp_path / name / "log.jsonl", 1, 3)
    look = type(tmp_path).stat

    def refusing(self, **options):
        if "locked" in self.parts:
            raise PermissionError(13, "Permission denied", str(self))
        return look(self, **options)

    monkeypatch.setattr(type(tmp_path), "stat", refusing)
    assert [*served.page(run=tmp_path).trainings.folders()] == ["good"]


def test_a_browser_that_leaves_a_stream_leaves_no_traceback(tmp_path, capsys):
    """As when the tab of a training is closed."""
    write(tmp_path / "mine" / "log.jsonl", 1, 3)
    app = starlette_app(served.page(run=tmp_path))

    async def visit():
        started = asyncio.Event()

        async def receive():
            await started.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if b"train" in message.get("body", b""):
                started.set()

        query = b"topics=train:mine"
        scope = {"type": "http", "method": "GET", "path": "/api/events", "query_string": query}
        await app(scope | {"headers": []}, receive, send)

    asyncio.run(visit())
    assert capsys.readouterr().err == ""


def test_a_checkpoint_that_is_removed_while_it_is_opened_is_no_model(tmp_path, monkeypatch):
    """A training keeps its last ones alone."""
    folder = tmp_path / "mine"
    write(folder / "log.jsonl", 1, 3)
    served.saved("gpt2", folder / "step-000003")
    page = served.page(run=tmp_path)
    client = served.client(page)
    open_checkpoint = Checkpoint.open

    def read_and_remove(name):
        checkpoint = open_checkpoint(name)
        shutil.rmtree(name, ignore_errors=True)
        return checkpoint

    assert client.post("/api/runs", json={"model": "mine@3", "text": "the"}).status_code == 200
    monkeypatch.setattr(Checkpoint, "open", read_and_remove)
    # its weights are in memory, whole
    assert client.post("/api/runs", json={"model": "mine@3", "text": "a"}).status_code == 200
    monkeypatch.undo()
    assert client.post("/api/runs", json={"model": "mine@3", "text": "a"}).status_code == 404
    served.saved("gpt2", folder / "step-000004")
    monkeypatch.setattr(Checkpoint, "open", read_and_remove)
    answer = client.post("/api/runs", json={"model": "mine@4", "text": "a"})
    assert answer.status_code == 400 and "There is no folder" in answer.json()["error"]


def test_models_of_checkpoints_do_not_stay_for_their_runs(tmp_path):
    """The page's view of a training reads a text by each new checkpoint; each run held its model for
    good, one more with each checkpoint."""
    for step in range(1, 13):
        served.saved("gpt2", tmp_path / f"step-{step:06d}", seed=step)
    write(tmp_path / "log.jsonl", 1, 12)
    page = served.page(run=tmp_path)
    client = served.client(page)
    path = f"/api/train/{tmp_path.name}/probe"
    assert len(client.answer(path, text="the cat")["steps"]) == 12
    runs = page.runs._runs.values()
    assert len({run.loaded for run in runs}) == 12, "small ones stay"
    (size,) = {run.loaded.bytes for run in runs}
    assert size == sum(weight.nbytes for weight in next(iter(runs)).loaded.model.parameters())
    page.runs.max_bytes = 3 * size
    steps = client.answer(path, text="the dog")["steps"]
    assert len({run.loaded for run in runs}) <= MAX_LOADED + 3
    assert client.get(f"/api/runs/{steps[-1]['run']}").status_code == 200


def test_a_name_that_another_folder_takes_over_is_of_that_folder(tmp_path):
    """Folders whose names are equal in the characters of an id are numbered in their order."""
    page = served.page(run=tmp_path)
    client = served.client(page)
    digests = []
    for seed, name in enumerate(("b b", "b a")):
        write(tmp_path / name.replace("b a", "b  b") / "log.jsonl", 1, 2)
        served.saved("gpt2", tmp_path / name.replace("b a", "b  b") / "step-000001", seed=seed)
        digests.append(client.ask("/api/runs", model="b-b@1", text="the cat")["digest"])
    titles = [card["title"] for card in client.answer("/api/train")]
    assert titles[0].endswith("b  b") and digests[0] != digests[1]
