"""A look inside what is served: the numbers of the same call in process, and nobody's answer changed by it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import glassformer
from glassformer import inspection
from glassformer.inspection import edits

from .conftest import Server
from .test_bad_input import refused

INSPECT, TEXT = "/v1/inspect", "/v1/completions"
PROMPT = "O Romeo, Romeo"


def opened(path: Path) -> tuple[Any, Any]:
    return glassformer.load(path, dtype="float32")


def test_values_are_those_of_look(server: Server, chat_model: Path) -> None:
    model, tokenizer = opened(chat_model)
    names = ["decoder.blocks.*.attn.pattern", "decoder.blocks.2.resid"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the server of these tests has: how sums are cut moves the last bits
    own = glassformer.look(model, tokenizer, PROMPT, *names)
    torch.set_num_threads(threads)
    told = server.post(INSPECT, {"prompt": PROMPT, "inspect": names}).json()
    assert list(told["values"]) == list(own) and told["tokens"] == tokenizer.encode(PROMPT)
    for path, value in own.items():
        torch.testing.assert_close(torch.tensor(told["values"][path]["values"]), value[0], atol=1e-6, rtol=1e-5)
    some = server.post(INSPECT, {"prompt": PROMPT, "inspect": names, "positions": [0, -1]}).json()["values"]
    for path, value in own.items():
        torch.testing.assert_close(torch.tensor(some[path]["values"]), value[0][..., [0, -1], :], atol=1e-6, rtol=1e-5)


def test_the_logit_lens_and_the_likeliest_tokens(server: Server, chat_model: Path) -> None:
    model, tokenizer = opened(chat_model)
    asked = {"prompt": PROMPT, "inspect": ["lens", "top_tokens"], "top": 3, "track": [" love"], "positions": [-1]}
    told = server.post(INSPECT, asked).json()
    own = inspection.logit_lens(model, tokenizer, PROMPT, positions=[-1], track=[" love"], top=3)
    assert told["lens"]["top"] == own.top and told["lens"]["tracked"][0]["rank"] == own.tracked[0].rank
    scored = server.post(TEXT, {"prompt": PROMPT, "max_tokens": 1, "temperature": 0, "logprobs": 3}).json()
    (row,) = told["top_tokens"]
    listed = scored["choices"][0]["logprobs"]["top_logprobs"][0]
    assert [one["logprob"] for one in row["next"]] == pytest.approx(sorted(listed.values(), reverse=True)[:3], abs=1e-4)


def test_an_ablation(server: Server, chat_model: Path) -> None:
    model, tokenizer = opened(chat_model)
    edit = 'head_off("decoder.blocks.1.attn", 2)'
    own = glassformer.look(model, tokenizer, PROMPT, "logits", edits=[edits.parse(edit)])["logits"][0, -1]
    asked = {"prompt": PROMPT, "inspect": ["logits"], "positions": [-1]}
    plain = server.post(INSPECT, asked).json()["values"]["logits"]["values"][0]
    told = server.post(INSPECT, {**asked, "edits": [edit]}).json()
    assert told["values"]["logits"]["values"][0] == pytest.approx(own.tolist(), abs=1e-4) and told["edits"] == [edit]
    assert plain != pytest.approx(own.tolist(), abs=1e-3)


def test_a_completion_with_a_look_inside(server: Server, chat_model: Path) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 6, "seed": 4, "n": 2}
    plain = server.post(TEXT, asked).json()["choices"]
    told = server.post(TEXT, {**asked, "inspect": ["decoder.blocks.0.attn.pattern", "top_tokens"]}).json()["choices"]
    assert [one["text"] for one in told] == [one["text"] for one in plain]
    for one in told:
        seen = one["inspect"]
        heads, rows, _ = seen["values"]["decoder.blocks.0.attn.pattern"]["shape"]
        assert rows == len(seen["tokens"]) and heads == 4 and len(seen["top_tokens"]) == rows


def test_nobodys_answer_changes_while_others_look(server: Server) -> None:
    """Answers and their numbers, alone and beside a crowd that looks."""
    asked = {"prompt": PROMPT, "max_tokens": 40, "seed": 9, "logprobs": 5}
    alone = server.post(TEXT, asked).json()["choices"]
    look = {"prompt": PROMPT * 5, "inspect": ["*.pattern", "lens"], "positions": [-1]}

    async def together() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            looks = [client.post(INSPECT, json=look) for _ in range(6)]
            return await asyncio.gather(client.post(TEXT, json=asked), *looks)

    first, *others = asyncio.run(together())
    assert first.json()["choices"] == alone and {one.status_code for one in others} == {200}


def test_an_encoder_too(server: Server, others: dict[str, Path]) -> None:
    model, tokenizer = opened(others["vectors"])
    told = server.post(INSPECT, {"model": "vectors", "prompt": "the cat sat", "inspect": ["*.0.attn.pattern"]}).json()
    (path, one), *_ = told["values"].items()
    own = glassformer.look(model, tokenizer, torch.tensor([told["tokens"]]), path)[path][0]
    torch.testing.assert_close(torch.tensor(one["values"]), own, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"inspect": ["nothing.like.it"]}, "No value is called"),
        ({"inspect": []}, "inspect"),
        ({}, "inspect is missing"),
        ({"inspect": ["lens"], "positions": [99]}, "Position 99"),
        ({"inspect": ["lens"], "edits": ["__import__('os')"]}, "edit"),
        ({"inspect": ["lens"], "edits": ["head_off('nowhere', 1)"]}, "nowhere"),
        ({"inspect": ["lens"], "track": ["a word of many tokens"]}, "token"),
        ({"inspect": ["*"], "prompt": [5] * 250}, "numbers"),
        ({"inspect": ["lens"], "prompt": ["a", "b"]}, "One text"),
        ({"inspect": ["lens"], "prompt": ""}, "empty"),
        ({"inspect": ["lens"], "top": 0}, "top"),
        ({"inspect": ["lens"], "model": "translator"}, "not over HTTP"),
    ],
)
def test_bad_input_is_a_sentence(server: Server, body: dict[str, Any], said: str) -> None:
    assert said in refused(server.post(INSPECT, {"prompt": PROMPT, **body}))
    assert "stream" in refused(server.post(TEXT, {"prompt": PROMPT, "inspect": ["lens"], "stream": True}))
