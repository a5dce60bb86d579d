"""Every route: the numbers are torch's, an answer has its bound, and what is wrong is said in a
sentence."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import struct
import threading
from typing import Any

import numpy as np
import pytest
import torch

import tiny

pytest.importorskip("starlette", reason="the page needs its extra: pip install -e '.[page]'")
pytest.importorskip("httpx", reason="tests of the page need httpx")

import httpx
from starlette.testclient import TestClient

import served
from glassformer.formats import store
from glassformer.serve.asgi.security import LOOPBACK
from glassformer.serve.page.models import shipped
from glassformer.serve.page.routes import application
from glassformer.serve.page.tensor_replies import MAX_BYTES
from seeding import generator_from

SENTENCE = "the cat sat on the mat"
PAIRS = [
    name for name, cfg in tiny.ALL.items() if hasattr(cfg, "encoder") and hasattr(cfg, "decoder")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def gpt(folder):
    return served.client(served.page(served.saved("gpt2", folder / "gpt")))


def run(client: TestClient, model: str, **kwargs: Any) -> dict[str, Any]:
    """The run of a text."""
    answer = client.post("/api/runs", json={"model": model, **kwargs})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def get(client: TestClient, run: dict[str, Any], kind: str, **query: Any) -> Any:
    """A part of a run."""
    return client.get(f"/api/runs/{run['run']}/{kind}", params=query)


def values(
    client: TestClient, run: dict[str, Any], address: str, **query: Any
) -> np.ndarray[Any, Any]:
    """A tensor of a run."""
    answer = get(client, run, "t", address=address, **query)
    assert answer.status_code == 200, answer.text
    return served.tensors(answer.content)["values"]


@pytest.mark.parametrize("name", list(tiny.ALL))
def test_every_family_has_a_card_a_run_and_its_own_numbers(name, folder):
    """Logits, or what the model answers instead, are those of a plain forward pass of a model
    loaded apart."""
    path = served.saved(name, folder / name.replace(" ", "-"))
    client = served.client(served.page(path))
    (card,) = client.answer("/api/models")
    pair = card["abilities"]["source"]
    assert pair == (name in PAIRS) and not card["loaded"]
    result = run(client, card["name"], text=SENTENCE, **({"source": "a dog"} if pair else {}))
    model, tokenizer = store.load(path)
    ids = torch.tensor([[token["id"] for token in result["tokens"]]])
    inputs = [ids]
    if pair:
        inputs.append(torch.tensor([[token["id"] for token in result["source_tokens"]]]))
    with torch.no_grad():
        plain = model(*inputs)
    last = result["plan"][-1]
    if card["abilities"]["lens"]:
        actual = values(client, result, "logits")
        reference = plain.logits[0].numpy()
    else:
        actual = values(client, result, last["id"])
        reference = plain.hidden[0].numpy()
    np.testing.assert_allclose(actual, reference, rtol=1e-4, atol=1e-4)
    # its pass comes after the first picture
    assert result["check"]["captured_vs_fast_max_abs"] is None
    check = client.answer(f"/api/runs/{result['run']}/check")
    difference = np.abs(
        actual[-1] - reference[-1]
    ).max()  # of an independent pass, which nobody watches
    assert (
        check["captured_vs_fast_max_abs"] == pytest.approx(float(difference), abs=1e-6)
        and difference < 1e-4
    )
    assert (
        run(client, card["name"], text=SENTENCE, **({"source": "a dog"} if pair else {}))["check"]
        == check
    )
    assert tokenizer is not None and b"".join(
        base64.b64decode(item["bytes"]) for item in result["tokens"] if item["end"]
    )


def test_the_run_says_what_was_read(gpt):
    result = run(gpt, "gpt", text="a 🦊 cat")
    text = "a 🦊 cat"
    raw = b"".join(
        base64.b64decode(token["bytes"]) for token in result["tokens"] if not token["special"]
    )
    assert raw.decode() == text
    split = [token for token in result["tokens"] if (token["start"], token["end"]) == (2, 3)]
    assert len(split) > 1, "an emoji of several tokens has its one span in each"
    again = run(gpt, "gpt", text=text)
    assert again["run"] == result["run"] and again["found"]
    assert gpt.answer(f"/api/runs/{result['run']}")["tokens"] == result["tokens"]
    by_ids = run(gpt, "gpt", ids=[token["id"] for token in result["tokens"]])
    assert by_ids["run"] == result["run"]


def test_values_are_torchs_bytes(gpt, folder):
    """f32 bit for bit, of a whole value, a head, a row, a weight."""
    import glassformer

    result = run(gpt, "gpt", text=SENTENCE)
    model, tokenizer = store.load(folder / "gpt")
    assert tokenizer is not None
    trace = glassformer.trace(model, tokenizer, SENTENCE)
    place = "decoder.blocks.1.attn"
    full = {
        name: trace[name][0] for name in ("decoder.out", f"{place}.q", "logits", f"{place}.pattern")
    }
    for name, expected in full.items():
        assert values(gpt, result, name).tobytes() == expected.contiguous().numpy().tobytes(), name
    assert (
        values(gpt, result, f"{place}.pattern[2]").tobytes()
        == trace[f"{place}.pattern"][0, 2].numpy().tobytes()
    )
    assert (
        values(gpt, result, f"{place}.q[1, 3, 0:4]").tolist()
        == trace[f"{place}.q"][0, 1, 3, :4].tolist()
    )
    assert (
        values(gpt, result, "embed.token.weight").tobytes()
        == model.embed.token.weight.detach().numpy().tobytes()
    )
    half = values(gpt, result, "decoder.out", **{"as": "f16"})
    assert half.dtype == np.float16 and np.array_equal(
        half, full["decoder.out"].numpy().astype(np.float16)
    )


@pytest.mark.parametrize("shape", ["lin", "sqrt"])
def test_eight_bits_come_back_within_their_step(gpt, shape):
    result = run(gpt, "gpt", text=SENTENCE)
    for name in ("decoder.blocks.0.attn.pattern", "decoder.blocks.0.attn.scores", "decoder.out"):
        exact = values(gpt, result, name)
        answer = get(gpt, result, "t", address=name, map=shape, **{"as": "u8"})
        codes, facts = served.tensors(answer.content)["values"], served.facts(answer.content)
        low, high, hole = float(facts["min"]), float(facts["max"]), int(facts["hole"])
        share = (codes.astype(np.float64) - hole) / (255 - hole)
        new_result = low + (high - low) * (share**2 if shape == "sqrt" else share)
        finite = np.isfinite(exact)
        assert hole == (not finite.all()) and ((codes == 0) | finite).all()
        step = (high - low) / (255 - hole)
        assert np.abs(new_result - exact)[finite].max() <= step * (
            1.01 if shape == "sqrt" else 0.51
        )


@pytest.mark.parametrize("length", [1, 12, 512])
def test_no_answer_is_more_than_four_megabytes(length, folder):
    """At a width where a whole layer's attention would be: the refusal says where the pooled one
    is."""
    path = folder / "long"
    if not path.exists():
        from dataclasses import replace

        from glassformer.core.nn import build_model

        cfg = replace(served.worded(tiny.ALL["llama"]), context=512)
        store.save(build_model(cfg, seed=1), path, served.tokenizer())
    client = served.client(served.page(path))
    generator = generator_from(0)
    result = run(
        client, "long", ids=torch.randint(0, served.VOCAB, (length,), generator=generator).tolist()
    )
    for op in result["plan"]:
        for kind in ("f32", "u8"):
            answer = get(client, result, "t", address=op["id"], **{"as": kind})
            assert len(answer.content) <= MAX_BYTES
            if answer.status_code == 413:
                assert kind == "f32" and op["quadratic"] and length == 512
                pooled = client.get("/" + answer.json()["pooled"])
                assert pooled.status_code == 200 and len(pooled.content) <= MAX_BYTES
            else:
                assert answer.status_code == 200, (op["id"], answer.text)
    answer = get(client, result, "thumbs", px=48)
    assert answer.status_code == 200 and len(answer.content) <= MAX_BYTES
    for tensor in served.tensors(answer.content).values():
        assert tensor.shape == (4, min(length, 48), min(length, 48))


def test_the_cell_is_the_explanation(gpt, folder):
    import glassformer

    result = run(gpt, "gpt", text=SENTENCE)
    address = "decoder.blocks.1.attn.scores[2,4,1]"
    cell = get(gpt, result, "cell", address=address, terms=5).json()
    model, tokenizer = store.load(folder / "gpt")
    assert tokenizer is not None
    trace = glassformer.trace(model, tokenizer, SENTENCE)
    assert cell["value"] == trace.explain(address).value and cell["address"] == address
    assert (
        "decoder.blocks.1.attn.pattern" in cell["next"]
        and cell["words"]["plain"] == cell["sentence"]
    )
    assert eval(cell["python"], {"trace": trace}).item() == cell["value"]
    hidden = get(gpt, result, "cell", address="decoder.blocks.1.attn.scores[2,1,4]").json()
    assert hidden["value"] == "-Infinity" == hidden["recomputed"], (
        "what a mask hides is told apart from NaN"
    )


def test_logits_of_each_position(gpt):
    result = run(gpt, "gpt", text=SENTENCE)
    full = values(gpt, result, "logits")
    for position in (0, 3, -1):
        answer = get(gpt, result, "logits", position=position)
        assert served.tensors(answer.content)["logits"].tobytes() == full[position].tobytes()
        assert served.facts(answer.content)["known"] == str(served.tokenizer().size)
    assert get(gpt, result, "logits", position=400).status_code == 400


def test_what_does_not_change_is_not_sent_again(gpt):
    result = run(gpt, "gpt", text=SENTENCE)
    first = get(gpt, result, "t", address="decoder.out")
    assert "immutable" in first.headers["cache-control"]
    again = gpt.get(str(first.url), headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304 and not again.content
    response = get(gpt, result, "t", address="decoder.out", **{"as": "u8"})
    assert response.headers["etag"] != first.headers["etag"]


def test_an_edit_is_another_run(gpt):
    plain = run(gpt, "gpt", text=SENTENCE)
    edit = 'head_off("decoder.blocks.0.attn", 1)'
    edited = run(gpt, "gpt", text=SENTENCE, edits=[edit])
    assert edited["run"] != plain["run"] and edited["edits"] == [edit]
    assert not np.array_equal(values(gpt, plain, "logits"), values(gpt, edited, "logits"))
    off = values(gpt, edited, "decoder.blocks.0.attn.z[1]")
    assert not off.any()
    lens = gpt.ask(f"/api/runs/{edited['run']}/lens", positions=[-1])
    last = values(gpt, edited, "logits[-1]")
    assert lens["top"][-1][0][0] == int(last[: served.tokenizer().size].argmax()), (
        "the lens reads the edited pass"
    )
    body = get(gpt, edited, "attribution").json()
    assert abs(body["logit"] - last[body["token"]]) < 1e-4
    masked = run(gpt, "gpt", text=SENTENCE, edits=["swap_token(2, 5)"])
    assert (
        masked["tokens"][2]["id"] == 5 and masked["tokens"][2]["end"] == plain["tokens"][2]["end"]
    )


def test_an_edit_of_a_page_opens_no_file(gpt, tmp_path):
    for line in (
        f'steer("decoder.out", "{tmp_path}")',
        f'project_out("decoder.out", "{tmp_path}")',
    ):
        answer = gpt.post("/api/runs", json={"model": "gpt", "text": SENTENCE, "edits": [line]})
        assert answer.status_code == 400 and "No direction is called" in answer.json()["error"]


def test_lens_and_attribution_are_those_of_the_library(gpt, folder):
    from glassformer.sight.attribution import attribute
    from glassformer.sight.lens import logit_lens

    result = run(gpt, "gpt", text=SENTENCE)
    model, tokenizer = store.load(folder / "gpt")
    body = {"positions": [1, 3], "track": [7], "top": 3}
    actual = gpt.ask(f"/api/runs/{result['run']}/lens", **body)
    reference = logit_lens(model, tokenizer, SENTENCE, positions=[1, 3], track=[7], top=3).to_dict()
    assert actual == json.loads(json.dumps(reference))
    pieces = get(gpt, result, "attribution", token=9, position=2).json()
    expected = attribute(model, tokenizer, SENTENCE, token=9, position=2).to_dict()
    assert pieces == json.loads(json.dumps(expected))
    assert abs(math.fsum(piece["value"] for piece in pieces["parts"]) - pieces["logit"]) < 1e-4


def test_experts_are_counted(folder):
    client = served.client(served.page(served.saved("mixtral", folder / "moe")))
    assert client.answer("/api/models")[0]["abilities"]["experts"]
    result = run(client, "moe", text=SENTENCE)
    body = get(client, result, "experts").json()
    length = len(result["tokens"])
    for layer in body["layers"]:
        assert sum(layer["load"]) == 2 * length and len(layer["chosen"]) == length
        best = np.argsort(-np.array(layer["probabilities"]), axis=-1)[:, :2]
        assert np.array_equal(np.sort(best), np.sort(np.array(layer["chosen"])))
        assert layer["idle"] == sum(item == 0 for item in layer["load"])


def sse(text: str) -> list[tuple[str, Any]]:
    """(event, data) of each event."""
    results = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in block.splitlines())
        results.append((fields.get("event", "message"), json.loads(fields["data"])))
    return results


def test_generation_is_that_of_the_library(gpt, folder):
    import glassformer

    body = {
        "model": "gpt",
        "text": SENTENCE,
        "settings": {"temperature": 0.8, "top_k": 20},
        "seed": 5,
        "max_new": 8,
    }
    result = sse(gpt.post("/api/generate", json=body).text)
    model, tokenizer = store.load(folder / "gpt")
    output = glassformer.generate(
        model, tokenizer, SENTENCE, temperature=0.8, top_k=20, seed=5, max_new=8
    ).run()
    tokens = [data for event, data in result if event == "message"]
    assert result[0][0] == "start" and result[-1][0] == "end"
    assert [token["id"] for token in tokens] == output.tokens[0]
    assert [token["logprob"] for token in tokens] == output.logprobs[0]
    assert all(len(token["top"]) == 10 and token["ms"] >= 0 for token in tokens)
    assert result[-1][1] == {"finish": output.finishes[0], "text": output.text}
    kv_bytes = [token["kv_bytes"] for token in tokens]
    assert kv_bytes[0] == len(result[0][1]["ids"]) * 2 * 2 * tiny.DIM * 4, (
        "two layers of keys and values in fp32"
    )
    assert np.diff(kv_bytes).tolist() == [2 * 2 * tiny.DIM * 4] * 7


def test_tokenizers_side_by_side(gpt):
    names = [item["name"] for item in gpt.answer("/api/tokenizers") if item["available"]]
    assert "gpt" in names
    text = "the 🎵 cat"
    (sheet,) = gpt.ask("/api/tokenize", text=text, tokenizers=["gpt"])
    assert [item["id"] for item in sheet["tokens"]] == served.tokenizer().encode(text)
    assert b"".join(base64.b64decode(item["bytes"]) for item in sheet["tokens"]).decode() == text
    assert gpt.ask("/api/tokenize", text="", tokenizers=["gpt"])[0]["tokens"] == []
    assert (
        gpt.post("/api/tokenize", json={"text": text, "tokenizers": ["../etc"]}).status_code == 404
    )


def test_the_vocabulary_as_bytes(gpt):
    data, at = gpt.get("/api/vocab/gpt").content, 0
    tokenizer = served.tokenizer()
    for id in range(tokenizer.size):
        (size,) = struct.unpack_from("<I", data, at)
        raw = data[at + 4 : at + 4 + size]
        assert raw == (
            tokenizer.token(id).encode() if tokenizer.hides(id) else tokenizer.bytes_of(id)
        )
        at += 4 + size
    assert at == len(data)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("/api/runs", {"model": "gpt", "text": ""}, "empty"),
    ("/api/runs", {"model": "gpt"}, "text"),
    ("/api/runs", {"model": "gpt", "text": "the cat " * 200}, "context is 64"),
    ("/api/runs", {"model": "gpt", "text": 7}, "text"),
    ("/api/runs", {"model": "gpt", "ids": [1, "a"]}, "ids are whole numbers"),
    ("/api/runs", {"model": "gpt", "ids": [99_999]}, "out of range"),
    ("/api/runs", {"model": "gpt", "text": "a", "source": "b"}, "source"),
    ("/api/runs", {"model": "nobody", "text": "a"}, "nobody"),
    ("/api/runs", {"model": "../../etc/passwd", "text": "a"}, "no model"),
    ("/api/runs", {"model": "gpt", "text": "a", "edits": ["import os"]}, "edit"),
    (
        "/api/runs",
        {"model": "gpt", "text": "a", "edits": ['head_off("decoder.blocks.9.attn", 1)']},
        "blocks.9",
    ),
    ("/api/generate", {"model": "gpt", "text": "a", "settings": {"temp": 1}}, "temp"),
    (
        "/api/generate",
        {"model": "gpt", "text": "a", "settings": {"temperature": -1}},
        "temperature",
    ),
    ("/api/generate", {"model": "gpt", "text": "a", "max_new": 0}, "max_new"),
    ("/api/tokenize", {"text": "a", "tokenizers": []}, "tokenizers"),
]


@pytest.mark.parametrize(("path", "query", "message"), BAD)
def test_mistakes_are_sentences(gpt, path, query, message):
    """Errors of a request become 4xx responses (handle_error in serve/asgi/replies)."""
    answer = gpt.post(path, json=query)
    assert answer.status_code in (400, 404) and message in answer.json()["error"], answer.text
    assert answer.json()["error"].endswith((".", "?"))


def test_unknown_addresses_and_bad_queries_are_sentences(gpt):
    result = run(gpt, "gpt", text=SENTENCE)
    wrong = get(gpt, result, "t", address="decoder.blocks.1.attn.patern")
    assert wrong.status_code == 400 and "attn.pattern" in wrong.json()["error"]
    requests: list[dict[str, Any]] = [
        {},
        {"address": "logits[9999]"},
        {"address": "logits[a]"},
        {"address": "logits", "pool": "min:3"},
        {"address": "logits", "pool": "max:0x4"},
        {"address": "logits", "as": "f64"},
        {"address": "logits", "map": "log"},
        {"address": "logits", "range": "1:0"},
        {"address": "logits[2:2]"},
        {"address": "x" * 5000},
    ]
    for query in requests:
        assert get(gpt, result, "t", **query).status_code == 400, query
    assert gpt.get("/api/runs/r_0/t?address=logits").status_code == 404
    assert "no run" in gpt.answer("/api/runs/r_0")["error"]
    assert gpt.get("/api/nothing").status_code == 404
    assert gpt.get("/..%2f..%2fetc%2fpasswd").status_code == 404
    assert (
        gpt.post(
            "/api/runs", content=b"{", headers={"content-type": "application/json"}
        ).status_code
        == 400
    )
    big = gpt.post("/api/runs", json={"model": "gpt", "text": "a" * (9 << 20)})
    assert big.status_code == 413 and "MiB" in big.json()["error"]


@pytest.mark.parametrize("path", ["runs", "generate", "beam"])
@pytest.mark.parametrize("id", [10**20, -(10**20), 2**63, 2**62, -1, served.VOCAB])
def test_an_id_that_no_vocabulary_has_is_a_sentence(gpt, path, id):
    answer = gpt.post(f"/api/{path}", json={"model": "gpt", "ids": [1, id], "max_new": 2})
    assert (
        answer.status_code == 400
        and answer.json()["error"].endswith(".")
        and "\n" not in answer.json()["error"]
    )


def test_what_fails_in_a_stream_is_its_last_event(gpt, monkeypatch, capsys):
    from glassformer.sight import answers

    def tokens(*_):
        raise KeyError("nobody foresaw it")

    monkeypatch.setattr(answers, "tokens", tokens)
    answer = gpt.post("/api/generate", json={"model": "gpt", "text": "the cat", "max_new": 2})
    assert answer.status_code == 200 and "KeyError" in answer.text.split("event: error")[1]
    assert "nobody foresaw it" in capsys.readouterr().err and "nobody foresaw it" not in answer.text


def test_one_token_has_a_run(gpt):
    result = run(gpt, "gpt", ids=[3])
    assert values(gpt, result, "decoder.blocks.0.attn.pattern").tolist() == [[[1.0]]] * 4


def test_a_text_beyond_the_context_is_cut_when_that_is_asked_for(gpt):
    result = run(gpt, "gpt", text="the cat " * 200, cut=True)
    assert len(result["tokens"]) == 64 and "first 64 of" in result["cut"]
    assert result["tokens"][-1]["end"] > 0


def test_weights_with_nan_are_named(folder):
    path = served.saved("gpt2", folder / "nan")
    model, tokenizer = store.load(path, mapped=False)
    with torch.no_grad():
        model.get_parameter("decoder.blocks.1.ffn.up.weight")[0, 0] = math.nan
    store.save(model, path, tokenizer)
    client = served.client(served.page(path))
    answer = client.post("/api/runs", json={"model": "nan", "text": SENTENCE})
    assert (
        answer.status_code == 400
        and "NaN" in answer.json()["error"]
        and "h.1.mlp" in answer.json()["error"]
    )


def test_a_model_whose_files_are_replaced_is_loaded_anew(folder):
    """The old run answers with the old numbers, a new one has another digest."""
    path = served.saved("gpt2", folder / "swap", seed=1)
    client = served.client(served.page(path))
    old = run(client, "swap", text=SENTENCE)
    before = values(client, old, "logits")
    served.saved("gpt2", path, seed=2)
    new = run(client, "swap", text=SENTENCE)
    assert new["digest"] != old["digest"] and new["run"] != old["run"]
    assert not np.array_equal(values(client, new, "logits"), before)
    assert np.array_equal(values(client, old, "logits", **{"range": "-99:99"}), before)


def test_the_shipped_model_answers_without_arguments():
    size = sum(path.stat().st_size for path in shipped().iterdir())
    assert size <= 2 << 20
    client = served.client(served.page())
    card, *beside = client.answer("/api/models")
    assert card["name"] == "tiny-page" and card["parameters"] == 917_760
    names = [card["name"] for card in beside]
    assert names == ["tiny-encoder", "tiny-stories", "tiny-translator"]
    assert not any(card["loaded"] for card in beside), "each is loaded when it is first chosen"
    result = run(client, "tiny-page", text="ROMEO:\nWhat light is")
    assert client.answer(f"/api/runs/{result['run']}/check")["captured_vs_fast_max_abs"] < 1e-4


def test_a_run_is_saved_as_a_file(gpt):
    result = run(gpt, "gpt", text=SENTENCE)
    data = get(gpt, result, "export.trace")
    assert data.headers["content-disposition"].startswith("attachment")
    tensors = served.tensors(data.content)
    for address in ("logits", "decoder.blocks.1.attn.pattern"):
        assert tensors[address].tobytes() == values(gpt, result, address).tobytes()
    if "inline.js" in served.page().static:
        page = get(gpt, result, "export.html")
        assert page.status_code == 200 and len(page.content) <= 2_000_000
        assert page.headers["content-security-policy"] == "sandbox", (
            "its scripts do not run under our address"
        )
    assert get(gpt, result, "export.exe").status_code == 400


def test_one_client_of_the_page_keeps_none_waiting(folder, monkeypatch):
    """Sixty passes of one client, with bodies of megabytes: another has the page at once, its own
    pass too, and what is beyond the bound of bytes is refused."""
    page = served.page(served.saved("gpt2", folder / "crowd"))
    release, make = threading.Event(), page.runs.make

    def wait(fields, check):
        if fields.text == "slow":
            release.wait(60)
        return make(fields, check)

    monkeypatch.setattr(page.runs, "make", wait)
    app = application(page, frozenset(LOOPBACK))

    def client_at(address):
        transport = httpx.ASGITransport(app, client=(address, 5000))
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60)

    async def ask():
        async with client_at("10.0.0.1") as greedy, client_at("10.0.0.2") as fair:
            body = {"model": "crowd", "text": "slow", "padding": "x" * (4 << 20)}
            going = [asyncio.create_task(greedy.post("/api/runs", json=body)) for _ in range(60)]
            await asyncio.sleep(1)
            try:
                async with asyncio.timeout(30):
                    models = await fair.get("/api/models")
                    passed = await fair.post("/api/runs", json={"model": "crowd", "text": "cat"})
            finally:
                release.set()
            return models, passed, [answer.status_code for answer in await asyncio.gather(*going)]

    models, passed, statuses = asyncio.run(ask())
    assert models.status_code == passed.status_code == 200
    assert set(statuses) == {200, 503} and 20 <= statuses.count(503) < 35
    assert not page.bodies.held


def test_a_text_for_many_tokenizers_is_bounded(gpt):
    body = {"text": "a " * 100_000, "tokenizers": ["gpt"] * 12}
    answer = gpt.post("/api/tokenize", json=body)
    assert answer.status_code == 400 and "87,381 characters" in answer.json()["error"]
    assert gpt.post("/api/tokenize", json={**body, "tokenizers": ["gpt"]}).status_code == 200
