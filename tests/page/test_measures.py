"""What is asked of a model: the same numbers as the library's, and mistakes as sentences."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page needs its extra: pip install -e '.[page]'")
pytest.importorskip("httpx", reason="tests of the page need httpx")

import served
from glassformer.formats import store
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
