"""A look inside what is served: the numbers of the same call in process, and nobody's answer
changed by it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest
import torch
from starlette.testclient import TestClient

import glassformer
import served
import tiny
from glassformer import config as c
from glassformer import sight as inspection
from glassformer.cli import main
from glassformer.core.generation.sample import Sampling
from glassformer.core.nn import build_model
from glassformer.formats import store
from glassformer.serve import app, loading, served_models
from glassformer.serve.engine import Engine, Request
from glassformer.sight import edits

from .conftest import events, opened, started
from .test_bad_input import refused

INSPECT, TEXT, CHAT = "/v1/inspect", "/v1/completions", "/v1/chat/completions"
PROMPT = "O Romeo, Romeo"
# the engine's kernels beside PyTorch's: sums of fp32 in another order
NEAR = {"atol": 5e-5, "rtol": 1e-4}


def test_values_are_those_of_look(server, chat_model):
    model, tokenizer = opened(chat_model)
    names = ["decoder.blocks.*.attn.pattern", "decoder.blocks.2.resid"]
    threads = torch.get_num_threads()
    # as the server of these tests has: how sums are cut moves the last bits
    torch.set_num_threads(1)
    look = glassformer.look(model, tokenizer, PROMPT, *names)
    torch.set_num_threads(threads)
    body = server.json(INSPECT, prompt=PROMPT, inspect=names)
    assert list(body["values"]) == list(look) and body["tokens"] == tokenizer.encode(PROMPT)
    for path, value in look.items():
        torch.testing.assert_close(torch.tensor(body["values"][path]["values"]), value[0], **NEAR)
    group = server.json(INSPECT, prompt=PROMPT, inspect=names, positions=[0, -1])["values"]
    for path, value in look.items():
        torch.testing.assert_close(
            torch.tensor(group[path]["values"]), value[0][..., [0, -1], :], **NEAR
        )


def test_the_logit_lens_and_the_likeliest_tokens(server, chat_model):
    model, tokenizer = opened(chat_model)
    body = {
        "prompt": PROMPT,
        "inspect": ["lens", "top_tokens"],
        "top": 3,
        "track": [" love"],
        "positions": [-1],
    }
    output = server.json(INSPECT, body)
    logit_lens = inspection.logit_lens(
        model, tokenizer, PROMPT, positions=[-1], track=[" love"], top=3
    )
    assert (
        output["lens"]["top"] == logit_lens.top
        and output["lens"]["tracked"][0]["rank"] == logit_lens.tracked[0].rank
    )
    scored = server.json(TEXT, prompt=PROMPT, max_tokens=1, temperature=0, logprobs=3)
    (row,) = output["top_tokens"]
    listed = scored["choices"][0]["logprobs"]["top_logprobs"][0]
    assert [item["logprob"] for item in row["next"]] == pytest.approx(
        sorted(listed.values(), reverse=True)[:3], abs=1e-4
    )


def test_an_ablation(server, chat_model):
    model, tokenizer = opened(chat_model)
    edit = 'head_off("decoder.blocks.1.attn", 2)'
    look = glassformer.look(model, tokenizer, PROMPT, "logits", edits=[edits.parse(edit)])[
        "logits"
    ][0, -1]
    body = {"prompt": PROMPT, "inspect": ["logits"], "positions": [-1]}
    plain = server.json(INSPECT, body)["values"]["logits"]["values"][0]
    output = server.json(INSPECT, body, edits=[edit])
    assert output["values"]["logits"]["values"][0] == pytest.approx(
        look.tolist(), abs=1e-4
    ) and output["edits"] == [edit]
    assert plain != pytest.approx(look.tolist(), abs=1e-3)


WISHES = ["decoder.blocks.*.attn.pattern", "*.2.resid", "logits", "lens", "top_tokens"]


def check_inspection(
    model: Any, tokenizer: Any, observed: dict[str, Any], ids: list[int], edit: str | None = None
) -> None:
    """Inspections of some places equal looks in process at the full text."""
    changes = [] if edit is None else [edits.parse(edit)]
    start, end = observed["start"], observed["start"] + len(observed["tokens"])
    assert ids[start:end] == observed["tokens"]
    look = glassformer.look(model, tokenizer, ids[:end], *WISHES[:3], edits=changes)
    assert list(observed["values"]) == list(look)
    for path, value in look.items():
        rows = value[0][:, start:end] if path.endswith("pattern") else value[0][start:end]
        output = torch.tensor(observed["values"][path]["values"])
        torch.testing.assert_close(output, rows, **NEAR)
    predicted = inspection.predictions(model, tokenizer, ids[:end], 3, edits=changes)[start:end]
    for row, local in zip(observed["top_tokens"], predicted, strict=True):
        assert row["token"] == local["token"] and row["piece"] == local["piece"]
        assert row["logprob"] == pytest.approx(local["logprob"], abs=1e-4)
        assert [item["logprob"] for item in row["next"]] == pytest.approx(
            [item["logprob"] for item in local["next"]], abs=1e-4
        )
    query = observed["lens"]["positions"]
    lens = inspection.logit_lens(model, tokenizer, ids[:end], positions=query, top=3, edits=changes)
    for depth, rows in zip(lens.probability, observed["lens"]["probability"], strict=True):
        for item, second in zip(depth, rows, strict=True):
            assert second == pytest.approx(item, abs=1e-4)


@pytest.mark.parametrize(
    "edit",
    [
        None,
        'head_off("decoder.blocks.1.attn", 2)',
        'patch("*.1.resid", "O Juliet, Julie", positions=(3,))',
    ],
)
def test_a_completion_with_a_look_inside(server, chat_model, edit):
    """Whole and as a stream: the numbers of `look`, `logit_lens` and `predictions`, and the text of
    no look."""
    model, tokenizer = opened(chat_model)
    more = {} if edit is None else {"edits": [edit]}
    body = {"prompt": PROMPT, "max_tokens": 6, "seed": 4, "n": 2, **more}
    plain = server.json(TEXT, body)["choices"]
    look = {**body, "inspect": WISHES, "top": 3}
    output = server.json(TEXT, look)["choices"]
    assert [item["text"] for item in output] == [item["text"] for item in plain]
    assert (edit is None) == (plain == server.json(TEXT, body, edits=[])["choices"])
    for item in output:
        observed = item["inspect"]
        assert observed["by"] == "the engine's own steps" and observed["start"] == 0
        assert len(observed["tokens"]) == len(tokenizer.encode(PROMPT)) + 5, (
            "the last token is drawn and not read"
        )
        check_inspection(model, tokenizer, observed, observed["tokens"], edit)
    chunks = events(server.post(TEXT, look, stream=True))
    for index, item in enumerate(output):
        inspects = [c["choices"][0]["inspect"] for c in chunks if c["choices"][0]["index"] == index]
        tokens = [token for piece in inspects for token in piece["tokens"]]
        assert tokens == item["inspect"]["tokens"] and len(inspects) > 3
        for piece in (inspects[0], inspects[-1]):
            check_inspection(model, tokenizer, piece, tokens, edit)


def test_only_the_places_that_are_asked_for(server):
    prompt = PROMPT * 8
    body = {
        "prompt": prompt,
        "max_tokens": 4,
        "temperature": 0,
        "inspect": ["*.0.attn.pattern", "top_tokens"],
    }
    (full,) = server.json(TEXT, body)["choices"]
    (new,) = server.json(TEXT, body, positions="new")["choices"]
    length = len(full["inspect"]["tokens"])
    (path, rows), *_ = new["inspect"]["values"].items()
    assert (
        rows["positions"]
        == [*range(length - 4, length)]
        == [item["position"] for item in new["inspect"]["top_tokens"]]
    )
    assert rows["values"] == [
        head[length - 4 :] for head in full["inspect"]["values"][path]["values"]
    ]
    answer = server.json(TEXT, body, positions="new")
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32, (
        "the pages hold what stands before"
    )
    (group,) = server.json(TEXT, body, positions=[2, length - 1])["choices"]
    assert [item["position"] for item in group["inspect"]["top_tokens"]] == [2, length - 1]


def test_a_chat_with_a_look_inside(server):
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 4,
        "seed": 1,
        "inspect": ["lens", "*.resid"],
    }
    (item,) = server.json(CHAT, body)["choices"]
    responses = [
        chunk["choices"][0].get("inspect") for chunk in events(server.post(CHAT, body, stream=True))
    ]
    tokens = [token for response in responses if response for token in response["tokens"]]
    assert (
        tokens == item["inspect"]["tokens"]
        and item["inspect"]["lens"]["depths"][0] == "decoder.embed"
    )


def test_nobodys_answer_changes_while_others_look(server):
    """Answers and their numbers, alone and beside a crowd that looks."""
    body = {"prompt": PROMPT, "max_tokens": 40, "seed": 9, "logprobs": 5}
    alone = server.json(TEXT, body)["choices"]
    look = {"prompt": PROMPT * 5, "inspect": ["*.pattern", "lens"], "positions": [-1]}

    async def together():
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            looks = [client.post(INSPECT, json=look) for _ in range(6)]
            return await asyncio.gather(client.post(TEXT, json=body), *looks)

    first, *remaining = asyncio.run(together())
    assert first.json()["choices"] == alone and {item.status_code for item in remaining} == {200}


def test_an_encoder_too(server, other_models):
    model, tokenizer = opened(other_models["vectors"])
    body = server.json(INSPECT, model="vectors", prompt="the cat sat", inspect=["*.0.attn.pattern"])
    (path, item), *_ = body["values"].items()
    look = glassformer.look(model, tokenizer, torch.tensor([body["tokens"]]), path)[path][0]
    torch.testing.assert_close(torch.tensor(item["values"]), look, atol=1e-6, rtol=1e-5)


CELLS = 1e-5  # a cell's products are PyTorch's, whose sums depend on how many rows there are


def of_look(
    output: dict[str, Any], individual: Any, positions: list[int] | None = None, bound: float = 1e-6
) -> None:
    """Values over HTTP equal a look in process; only those of the text's own tokens are cut."""
    assert list(individual) and {*output} == {*individual}
    for path, value in individual.items():
        source = path.startswith(("encoder.", "source_embed.")) or path.endswith(
            (".cross.k", ".cross.v")
        )
        rows = value[0] if source or positions is None else value[0][..., positions, :]
        assert output[path]["positions"] == (None if source else positions)
        torch.testing.assert_close(
            torch.tensor(output[path]["values"]), rows, atol=bound, rtol=1e-5
        )


def test_an_encoder_decoder_and_its_source(server, other_models):
    """Encoder, decoder and what looks from one to the other; after an edit too, and in a
    translation."""
    model, tokenizer = opened(other_models["translator"])
    names = [
        "*.cross.pattern",
        "encoder.blocks.0.*",
        "decoder.blocks.1.resid",
        "*.cross.k",
        "logits",
    ]
    body = {
        "model": "translator",
        "source": "the cat sat",
        "prompt": "dog",
        "inspect": [*names, "lens", "top_tokens"],
    }
    for more in ({}, {"positions": [-1]}, {"edits": ["head_off('decoder.blocks.0.cross', 1)"]}):
        output = server.json(INSPECT, body, **more)
        ids, source = output["tokens"], output["source"]["tokens"]
        changes = [edits.parse(item) for item in more.get("edits", ())]
        look = glassformer.look(
            model, tokenizer, "dog", *names, source="the cat sat", edits=changes
        )
        of_look(output["values"], look, [len(ids) - 1] if "positions" in more else None)
        assert torch.tensor(output["values"]["decoder.blocks.0.cross.pattern"]["values"]).shape[
            -1
        ] == len(source)
        options = {
            "source": source,
            "edits": changes,
            "positions": [-1] if "positions" in more else None,
        }
        logit_lens = inspection.logit_lens(model, tokenizer, ids, **options)
        assert output["lens"]["top"] == logit_lens.top
        likely = inspection.predictions(model, tokenizer, ids, 5, source=source, edits=changes)
        assert output["top_tokens"][-1]["next"][0]["token"] == likely[-1]["next"][0]["token"]


@pytest.mark.parametrize("name", ["t5", "llama"])
def test_labels_of_pairs_and_decoders_are_looked_into(name, tmp_path):
    """Both sides of a pair read the one text, as in a look in process."""
    pool = c.Pool("last", "tanh", labels=3)
    cfg = replace(served.worded(tiny.ALL[name]), head=None, pool=pool)
    store.save(build_model(cfg, seed=3), tmp_path, served.tokenizer("bpe"), layout="glassformer")
    names = ["*.pattern", "*.0.resid", "pool.write"]
    model, tokenizer = opened(tmp_path)
    limits = served_models.EngineLimits()
    models = loading.open_models([str(tmp_path)], limits, dtype="float32")
    try:
        with TestClient(app.application(models, "0", hosts=None)[0]) as client:
            answer = client.post(INSPECT, json={"prompt": "the cat sat", "inspect": names})
    finally:
        models.close()
    assert answer.status_code == 200, answer.text
    of_look(answer.json()["values"], glassformer.look(model, tokenizer, "the cat sat", *names))


def test_translations_with_a_look_inside(server, other_models):
    """Each that is found, at the tokens that were read for it; the search and others beside it find
    what they found."""
    model, _ = opened(other_models["translator"])
    body = {
        "model": "translator",
        "input": ["the cat sat", "a dog"],
        "best": 2,
        "beams": 3,
        "max_new": 6,
    }
    plain = server.json("/v1/translate", body)["data"]
    look = {**body, "inspect": ["*.cross.pattern", "*.resid"]}

    async def together():
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            return await asyncio.gather(
                *(client.post("/v1/translate", json=item) for item in (look, body, look, body))
            )

    watched, *beside = [answer.json()["data"] for answer in asyncio.run(together())]
    assert beside[0] == beside[2] == plain
    for answer, before in zip(watched, plain, strict=True):
        for item, second in zip(answer["best"], before["best"], strict=True):
            observed = item.pop("inspect")
            assert (
                item == second
                and observed["tokens"][-len(item["tokens"][:-1]) :] == item["tokens"][:-1]
            )
            source = observed["source"]["tokens"]
            of_look(
                observed["values"],
                glassformer.look(model, None, observed["tokens"], *look["inspect"], source=source),
            )
    assert "not edited" in refused(
        server.post("/v1/translate", look, edits=["scale('logits', 2.0)"])
    )
    assert "inspect is missing" in refused(server.post("/v1/translate", body, positions=[0]))


def test_a_recurrent_model(tmp_path_factory):
    """Alone and in completions, whole and as streams, and after an edit."""
    home = tmp_path_factory.mktemp("recurrent")
    served.saved("gru", home / "gru")
    model, tokenizer = opened(home / "gru")
    names = ["decoder.cells.*.state", "logits"]
    with started(home, f"{home}/gru --dtype float32") as server:
        body = server.json(
            INSPECT, prompt="the cat", inspect=[*names, "top_tokens"], positions=[-1]
        )
        ids = body["tokens"]
        of_look(body["values"], glassformer.look(model, None, ids, *names), [len(ids) - 1], CELLS)
        query = {"prompt": "the cat", "max_tokens": 5, "seed": 2, "ignore_eos": True}
        (plain,) = server.json(TEXT, query)["choices"]
        look = {**query, "inspect": [*names, "top_tokens"]}
        (item,) = server.json(TEXT, look)["choices"]
        assert item["text"] == plain["text"] and len(item["inspect"]["tokens"]) == len(ids) + 4
        second_ids = item["inspect"]["tokens"]
        individual = glassformer.look(model, None, second_ids, *names)
        of_look(item["inspect"]["values"], individual, None, CELLS)
        inspects = [
            chunk["choices"][0]["inspect"] for chunk in events(server.post(TEXT, look, stream=True))
        ]
        assert [token for piece in inspects for token in piece["tokens"]] == second_ids
        for piece in inspects:
            rows = [*range(piece["start"], piece["start"] + len(piece["tokens"]))]
            if rows:  # null positions: all of this part
                for value in piece["values"].values():
                    assert value["positions"] is None
                    value["positions"] = rows
                of_look(piece["values"], individual, rows, CELLS)
                assert [row["position"] for row in piece["top_tokens"]] == rows
        edit = "scale('logits', 2.0)"
        (item,) = server.json(TEXT, look, edits=[edit])["choices"]
        edited = glassformer.look(
            model, None, item["inspect"]["tokens"], *names, edits=[edits.parse(edit)]
        )
        of_look(item["inspect"]["values"], edited, None, CELLS)
        assert "No value" in refused(server.post(TEXT, query, inspect=["*.pattern"]))
        lens = server.json(INSPECT, prompt="the cat", inspect=["lens"])["lens"]
        assert lens["top"] == inspection.logit_lens(model, tokenizer, ids).top and lens["notes"]
        (group,) = server.json(TEXT, query, inspect=["lens"], positions="new")["choices"]
        assert group["inspect"]["lens"]["positions"] == [*range(len(ids) - 1, len(ids) + 4)]


@pytest.mark.parametrize(
    ("body", "message"),
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
def test_bad_input_is_a_sentence(server, body, message):
    assert message in refused(server.post(INSPECT, {"prompt": PROMPT, **body}))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"inspect": ["decoder.blocks.0.attn.patern"]}, "decoder.blocks.0.attn.pattern"),
        ({"inspect": ["*.pattern"], "max_tokens": 240}, "numbers"),
        ({"inspect": ["lens"], "top": 100, "positions": "new", "n": 64}, "numbers"),
        ({"inspect": ["top_tokens"], "top": 100, "max_tokens": 40, "n": 64}, "numbers"),
        ({"inspect": ["lens"], "positions": [40]}, "Position 40"),
        ({"inspect": ["lens"], "positions": [-1]}, "Position -1"),
        ({"positions": [1]}, "inspect is missing"),
        ({"inspect": ["lens"], "track": ["a word of many tokens"]}, "token"),
        ({"edits": ["head_of('decoder.blocks.1.attn', 2)"]}, "head_off"),
        ({"edits": ["scale('logits', 1e39)"]}, "infinite"),
    ],
)
@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_bad_wishes_of_a_completion(server, body, message, path):
    for stream in (False, True):
        text = (
            {"prompt": PROMPT} if path == TEXT else {"messages": [{"role": "user", "content": "a"}]}
        )
        query = {**text, "max_tokens": 8, "stream": stream}
        assert message in refused(server.post(path, query, **body))


def test_the_bound_holds_for_all_prompts_together(server):
    body = {"inspect": ["decoder.blocks.0.resid"], "max_tokens": 1}
    assert server.post(TEXT, body, prompt=[[5] * 100]).status_code == 200
    assert "numbers" in refused(server.post(TEXT, body, prompt=[[5] * 100] * 100))


def test_positions_end_with_what_may_be_read(server, chat_model):
    """The prompt and all new tokens but the last; without a bound on these, the context."""
    model, tokenizer = opened(chat_model)
    body = {"prompt": PROMPT, "max_tokens": 4, "inspect": ["*.0.resid"], "ignore_eos": True}
    end = len(tokenizer.encode(PROMPT)) + 3
    (choice,) = server.json(TEXT, body, positions=[end - 1])["choices"]
    assert next(iter(choice["inspect"]["values"].values()))["positions"] == [end - 1]
    assert f"at most {end} tokens are read" in refused(
        server.post(TEXT, body, positions=[end]), 400
    )
    chat = {"messages": [{"role": "user", "content": "hi"}], "inspect": ["*.0.resid"]}
    context = model.config.context
    message = refused(server.post(CHAT, chat, positions=[context]), 400)
    assert f"at most {context} tokens are read, 0 to {context - 1}." in message


def test_an_encoder_reads_special_tokens_in_a_text(server, other_models):
    _, tokenizer = opened(other_models["vectors"])
    body = {"model": "vectors", "prompt": "the [MASK] sat", "inspect": ["*.0.resid"]}
    output = server.json(INSPECT, body)["tokens"]
    assert (
        output == tokenizer.encode_pair("the [MASK] sat", special=True)[0]
        and tokenizer.mask in output
    )


def test_directions_by_their_names(chat_model, other_models, tmp_path):
    """A control vector of `serve --direction`: the numbers of the same edit in process, bit for bit;
    a request opens no file, and another model's probe is refused."""
    pytest.importorskip("sklearn")
    model, tokenizer = opened(chat_model)
    texts = [
        f"{name}, my {word}" for name in ("Romeo", "Juliet", "Paris", "Tybalt") for word in "xy"
    ]
    probe = glassformer.probe(model, tokenizer, texts, ["x", "y"] * 4, shuffles=1)
    file = probe.save(tmp_path / "letters.safetensors")
    models = f"{chat_model} {other_models['vectors']} --dtype float32"
    query: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "logprobs": 2}
    with started(tmp_path, f"{models} --direction letters={file}") as server:
        plain = server.json(TEXT, query)["choices"][0]
        (steered,) = server.json(TEXT, query, directions={"letters": 2.5})["choices"]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as the server has
        edit = edits.steer(probe.best, probe, 2.5)
        ids, greedy = tokenizer.encode(PROMPT), Sampling(temperature=0.0)
        with Engine(model, tokenizer) as engine:
            request = Request(ids, sampling=greedy, max_new=8, logprobs=2, edits=[edit])
            local = [event for event in engine.submit(request) if event.token is not None]
        torch.set_num_threads(threads)
        assert steered["logprobs"]["token_logprobs"] == [event.logprob for event in local]
        assert steered["text"] != plain["text"]
        for line in (
            f'steer("{probe.best}", "letters", 2.5)',
            f'steer("{probe.best}", "letters", 2.5)',
        ):
            assert server.json(TEXT, query, edits=[line])["choices"] == [steered]
        assert server.json(TEXT, query)["choices"] == [plain]
        look = {"prompt": PROMPT, "inspect": [probe.best], "directions": {"letters": -1}}
        (value,) = server.json(INSPECT, look)["values"].values()
        expected = glassformer.look(
            model, tokenizer, PROMPT, probe.best, edits=[edits.steer(probe.best, probe, -1.0)]
        )[probe.best][0]
        torch.testing.assert_close(torch.tensor(value["values"]), expected, **NEAR)
        out = f'project_out("{probe.best}", "letters")'
        assert server.json(TEXT, query, edits=[out])["choices"] != [plain]
        for fields, sentence in (
            ({"directions": {"leters": 1}}, 'No direction is called "leters" here.'),
            ({"edits": [f'steer("{probe.best}", "{file}")']}, "No direction is called"),
            ({"edits": [f'steer("{probe.best}", "letters", toward="z")']}, 'no label "z"'),
            ({"directions": {"letters": "1"}}, "directions.letters"),
            ({"control_vectors": {"letters": 1}}, 'did you mean "directions"?'),
        ):
            assert sentence in refused(server.post(TEXT, query, **fields))
        elsewhere = {"model": "vectors", "prompt": "the cat", "inspect": ["*.resid"]}
        assert "letters was fitted to another model" in refused(
            server.post(INSPECT, elsewhere, directions={"letters": 1})
        )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("letters={file}", "fitted to none of these models"),
        ("letters", "--direction takes NAME=FILE"),
        ("letters=none.safetensors", "none.safetensors cannot be read"),
    ],
)
def test_a_direction_that_cannot_be_served_is_refused(
    other_models, tmp_path, words, sentence, capsys
):
    pytest.importorskip("sklearn")
    model, tokenizer = glassformer.load("tiny")
    texts = [f"{name} {word}" for name in "abcd" for word in "xy"]
    file = glassformer.probe(model, tokenizer, texts, ["x", "y"] * 4, shuffles=1).save(
        tmp_path / "letters.safetensors"
    )
    folder = str(other_models["vectors"])
    assert main(["serve", folder, "--port", "0", "--direction", words.format(file=file)]) != 0
    assert sentence in capsys.readouterr().err
