"""A look inside what is served: the numbers of the same call in process, and nobody's answer
changed by it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import glassformer
import served
from glassformer import inspection
from glassformer.inspection import edits

from .conftest import Server, events, started
from .test_bad_input import refused

INSPECT, TEXT, CHAT = "/v1/inspect", "/v1/completions", "/v1/chat/completions"
PROMPT = "O Romeo, Romeo"
# the engine's kernels beside PyTorch's: sums of fp32 in another order
NEAR = {"atol": 5e-5, "rtol": 1e-4}


def opened(path: Path) -> tuple[Any, Any]:
    return glassformer.load(path, dtype="float32")


def test_values_are_those_of_look(server: Server, chat_model: Path) -> None:
    model, tokenizer = opened(chat_model)
    names = ["decoder.blocks.*.attn.pattern", "decoder.blocks.2.resid"]
    threads = torch.get_num_threads()
    # as the server of these tests has: how sums are cut moves the last bits
    torch.set_num_threads(1)
    own = glassformer.look(model, tokenizer, PROMPT, *names)
    torch.set_num_threads(threads)
    told = server.post(INSPECT, {"prompt": PROMPT, "inspect": names}).json()
    assert list(told["values"]) == list(own) and told["tokens"] == tokenizer.encode(PROMPT)
    for path, value in own.items():
        torch.testing.assert_close(torch.tensor(told["values"][path]["values"]), value[0], **NEAR)
    some = server.post(INSPECT, {"prompt": PROMPT, "inspect": names, "positions": [0, -1]}).json()[
        "values"
    ]
    for path, value in own.items():
        torch.testing.assert_close(
            torch.tensor(some[path]["values"]), value[0][..., [0, -1], :], **NEAR
        )


def test_the_logit_lens_and_the_likeliest_tokens(server: Server, chat_model: Path) -> None:
    model, tokenizer = opened(chat_model)
    asked = {
        "prompt": PROMPT,
        "inspect": ["lens", "top_tokens"],
        "top": 3,
        "track": [" love"],
        "positions": [-1],
    }
    told = server.post(INSPECT, asked).json()
    own = inspection.logit_lens(model, tokenizer, PROMPT, positions=[-1], track=[" love"], top=3)
    assert (
        told["lens"]["top"] == own.top and told["lens"]["tracked"][0]["rank"] == own.tracked[0].rank
    )
    scored = server.post(
        TEXT, {"prompt": PROMPT, "max_tokens": 1, "temperature": 0, "logprobs": 3}
    ).json()
    (row,) = told["top_tokens"]
    listed = scored["choices"][0]["logprobs"]["top_logprobs"][0]
    assert [one["logprob"] for one in row["next"]] == pytest.approx(
        sorted(listed.values(), reverse=True)[:3], abs=1e-4
    )


def test_an_ablation(server: Server, chat_model: Path) -> None:
    model, tokenizer = opened(chat_model)
    edit = 'head_off("decoder.blocks.1.attn", 2)'
    own = glassformer.look(model, tokenizer, PROMPT, "logits", edits=[edits.parse(edit)])["logits"][
        0, -1
    ]
    asked = {"prompt": PROMPT, "inspect": ["logits"], "positions": [-1]}
    plain = server.post(INSPECT, asked).json()["values"]["logits"]["values"][0]
    told = server.post(INSPECT, {**asked, "edits": [edit]}).json()
    assert told["values"]["logits"]["values"][0] == pytest.approx(own.tolist(), abs=1e-4) and told[
        "edits"
    ] == [edit]
    assert plain != pytest.approx(own.tolist(), abs=1e-3)


WISHES = ["decoder.blocks.*.attn.pattern", "*.2.resid", "logits", "lens", "top_tokens"]


def held(
    model: Any, tokenizer: Any, seen: dict[str, Any], read: list[int], edit: str | None = None
) -> None:
    """What is told of some places equals the same looks in process at the whole text."""
    changes = [] if edit is None else [edits.parse(edit)]
    begin, end = seen["start"], seen["start"] + len(seen["tokens"])
    assert read[begin:end] == seen["tokens"]
    own = glassformer.look(model, tokenizer, read[:end], *WISHES[:3], edits=changes)
    assert list(seen["values"]) == list(own)
    for path, value in own.items():
        rows = value[0][:, begin:end] if path.endswith("pattern") else value[0][begin:end]
        told = torch.tensor(seen["values"][path]["values"])
        torch.testing.assert_close(told, rows, **NEAR)
    predicted = inspection.predictions(model, tokenizer, read[:end], 3, edits=changes)[begin:end]
    for row, mine in zip(seen["top_tokens"], predicted, strict=True):
        assert row["token"] == mine["token"] and row["piece"] == mine["piece"]
        assert row["logprob"] == pytest.approx(mine["logprob"], abs=1e-4)
        assert [one["logprob"] for one in row["next"]] == pytest.approx(
            [one["logprob"] for one in mine["next"]], abs=1e-4
        )
    asked = seen["lens"]["positions"]
    lens = inspection.logit_lens(
        model, tokenizer, read[:end], positions=asked, top=3, edits=changes
    )
    for depth, rows in zip(lens.probability, seen["lens"]["probability"], strict=True):
        for one, other in zip(depth, rows, strict=True):
            assert other == pytest.approx(one, abs=1e-4)


@pytest.mark.parametrize(
    "edit",
    [
        None,
        'head_off("decoder.blocks.1.attn", 2)',
        'patch("*.1.resid", "O Juliet, Julie", positions=(3,))',
    ],
)
def test_a_completion_with_a_look_inside(
    server: Server, chat_model: Path, edit: str | None
) -> None:
    """Whole and as a stream: the numbers of `look`, `logit_lens` and `predictions`, and the text of
    no look."""
    model, tokenizer = opened(chat_model)
    more = {} if edit is None else {"edits": [edit]}
    asked = {"prompt": PROMPT, "max_tokens": 6, "seed": 4, "n": 2, **more}
    plain = server.post(TEXT, asked).json()["choices"]
    look = {**asked, "inspect": WISHES, "top": 3}
    told = server.post(TEXT, look).json()["choices"]
    assert [one["text"] for one in told] == [one["text"] for one in plain]
    assert (edit is None) == (plain == server.post(TEXT, {**asked, "edits": []}).json()["choices"])
    for one in told:
        seen = one["inspect"]
        assert seen["by"] == "the engine's own steps" and seen["start"] == 0
        assert len(seen["tokens"]) == len(tokenizer.encode(PROMPT)) + 5, (
            "the last token is drawn and not read"
        )
        held(model, tokenizer, seen, seen["tokens"], edit)
    chunks = events(server.post(TEXT, {**look, "stream": True}))
    for index, one in enumerate(told):
        parts = [c["choices"][0]["inspect"] for c in chunks if c["choices"][0]["index"] == index]
        read = [token for part in parts for token in part["tokens"]]
        assert read == one["inspect"]["tokens"] and len(parts) > 3
        for part in (parts[0], parts[-1]):
            held(model, tokenizer, part, read, edit)


def test_only_the_places_that_are_asked_for(server: Server) -> None:
    prompt = PROMPT * 8
    asked = {
        "prompt": prompt,
        "max_tokens": 4,
        "temperature": 0,
        "inspect": ["*.0.attn.pattern", "top_tokens"],
    }
    (whole,) = server.post(TEXT, asked).json()["choices"]
    (new,) = server.post(TEXT, {**asked, "positions": "new"}).json()["choices"]
    length = len(whole["inspect"]["tokens"])
    (path, rows), *_ = new["inspect"]["values"].items()
    assert (
        rows["positions"]
        == [*range(length - 4, length)]
        == [one["position"] for one in new["inspect"]["top_tokens"]]
    )
    assert rows["values"] == [
        head[length - 4 :] for head in whole["inspect"]["values"][path]["values"]
    ]
    answer = server.post(TEXT, {**asked, "positions": "new"}).json()
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32, (
        "the pages hold what stands before"
    )
    (some,) = server.post(TEXT, {**asked, "positions": [2, length - 1]}).json()["choices"]
    assert [one["position"] for one in some["inspect"]["top_tokens"]] == [2, length - 1]


def test_a_chat_with_a_look_inside(server: Server) -> None:
    asked = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 4,
        "seed": 1,
        "inspect": ["lens", "*.resid"],
    }
    (one,) = server.post(CHAT, asked).json()["choices"]
    parts = [
        chunk["choices"][0].get("inspect")
        for chunk in events(server.post(CHAT, {**asked, "stream": True}))
    ]
    read = [token for part in parts if part for token in part["tokens"]]
    assert (
        read == one["inspect"]["tokens"] and one["inspect"]["lens"]["depths"][0] == "decoder.embed"
    )


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
    told = server.post(
        INSPECT, {"model": "vectors", "prompt": "the cat sat", "inspect": ["*.0.attn.pattern"]}
    ).json()
    (path, one), *_ = told["values"].items()
    own = glassformer.look(model, tokenizer, torch.tensor([told["tokens"]]), path)[path][0]
    torch.testing.assert_close(torch.tensor(one["values"]), own, atol=1e-6, rtol=1e-5)


CELLS = 1e-5  # a cell's products are PyTorch's, whose sums depend on how many rows there are


def of_look(
    told: dict[str, Any], own: Any, positions: list[int] | None = None, bound: float = 1e-6
) -> None:
    """Values over HTTP equal a look in process; only those of the text's own tokens are cut."""
    assert list(own) and {*told} == {*own}
    for path, value in own.items():
        source = path.startswith(("encoder.", "source_embed.")) or path.endswith(
            (".cross.k", ".cross.v")
        )
        rows = value[0] if source or positions is None else value[0][..., positions, :]
        assert told[path]["positions"] == (None if source else positions)
        torch.testing.assert_close(torch.tensor(told[path]["values"]), rows, atol=bound, rtol=1e-5)


def test_an_encoder_decoder_and_its_source(server: Server, others: dict[str, Path]) -> None:
    """Encoder, decoder and what looks from one to the other; after an edit too, and in a
    translation."""
    model, tokenizer = opened(others["translator"])
    names = [
        "*.cross.pattern",
        "encoder.blocks.0.*",
        "decoder.blocks.1.resid",
        "*.cross.k",
        "logits",
    ]
    asked = {
        "model": "translator",
        "source": "the cat sat",
        "prompt": "dog",
        "inspect": [*names, "lens", "top_tokens"],
    }
    for more in ({}, {"positions": [-1]}, {"edits": ["head_off('decoder.blocks.0.cross', 1)"]}):
        told = server.post(INSPECT, {**asked, **more}).json()
        ids, source = told["tokens"], told["source"]["tokens"]
        changes = [edits.parse(one) for one in more.get("edits", ())]
        own = glassformer.look(model, tokenizer, "dog", *names, source="the cat sat", edits=changes)
        of_look(told["values"], own, [len(ids) - 1] if "positions" in more else None)
        assert torch.tensor(told["values"]["decoder.blocks.0.cross.pattern"]["values"]).shape[
            -1
        ] == len(source)
        how = {
            "source": source,
            "edits": changes,
            "positions": [-1] if "positions" in more else None,
        }
        mine = inspection.logit_lens(model, tokenizer, ids, **how)  # type: ignore[arg-type]
        assert told["lens"]["top"] == mine.top
        likely = inspection.predictions(model, tokenizer, ids, 5, source=source, edits=changes)
        assert told["top_tokens"][-1]["next"][0]["token"] == likely[-1]["next"][0]["token"]


def test_translations_with_a_look_inside(server: Server, others: dict[str, Path]) -> None:
    """Each that is found, at the tokens that were read for it; the search and others beside it find
    what they found."""
    model, _ = opened(others["translator"])
    asked = {
        "model": "translator",
        "input": ["the cat sat", "a dog"],
        "best": 2,
        "beams": 3,
        "max_new": 6,
    }
    plain = server.post("/v1/translate", asked).json()["data"]
    look = {**asked, "inspect": ["*.cross.pattern", "*.resid"]}

    async def together() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            return await asyncio.gather(
                *(client.post("/v1/translate", json=one) for one in (look, asked, look, asked))
            )

    watched, *beside = [answer.json()["data"] for answer in asyncio.run(together())]
    assert beside[0] == beside[2] == plain
    for answer, before in zip(watched, plain, strict=True):
        for one, other in zip(answer["best"], before["best"], strict=True):
            seen = one.pop("inspect")
            assert one == other and seen["tokens"][-len(one["tokens"][:-1]) :] == one["tokens"][:-1]
            source = seen["source"]["tokens"]
            of_look(
                seen["values"],
                glassformer.look(model, None, seen["tokens"], *look["inspect"], source=source),
            )
    assert "not edited" in refused(
        server.post("/v1/translate", {**look, "edits": ["scale('logits', 2.0)"]})
    )
    assert "inspect is missing" in refused(
        server.post("/v1/translate", {**asked, "positions": [0]})
    )


def test_a_recurrent_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    """By a pass of its own, alone and in completions, whole and as streams; edits of a completion
    are refused."""
    home = tmp_path_factory.mktemp("recurrent")
    served.saved("gru", home / "gru")
    model, tokenizer = opened(home / "gru")
    names = ["decoder.cells.*.state", "logits"]
    with started(home, str(home / "gru"), "--dtype", "float32") as server:
        told = server.post(
            INSPECT, {"prompt": "the cat", "inspect": [*names, "top_tokens"], "positions": [-1]}
        ).json()
        ids = told["tokens"]
        of_look(told["values"], glassformer.look(model, None, ids, *names), [len(ids) - 1], CELLS)
        asked = {"prompt": "the cat", "max_tokens": 5, "seed": 2, "ignore_eos": True}
        (plain,) = server.post(TEXT, asked).json()["choices"]
        look = {**asked, "inspect": [*names, "top_tokens"]}
        (one,) = server.post(TEXT, look).json()["choices"]
        assert one["text"] == plain["text"] and len(one["inspect"]["tokens"]) == len(ids) + 4
        read = one["inspect"]["tokens"]
        own = glassformer.look(model, None, read, *names)
        of_look(one["inspect"]["values"], own, [*range(len(read))], CELLS)
        parts = [
            chunk["choices"][0]["inspect"]
            for chunk in events(server.post(TEXT, {**look, "stream": True}))
        ]
        assert [token for part in parts for token in part["tokens"]] == read
        for part in parts:
            rows = [*range(part["start"], part["start"] + len(part["tokens"]))]
            if rows:
                of_look(part["values"], own, rows, CELLS)
                assert [row["position"] for row in part["top_tokens"]] == rows
        assert "Edits of a completion" in refused(
            server.post(TEXT, {**look, "edits": ["scale('logits', 2.0)"]})
        )
        assert "No value" in refused(server.post(TEXT, {**asked, "inspect": ["*.pattern"]}))
        lens = server.post(INSPECT, {"prompt": "the cat", "inspect": ["lens"]}).json()["lens"]
        assert lens["top"] == inspection.logit_lens(model, tokenizer, ids).top and lens["notes"]
        (some,) = server.post(TEXT, {**asked, "inspect": ["lens"], "positions": "new"}).json()[
            "choices"
        ]
        assert some["inspect"]["lens"]["positions"] == [*range(len(ids) - 1, len(ids) + 4)]


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
        ({"inspect": ["lens"], "model": "translator"}, "two texts"),
        ({"inspect": ["lens"], "model": "translator", "source": ["a", "b"]}, "One text"),
        ({"inspect": ["lens"], "source": "a"}, "Only an encoder-decoder"),
    ],
)
def test_bad_input_is_a_sentence(server: Server, body: dict[str, Any], said: str) -> None:
    assert said in refused(server.post(INSPECT, {"prompt": PROMPT, **body}))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"inspect": ["decoder.blocks.0.attn.patern"]}, "decoder.blocks.0.attn.pattern"),
        ({"inspect": ["*.pattern"], "max_tokens": 240}, "numbers"),
        ({"inspect": ["lens"], "positions": [40]}, "Position 40"),
        ({"inspect": ["lens"], "positions": [-1]}, "Position -1"),
        ({"positions": [1]}, "inspect is missing"),
        ({"inspect": ["lens"], "track": ["a word of many tokens"]}, "token"),
        ({"edits": ["head_of('decoder.blocks.1.attn', 2)"]}, "head_off"),
        ({"edits": ["scale('logits', 1e39)"]}, "infinite"),
    ],
)
@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_bad_wishes_of_a_completion(
    server: Server, body: dict[str, Any], said: str, path: str
) -> None:
    for stream in (False, True):
        text = (
            {"prompt": PROMPT} if path == TEXT else {"messages": [{"role": "user", "content": "a"}]}
        )
        asked = {**text, "max_tokens": 8, "stream": stream}
        assert said in refused(server.post(path, {**asked, **body}))


def test_positions_end_with_what_may_be_read(server: Server, chat_model: Path) -> None:
    """The prompt and all new tokens but the last; without a bound on these, the context."""
    model, tokenizer = opened(chat_model)
    asked = {"prompt": PROMPT, "max_tokens": 4, "inspect": ["*.0.resid"], "ignore_eos": True}
    end = len(tokenizer.encode(PROMPT)) + 3
    (choice,) = server.post(TEXT, {**asked, "positions": [end - 1]}).json()["choices"]
    assert next(iter(choice["inspect"]["values"].values()))["positions"] == [end - 1]
    assert f"at most {end} tokens are read" in refused(
        server.post(TEXT, {**asked, "positions": [end]}), 400
    )
    chat = {"messages": [{"role": "user", "content": "hi"}], "inspect": ["*.0.resid"]}
    context = model.config.context
    said = refused(server.post(CHAT, {**chat, "positions": [context]}), 400)
    assert f"at most {context} tokens are read, 0 to {context - 1}." in said


def test_an_encoder_reads_special_tokens_in_a_text(server: Server, others: dict[str, Path]) -> None:
    _, tokenizer = opened(others["vectors"])
    asked = {"model": "vectors", "prompt": "the [MASK] sat", "inspect": ["*.0.resid"]}
    told = server.post(INSPECT, asked).json()["tokens"]
    assert (
        told == tokenizer.encode_pair("the [MASK] sat", special=True)[0] and tokenizer.mask in told
    )
