"""Completions: the same tokens as in process, whole as streamed; what OpenAI's clients rely on.

Through the paths of app: registry, generating, answers and their tokens with log-probabilities.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest

import glassformer
from glassformer.core.generation.sample import Sampling
from glassformer.core.tokenizer import train
from glassformer.serve.engine import Engine, Event, Request
from glassformer.serve.scored_tokens import TokenBuffer

from .conftest import events

ASKED = {"prompt": "O Romeo", "max_tokens": 24, "temperature": 0.8, "seed": 7}


def joined(chunks: list[Any], index: int = 0) -> str:
    return "".join(
        item["text"] for chunk in chunks for item in chunk["choices"] if item["index"] == index
    )


def flat(lists: Iterable[list[Any]]) -> list[Any]:
    return [*itertools.chain.from_iterable(lists)]


@pytest.mark.parametrize("seed", [0, 1, 2**40])
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_the_tokens_are_those_of_generate(server, chat_model, seed, temperature):
    """Reference: glassformer.generate on the same weights."""
    model, tokenizer = glassformer.load(chat_model, dtype="float32")
    output = glassformer.generate(
        model, tokenizer, "O Romeo", max_new=24, temperature=temperature, seed=seed, top_k=50
    ).run()
    body = {**ASKED, "temperature": temperature, "seed": seed, "top_k": 50, "logprobs": 0}
    answer = server.json("/v1/completions", body)
    (choice,) = answer["choices"]
    assert choice["text"] == output.text and choice["finish_reason"] == "length"
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(output.logprobs[0], abs=2e-5)
    assert answer["usage"]["completion_tokens"] == 24 and answer["object"] == "text_completion"


SAMPLED = [
    {"top_k": 3},
    {"top_p": 0.3},
    {"min_p": 0.3},
    {"repetition_penalty": 3.0},
    {"temperature": 0.2},
]
PENALISED = [{"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"logit_bias": {5: 20.0}}]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_each_field_of_sampling_is_obeyed(server, chat_model, path):
    """Reference: the engine in process with that setting alone."""
    model, tokenizer = glassformer.load(chat_model, dtype="float32")
    messages = [{"role": "user", "content": "O Romeo"}]
    chat = "chat" in path
    prompt = "user: O Romeo\nassistant:" if chat else "O Romeo"
    body = {"messages": messages} if chat else {"prompt": prompt}
    body |= {"max_tokens": 48, "seed": 7, "ignore_eos": True}
    texts = list[str]()
    with Engine(model, tokenizer) as engine:
        for field in [{}, *SAMPLED, *PENALISED]:
            sampling = Sampling(**(field if field in SAMPLED else {}))
            options: dict[str, Any] = field if field in PENALISED else {}
            ids = tokenizer.encode(prompt)
            request = Request(ids, sampling=sampling, max_new=48, seed=7, stop_tokens=(), **options)
            texts.append(engine.submit(request).result().completions[0].text)
            (choice,) = server.json(path, {**body, **field})["choices"]
            assert (choice["message"]["content"] if chat else choice["text"]) == texts[-1], field
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_every_chunk_is_the_same_but_for_its_text(server, path, options):
    """A plain chunk is written without its object, byte for byte as with it."""
    prompt = {"messages": [{"role": "user", "content": 'Say "\\n".'}]} if "chat" in path else ASKED
    body = {"max_tokens": 24, "seed": 3, **prompt}
    streamed = server.post(path, body, stream=True, **options)
    *lines, end = [line for line in streamed.text.split("\n\n") if line]
    assert end == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    written = [json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in chunks]
    assert lines == [f"data: {text}" for text in written]
    plain = [c for c in chunks if c["choices"] and c["choices"][0]["finish_reason"] is None]
    texts = [c["choices"][0].pop("delta" if "chat" in path else "text") for c in plain]
    assert len(plain) > 5 and all(c == plain[0] for c in plain) and any(texts)
    unstreamed = server.json(path, body)["choices"][0]
    if "chat" in path:
        assert "".join(text["content"] for text in texts) == unstreamed["message"]["content"]
    else:
        assert unstreamed["text"].startswith("".join(texts))


def test_a_stream_says_what_the_whole_answer_says(server):
    body = {**ASKED, "n": 3, "prompt": ["O Romeo", "What is"], "logprobs": 2, "echo": True}
    full = server.json("/v1/completions", body)
    streamed = server.post(
        "/v1/completions", body, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = events(streamed)
    assert len({chunk["id"] for chunk in chunks}) == 1 and {
        chunk["object"] for chunk in chunks
    } == {"text_completion"}
    assert (
        last["choices"] == []
        and last["usage"]["completion_tokens"] == full["usage"]["completion_tokens"] == 6 * 24
    )
    assert all(chunk["usage"] is None for chunk in chunks)
    assert [item["index"] for item in full["choices"]] == list(range(6))
    for item in full["choices"]:
        pieces = [
            piece
            for chunk in chunks
            for piece in chunk["choices"]
            if piece["index"] == item["index"]
        ]
        assert joined(chunks, item["index"]) == item["text"]
        assert [piece["finish_reason"] for piece in pieces] == [None] * (len(pieces) - 1) + [
            "length"
        ]
        for name in ("tokens", "text_offset"):
            assert flat(piece["logprobs"][name] for piece in pieces) == item["logprobs"][name]
    assert len({item["text"] for item in full["choices"]}) == 6, "each choice has its own luck"


def test_echo_with_logprobs_scores_the_prompt(server, chat_model):
    """Reference: a plain pass of the model."""
    import torch

    model, tokenizer = glassformer.load(chat_model, dtype="float32")
    ids = tokenizer.encode("What is your name?")
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    numbers = [float(logits[place, token]) for place, token in enumerate(ids[1:])]
    body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 3}
    (choice,) = server.json("/v1/completions", body)["choices"]
    output = choice["logprobs"]
    assert (
        choice["text"] == "What is your name?" == "".join(output["tokens"])
        and choice["finish_reason"] == "length"
    )
    assert output["token_logprobs"][0] is None and output["top_logprobs"][0] is None
    assert output["token_logprobs"][1:] == pytest.approx(numbers, abs=2e-5)
    assert output["text_offset"] == [
        len("".join(output["tokens"][:place])) for place in range(len(ids))
    ]
    for token, logprob, top in list(
        zip(output["tokens"], output["token_logprobs"], output["top_logprobs"], strict=True)
    )[1:]:
        assert top[token] == logprob and 3 <= len(top) <= 4 and max(top.values()) <= 0
    item = server.json("/v1/completions", body, max_tokens=1, temperature=0)["choices"][0]
    assert len(item["logprobs"]["tokens"]) == len(ids) + 1 and item["text"].startswith(
        choice["text"]
    )


@pytest.mark.parametrize("stops", [["the"], "e", ["zzz", "ou", "our"]])
def test_a_stop_string_is_not_in_the_text(server, stops):
    free = server.json("/v1/completions", ASKED, max_tokens=200)["choices"][0]["text"]
    body = {**ASKED, "max_tokens": 200, "stop": stops, "logprobs": 0}
    full = server.json("/v1/completions", body)["choices"][0]
    listed = [stops] if isinstance(stops, str) else stops
    first = min(
        (free.index(item) + len(item), free.index(item)) for item in listed if item in free
    )[1]
    assert full["text"] == free[:first] and full["finish_reason"] == "stop"
    assert "".join(full["logprobs"]["tokens"]).startswith(full["text"])
    chunks = events(server.post("/v1/completions", body, stream=True))
    assert joined(chunks) == full["text"]
    pieces = (item["logprobs"]["tokens"] for chunk in chunks for item in chunk["choices"])
    assert flat(pieces) == full["logprobs"]["tokens"]


def test_a_prompt_that_was_read_before_is_not_read_again(server, chat_model):
    _, tokenizer = glassformer.load(chat_model, dtype="float32")
    body = {"prompt": [*range(10, 110)], "max_tokens": 8, "temperature": 0}
    first, again = (server.json("/v1/completions", body) for _ in range(2))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
    assert again["choices"] == first["choices"] and tokenizer.size > 110


def test_without_a_model_the_first_one_answers_and_says_so(server):
    named, plain = (
        server.json("/v1/completions", ASKED, **more) for more in ({"model": "tiny"}, {})
    )
    assert plain["model"] == "tiny" and plain["choices"] == named["choices"]


def test_bias_and_bans(server, chat_model):
    _, tokenizer = glassformer.load(chat_model, dtype="float32")
    forced = tokenizer.encode(" king")[0]
    body = {**ASKED, "max_tokens": 3, "logit_bias": {str(forced): 100}}
    assert server.json("/v1/completions", body)["choices"][0]["text"] == tokenizer.decode(
        [forced] * 3
    )


def test_the_end_of_text_ends_it_unless_it_is_ignored(server, chat_model):
    _, tokenizer = glassformer.load(chat_model, dtype="float32")
    body = {**ASKED, "max_tokens": 5, "logit_bias": {str(tokenizer.eos): 100}, "logprobs": 0}
    choice = server.json("/v1/completions", body)["choices"][0]
    assert choice["text"] == "" and choice["finish_reason"] == "stop"
    assert choice["logprobs"]["tokens"] == ["<|endoftext|>"], "as the harness counts on"
    ignored = server.json("/v1/completions", body, ignore_eos=True)
    assert (
        ignored["usage"]["completion_tokens"] == 5
        and ignored["choices"][0]["finish_reason"] == "length"
    )


def test_a_character_in_several_tokens_is_never_shown_in_halves(server, chat_model):
    _, tokenizer = glassformer.load(chat_model, dtype="float32")
    ids = tokenizer.encode("鸟")
    assert len(ids) > 1
    body = {
        "prompt": [*tokenizer.encode("a"), *ids[:1]],
        "max_tokens": len(ids) - 1,
        "temperature": 0,
        "stream": True,
    }
    for place, id in enumerate(ids[1:]):
        row = [*body["prompt"], *ids[1 : 1 + place]]
        item = {**body, "prompt": row, "max_tokens": 1, "logit_bias": {str(id): 100}}
        output = joined(events(server.post("/v1/completions", item)))
        assert output == ("鸟" if place == len(ids) - 2 else "\ufffd"), (
            "an unfinished end is shown once, as what it is"
        )
    pair = {**body, "prompt": "a", "max_tokens": 9, "guided_regex": "鸟鸟鸟", "stream": True}
    chunks = events(server.post("/v1/completions", pair))
    assert joined(chunks) == "鸟鸟鸟" and all("\ufffd" not in joined([chunk]) for chunk in chunks)


def test_models_and_their_tokens(server, chat_model):
    _, tokenizer = glassformer.load(chat_model, dtype="float32")
    listed = server.get("/v1/models").json()
    assert [item["id"] for item in listed["data"]] == [
        "tiny",
        "vectors",
        "labels",
        "pairs",
        "names",
        "translator",
    ]
    assert listed["data"][0]["max_model_len"] == 256
    assert server.get("/v1/models/tiny").json() == listed["data"][0]
    body = server.json("/tokenize", model="tiny", prompt="O Romeo", return_token_strs=True)
    assert body["tokens"] == tokenizer.encode("O Romeo") and body["count"] == len(body["tokens"])
    assert body["token_strs"] == [tokenizer.token(id) for id in body["tokens"]]
    assert server.json("/detokenize", tokens=body["tokens"]) == {"prompt": "O Romeo"}
    chat = server.json("/tokenize", messages=[{"role": "user", "content": "hi"}])
    assert tokenizer.decode(chat["tokens"]) == "user: hi\nassistant:"
    info = server.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|endoftext|>" and info["eos_token_id"] == tokenizer.eos
    assert server.get("/version").json() == {"version": glassformer.__version__}
    assert server.get("/load").json() == {"server_load": 0}


def tokens_by_event(*events: Event) -> list[list[int]]:
    """The tokens that come with each event."""
    token_buffer = TokenBuffer(train("byte", []), True)
    return [[item.token for item in token_buffer.push(event)] for event in events]


def token(letter: str, text: str = "", **more: object) -> Event:
    return Event(0, train("byte", []).encode(letter)[0], text, -1.0, **more)


def ids(letters: str) -> list[int]:
    return train("byte", []).encode(letters)


def test_a_token_is_told_with_its_text():
    assert tokens_by_event(token("a", "a"), token("b", "b")) == [ids("a"), ids("b")]


def test_what_is_held_back_is_told_later_and_in_order():
    result = tokens_by_event(
        token("a"), token("b"), token("c", "abc"), token("d", finish_reason="length")
    )
    assert result == [[], [], ids("abc"), ids("d")]
    assert tokens_by_event(token("a"), token("b", "a"), token("c", "bc"))[1:] == [
        ids("a"),
        ids("bc"),
    ]


def test_what_a_stop_string_cuts_off_is_never_told():
    last = token("d", "a", finish_reason="stop", stopped_by="cd")
    assert (
        tokens_by_event(
            token("a"),
            token("b", "b"),
            token("c"),
            token("d", "", finish_reason="stop", stopped_by="cd"),
        )[-1]
        == []
    )
    assert tokens_by_event(token("a"), token("c"), last)[-1] == ids("a")


def test_a_token_that_ends_the_text_is_told():
    assert tokens_by_event(
        token("a", "a"), token("b", finish_reason="stop", stopped_by=ids("b")[0])
    )[-1] == ids("b")
