"""What is asked of a model: the same numbers as the library's, and mistakes as sentences."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page needs its extra: pip install -e '.[page]'")
pytest.importorskip("httpx", reason="tests of the page need httpx")

import glassformer
import served
from glassformer.formats import store
from glassformer.serve.page import routes
from glassformer.serve.page.fields import CircuitFields
from glassformer.sight.contexts import word_in_contexts
from glassformer.sight.heads import head_scores


def as_json(value: Any) -> Any:
    """Through JSON and back: lists for tuples."""
    return json.loads(json.dumps(value))


TEXTS = ["the cat sat on the mat", "a dog and a cat"]


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5"])
def test_heads_and_contexts_are_the_librarys(name, tmp_path):
    path = served.saved(name, tmp_path / name)
    client = served.client(served.page(path))
    model, tokenizer = store.load(path)
    assert client.answer(f"/api/heads/{name}") == as_json(head_scores(model, tokenizer).to_dict())
    body = client.ask("/api/contexts", model=name, word="cat", texts=TEXTS)
    assert body == as_json(word_in_contexts(model, tokenizer, "cat", *TEXTS).to_dict())


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_circuit_is_the_commands(name, tmp_path, terminal):
    path = served.saved(name, tmp_path / name)
    client = served.client(served.page(path))
    pair = name == "t5"
    texts = {"text": TEXTS[1]} | ({"source": "the mat sat"} if pair else {})
    run = client.ask("/api/runs", model=name, **texts)["run"]
    options = {"answer": "7", "instead": "3", "least": 0.1, "greedy": not pair, "draws": 3}
    corrupted = {"corrupted_source": "the log sat"} if pair else {"corrupted": "a cat and a dog"}
    answer = client.ask(f"/api/runs/{run}/circuit", **options, **corrupted)
    words = "--source 'the mat sat' --source 'the log sat'"
    words = words if pair else "--corrupted 'a cat and a dog' --greedy"
    command = f"circuit {path} '{TEXTS[1]}' --answer 7 --instead 3 --least 0.1 --draws 3"
    assert answer == terminal.json(f"{command} {words}")
    assert len(answer["nodes"]) > 2 and answer["faithfulness"]["held_at"].startswith("the corr")


def test_a_circuit_refuses_edits_and_ends_with_its_reader(tmp_path, monkeypatch):
    page = served.page(served.saved("gpt2", tmp_path / "gpt"))
    client = served.client(page)
    texts = {"model": "gpt", "text": TEXTS[0]}
    edits = ["head_off('decoder.blocks.0.attn', 0)"]
    run = client.ask("/api/runs", **texts, edits=edits)["run"]
    assert "take the edits out" in client.ask(f"/api/runs/{run}/circuit")["error"]
    run = client.ask("/api/runs", **texts)["run"]
    assert "least is 2" in client.ask(f"/api/runs/{run}/circuit", least=2)["error"]
    monkeypatch.setattr(routes, "PAGE_EDGES", 3)
    message = client.ask(f"/api/runs/{run}/circuit", least=1e-6, draws=0)["error"]
    assert message.startswith("The page shows 3 edges, and this circuit has ")
    calls = iter(range(9))

    def gone():
        if next(calls) == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        page.circuit(CircuitFields(answer="7"), gone, run)


def test_heads_over_time_are_those_of_head_history(tmp_path):
    for step, folder in ((2, "replayed"), (9, ".")):
        served.saved("gpt2", tmp_path / "mine" / folder / f"step-{step:06d}", seed=step)
    log = tmp_path / "mine" / "log.jsonl"
    log.write_text("".join(f'{{"step": {step}, "loss": 2.0}}\n' for step in range(1, 10)))
    client = served.client(served.page(run=tmp_path / "mine"))
    steps = [point["model"] for point in client.answer("/api/train")[0]["checkpoints"]]
    assert steps == ["mine@2", "mine@9"]
    history = glassformer.head_history(tmp_path / "mine")
    answers = [client.answer(f"/api/heads/{model}")["heads"] for model in steps]
    assert answers == [as_json([asdict(x) for x in moment.heads]) for moment in history.steps]
    assert answers[0] != answers[1]


def test_mistakes_are_sentences(tmp_path):
    client = served.client(served.page(served.saved("gpt2", tmp_path / "gpt")))
    assert client.get("/api/heads/nobody").status_code == 404
    for query, message in (
        ({"word": "fish", "texts": TEXTS}, "fish"),
        ({"word": " ", "texts": TEXTS}, "no word"),
        ({"word": "cat", "texts": TEXTS[:1]}, "two"),
        ({"word": "cat", "texts": [1, 2]}, "text"),
    ):
        answer = client.post("/api/contexts", json={"model": "gpt", **query})
        assert answer.status_code == 400 and message in answer.json()["error"], answer.text
