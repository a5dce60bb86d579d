"""Tokenizers: listed without being opened, and how a word came to its tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page needs its extra: pip install -e '.[page]'")
pytest.importorskip("httpx", reason="tests of the page need httpx")

import served
from glassformer import generation
from glassformer.formats import pretrained, store
from glassformer.serve.page import generation as page_generation
from glassformer.sight.edits import mlp_off

TEXT = "the cat 🎵 and  the log"


def test_listing_opens_nothing(tmp_path, monkeypatch):
    """A named one that is in the data folder is offered by its place; opening starts when a text is
    cut by it."""
    served.tokenizer().save(tmp_path / "tok-gpt2")
    (tmp_path / "tok-qwen").mkdir()
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    page = served.page(served.saved("gpt2", tmp_path / "mine"))
    monkeypatch.setattr(pretrained, "open", lambda path: pytest.fail(f"{path} was opened"))
    result = {item["name"]: item for item in served.client(page).answer("/api/tokenizers")}
    assert result["mine"] == {
        "name": "mine",
        "title": str(tmp_path / "mine"),
        "vocab": None,
        "available": True,
    }
    assert (
        result["gpt2"]["available"]
        and result["qwen"]["available"]
        and result["qwen"]["vocab"] == 151_657
    )
    assert not result["t5"]["available"] and "--with t5" in result["t5"]["command"]
    assert page.tokenizers._open == {}


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_the_steps_of_a_word_lead_to_its_tokens(kind, tmp_path):
    client = served.client(served.page(served.saved(kind, tmp_path / "mine")))
    tokenizer = served.tokenizer("wordpiece" if kind == "bert" else "bpe")
    ids = tokenizer.encode(TEXT)
    for at in range(len(ids)):
        body = client.ask("/api/tokenize/steps", tokenizer="mine", text=TEXT, at=at)
        first = body["first"]
        assert (
            first <= at < first + len(body["ids"])
            and body["ids"] == ids[first : first + len(body["ids"])]
        )
        if kind == "gpt2":
            pieces = body["start"]
            for step in body["steps"]:  # each joins two neighbours and nothing else
                joined = [
                    n
                    for n in range(len(pieces) - 1)
                    if pieces[n : n + 2] == [step["left"], step["right"]]
                ]
                variants = [
                    [*pieces[:n], step["left"] + step["right"], *pieces[n + 2 :]] for n in joined
                ]
                assert step["pieces"] in variants
                pieces = step["pieces"]
            text = "".join(body["shown"][piece] for piece in body["pieces"])
            assert pieces == body["pieces"] and ("⟨" in text or text in TEXT)
    far = client.post(
        "/api/tokenize/steps", json={"tokenizer": "mine", "text": TEXT, "at": len(ids)}
    )
    assert far.status_code == 400 and f"from 0 to {len(ids) - 1}" in far.json()["error"]


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_beams_are_the_librarys(kind, tmp_path):
    path = served.saved(kind, tmp_path / "mine")
    client = served.client(served.page(path))
    model, item = store.load(path)
    edit = mlp_off("decoder.blocks.0.ffn")
    text, start = "the cat sat", [*item.encode("a dog")]
    query = {"source": text, "start": start} if kind == "t5" else {"text": text}
    body = client.ask("/api/beam", model="mine", beams=3, max_new=6, edits=[repr(edit)], **query)
    options: Any = {"start": start} if kind == "t5" else {}
    (hypotheses,) = generation.beam(
        model, item, text, beams=3, best=3, max_new=6, edits=[edit], **options
    )
    for displayed, hypothesis in zip(body["beams"], hypotheses, strict=True):
        assert [token["id"] for token in displayed["tokens"]] == hypothesis.tokens and displayed[
            "score"
        ] == hypothesis.score
        assert [token["logprob"] for token in displayed["tokens"]] == hypothesis.logprobs
    far = client.post("/api/beam", json={"model": "mine", "beams": 99, **query})
    assert far.status_code == 400 and "8 or less" in far.json()["error"]


def test_a_search_that_nobody_waits_for_ends_before_the_next_token(tmp_path):
    from glassformer.serve.page import generation
    from glassformer.serve.page.fields import BeamFields

    class Gone(Exception):
        pass

    body = BeamFields(model="mine", text="the cat", max_new=6)
    models, remaining = served.page(served.saved("gpt2", tmp_path / "mine")).models, [9]

    def check():
        remaining[0] -= 1
        if remaining[0] < 0:
            raise Gone

    generation.beams(
        models, body.model_copy(update={"max_new": 1}), check
    )  # loading and waiting ask too
    remaining[0] = 9 - remaining[0] + 2  # so many, and two tokens more
    with pytest.raises(Gone):
        generation.beams(models, body, check)
    assert remaining == [-1]


def test_a_target_that_has_begun_is_continued(tmp_path):
    """The next tokens of an encoder-decoder follow its target so far; a decoder has its text for
    that."""
    path = served.saved("t5", tmp_path / "mine")
    client = served.client(served.page(path))
    model, item = store.load(path)
    start = item.encode("a dog")
    body = {
        "model": "mine",
        "source": "the cat",
        "start": start,
        "max_new": 5,
        "settings": {"temperature": 0},
    }
    with client.stream("POST", "/api/generate", json=body) as stream:
        data = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data:")]
    output = generation.generate(model, item, "the cat", start=start, temperature=0, max_new=5)
    assert [step["id"] for step in data if "logprob" in step] == [step.token for step in output]
    second = served.client(served.page(served.saved("gpt2", tmp_path / "gpt")))
    refused = second.post("/api/generate", json={"model": "gpt", "text": "a", "start": start})
    assert refused.status_code == 400 and "encoder-decoder" in refused.json()["error"]


def test_few_tokenizers_stay_in_memory(tmp_path, monkeypatch):
    """Each checkpoint of a training, and each time that a folder is replaced, is another tokenizer."""
    monkeypatch.setattr(page_generation, "MOST_OPEN", 2)
    names = [served.saved("gpt2", tmp_path / str(number)).name for number in range(5)]
    page = served.page(*(tmp_path / name for name in names))
    client = served.client(page)
    for name in (*names, names[0]):
        assert client.get(f"/api/vocab/{name}").status_code == 200
        steps = client.ask("/api/tokenize/steps", tokenizer=name, text="the cat", at=0)
        assert steps["first"] == 0
    assert len(page.tokenizers._open) <= 3
