"""Tokenizers: listed without being opened, and how a word came to its tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page needs its extra: pip install -e '.[page]'")
pytest.importorskip("httpx", reason="tests of the page need httpx")

import served
from glassformer import generation
from glassformer.checkpoints import store
from glassformer.inspection.edits import mlp_off
from glassformer.tokenizer import pretrained

TEXT = "the cat 🎵 and  the log"


def test_listing_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named one that is in the data folder is offered by its place; opening starts when a text is
    cut by it."""
    served.tokenizer().save(tmp_path / "tok-gpt2")
    (tmp_path / "tok-qwen").mkdir()
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    page = served.page(served.saved("gpt2", tmp_path / "mine"))
    monkeypatch.setattr(pretrained, "open", lambda path: pytest.fail(f"{path} was opened"))
    found = {one["name"]: one for one in served.client(page).get("/api/tokenizers").json()}
    assert found["mine"] == {
        "name": "mine",
        "title": str(tmp_path / "mine"),
        "vocab": None,
        "available": True,
    }
    assert (
        found["gpt2"]["available"]
        and found["qwen"]["available"]
        and found["qwen"]["vocab"] == 151_657
    )
    assert not found["t5"]["available"] and "--with t5" in found["t5"]["command"]
    assert page.tokenizers._open == {}


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_the_steps_of_a_word_lead_to_its_tokens(kind: str, tmp_path: Path) -> None:
    client = served.client(served.page(served.saved(kind, tmp_path / "mine")))
    one = served.tokenizer("wordpiece" if kind == "bert" else "bpe")
    ids = one.encode(TEXT)
    for at in range(len(ids)):
        told = client.post(
            "/api/tokenize/steps", json={"tokenizer": "mine", "text": TEXT, "at": at}
        ).json()
        first = told["first"]
        assert (
            first <= at < first + len(told["ids"])
            and told["ids"] == ids[first : first + len(told["ids"])]
        )
        if kind == "gpt2":
            pieces = told["start"]
            for step in told["steps"]:  # each joins two neighbours and nothing else
                joined = [
                    n
                    for n in range(len(pieces) - 1)
                    if pieces[n : n + 2] == [step["left"], step["right"]]
                ]
                ways = [
                    [*pieces[:n], step["left"] + step["right"], *pieces[n + 2 :]] for n in joined
                ]
                assert step["pieces"] in ways
                pieces = step["pieces"]
            text = "".join(told["shown"][piece] for piece in told["pieces"])
            assert pieces == told["pieces"] and ("⟨" in text or text in TEXT)
    far = client.post(
        "/api/tokenize/steps", json={"tokenizer": "mine", "text": TEXT, "at": len(ids)}
    )
    assert far.status_code == 400 and f"from 0 to {len(ids) - 1}" in far.json()["error"]


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_beams_are_the_librarys(kind: str, tmp_path: Path) -> None:
    path = served.saved(kind, tmp_path / "mine")
    client = served.client(served.page(path))
    model, one = store.load(path)
    edit = mlp_off("decoder.blocks.0.ffn")
    text, start = "the cat sat", [*one.encode("a dog")]
    asked = {"source": text, "start": start} if kind == "t5" else {"text": text}
    told = client.post(
        "/api/beam",
        json={"model": "mine", "beams": 3, "max_new": 6, "edits": [repr(edit)], **asked},
    ).json()
    how: Any = {"start": start} if kind == "t5" else {}
    (found,) = generation.beam(model, one, text, beams=3, best=3, max_new=6, edits=[edit], **how)
    for shown, mine in zip(told["beams"], found, strict=True):
        assert [token["id"] for token in shown["tokens"]] == mine.tokens and shown[
            "score"
        ] == mine.score
        assert [token["logprob"] for token in shown["tokens"]] == mine.logprobs
    far = client.post("/api/beam", json={"model": "mine", "beams": 99, **asked})
    assert far.status_code == 400 and "1 to 8" in far.json()["error"]


def test_a_search_that_nobody_waits_for_ends_before_the_next_token(tmp_path: Path) -> None:
    from glassformer.page import words

    class Gone(Exception):
        pass

    asked = {"model": "mine", "text": "the cat", "max_new": 6}
    models, left = served.page(served.saved("gpt2", tmp_path / "mine")).models, [9]

    def check() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Gone

    words.beams(models, asked | {"max_new": 1}, check)  # loading and waiting ask too
    left[0] = 9 - left[0] + 2  # so many, and two tokens more
    with pytest.raises(Gone):
        words.beams(models, asked, check)
    assert left == [-1]


def test_a_target_that_has_begun_is_continued(tmp_path: Path) -> None:
    """What an encoder-decoder has written so far is what its next tokens follow; a decoder has its
    text for that."""
    path = served.saved("t5", tmp_path / "mine")
    client = served.client(served.page(path))
    model, one = store.load(path)
    start = one.encode("a dog")
    asked = {
        "model": "mine",
        "source": "the cat",
        "start": start,
        "max_new": 5,
        "settings": {"temperature": 0},
    }
    with client.stream("POST", "/api/generate", json=asked) as stream:
        said = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data:")]
    made = generation.generate(model, one, "the cat", start=start, temperature=0, max_new=5)
    assert [step["id"] for step in said if "logprob" in step] == [step.token for step in made]
    other = served.client(served.page(served.saved("gpt2", tmp_path / "gpt")))
    refused = other.post("/api/generate", json={"model": "gpt", "text": "a", "start": start})
    assert refused.status_code == 400 and "encoder-decoder" in refused.json()["error"]
