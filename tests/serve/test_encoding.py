"""Vectors, scores, ranks, labels, blanks and translations over HTTP (encoding, searching): the
numbers of the same call in process."""

from __future__ import annotations

import base64
import struct

import pytest
import torch

from glassformer.serve.asgi.limits import MOST_TEXTS
from glassformer.tasks import predictions, translation

from .conftest import opened
from .test_bad_input import refused

EMBED, SCORE, RERANK, TAG = "/v1/embeddings", "/score", "/v2/rerank", "/v1/tag"
TEXTS = ["the cat sat on the mat", "the dog sat on the log", "a mat and a log"]


def near(body, field, expected):
    values = torch.tensor([item[field] for item in body["data"]])
    torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-5)


def test_embeddings(server, other_models):
    model, tokenizer = opened(other_models["vectors"])
    vectors = predictions.embed(model, tokenizer, TEXTS)
    body = server.json(EMBED, model="vectors", input=TEXTS)
    assert [item["index"] for item in body["data"]] == [0, 1, 2] and body["object"] == "list"
    near(body, "embedding", vectors)
    ids = tokenizer.encode(TEXTS[0])
    by_ids = server.json(EMBED, model="vectors", input=ids)["data"][0]["embedding"]
    assert by_ids == pytest.approx(body["data"][0]["embedding"], abs=1e-6), (
        "alone and by its ids as among other_models"
    )
    short = server.json(EMBED, model="vectors", input=TEXTS[0], dimensions=8)
    expected = torch.nn.functional.normalize(vectors[:1, :8], dim=-1)
    near(short, "embedding", expected)


def test_embeddings_as_openais_client_asks_for_them(server):
    """The client requests base64 where the caller gives no format."""
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    plain = client.embeddings.create(model="vectors", input=TEXTS, encoding_format="float")
    coded = client.embeddings.create(model="vectors", input=TEXTS)
    for item, second in zip(plain.data, coded.data, strict=True):
        assert item.embedding == pytest.approx(second.embedding, abs=1e-6)
    raw = server.json(EMBED, model="vectors", input=TEXTS[0], encoding_format="base64")
    data = base64.b64decode(raw["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(data) // 4}f", data)) == pytest.approx(
        plain.data[0].embedding, abs=1e-6
    )


def test_a_decoder_embeds_too(server, chat_model):
    model, tokenizer = opened(chat_model)
    values = predictions.embed(model, tokenizer, ["O Romeo"])[0].tolist()
    body = server.json(EMBED, model="tiny", input="O Romeo")["data"][0]["embedding"]
    assert body == pytest.approx(values, abs=1e-4)


def test_classify(server, other_models):
    model, tokenizer = opened(other_models["labels"])
    logits = predictions.classify(model, tokenizer, TEXTS).probabilities
    body = server.json("/classify", model="labels", input=TEXTS)
    near(body, "probs", logits)
    assert [item["label"] for item in body["data"]] == [str(int(row.argmax())) for row in logits]
    pairs = predictions.classify(model, tokenizer, [(TEXTS[0], TEXTS[1])]).probabilities
    two = server.json("/classify", model="labels", input=TEXTS[0], second=TEXTS[1])
    assert two["data"][0]["probs"] == pytest.approx(pairs[0].tolist(), abs=1e-5)


def scores(server, model, texts=TEXTS):
    data = server.json(SCORE, model=model, text_1=TEXTS[0], text_2=texts)["data"]
    return [item["score"] for item in data]


def test_score_by_vectors_and_by_a_model_for_pairs(server, other_models):
    unit = predictions.embed(*opened(other_models["vectors"]), TEXTS, unit=True)
    assert scores(server, "vectors") == pytest.approx((unit @ unit[0]).tolist(), abs=1e-5)
    pairs = [(TEXTS[0], text) for text in TEXTS]
    logits = predictions.classify(*opened(other_models["pairs"]), pairs).probabilities
    assert scores(server, "pairs") == pytest.approx(logits.sigmoid()[:, 0].tolist(), abs=1e-5)


@pytest.mark.parametrize("model", ["vectors", "pairs"])
def test_as_many_documents_as_texts_of_a_request_are_ranked(server, model):
    documents = [TEXTS[number % 3] for number in range(MOST_TEXTS)]
    results = server.json(RERANK, model=model, query=TEXTS[0], documents=documents)["results"]
    assert len(results) == MOST_TEXTS


@pytest.mark.parametrize("model", ["vectors", "pairs"])
def test_rerank_gives_the_best_first_with_its_place(server, model):
    texts = [TEXTS[2], TEXTS[0], TEXTS[1]]
    documents = [texts[0], {"text": texts[1]}, texts[2]]
    body = {"model": model, "query": TEXTS[0], "documents": documents}
    expected = scores(server, model, texts)
    output = server.json(RERANK, body, return_documents=True)["results"]
    order = sorted(range(3), key=lambda place: -expected[place])
    assert [item["index"] for item in output] == order
    for item in output:
        assert item["relevance_score"] == pytest.approx(expected[item["index"]], abs=1e-6)
        assert item.pop("document")["text"] == texts[item["index"]]
    assert server.json(RERANK, body, top_n=2)["results"] == output[:2]


@pytest.mark.parametrize("model", ["vectors", "pairs"])
def test_rerank_as_coheres_client_asks_for_it(server, model):
    cohere = pytest.importorskip("cohere", reason="needs Cohere's client: pip install cohere")
    expected = scores(server, model)
    order = sorted(range(3), key=lambda place: -expected[place])
    fields = {"model": model, "query": TEXTS[0]}
    client = cohere.ClientV2(api_key="none", base_url=server.url)
    two = client.rerank(documents=TEXTS, top_n=2, **fields).results
    assert [result.index for result in two] == order[:2]
    assert two[0].relevance_score == pytest.approx(expected[order[0]], abs=1e-6)
    documents = [TEXTS[0], {"text": TEXTS[1]}]
    client = cohere.Client(api_key="none", base_url=server.url)
    results = client.rerank(documents=documents, return_documents=True, **fields).results
    assert {result.document.text for result in results} == set(TEXTS[:2])


def test_tags(server, other_models):
    model, tokenizer = opened(other_models["names"])
    sentences = [TEXTS[0].split(), ["dog"], TEXTS[2].split()]
    tags = [row.probabilities for row in predictions.tag(model, tokenizer, sentences)]
    body = server.json(TAG, model="names", input=[TEXTS[0], ["dog"], TEXTS[2]])
    assert [item["words"] for item in body["data"]] == sentences and body["labels"] == [
        "O",
        "B-PER",
        "I-PER",
    ]
    for item, probs in zip(body["data"], tags, strict=True):
        torch.testing.assert_close(torch.tensor(item["probs"]), probs, atol=1e-5, rtol=1e-5)
        assert item["labels"] == [body["labels"][int(row.argmax())] for row in probs]
    single = server.json(TAG, model="names", input=TEXTS[0])
    assert (
        single["data"][0]["labels"] == body["data"][0]["labels"]
        and single["usage"]["prompt_tokens"] >= 6
    )
    cards = {item["id"]: item["abilities"] for item in server.get("/v1/models").json()["data"]}
    assert "tag" in cards["names"] and "tag" not in cards["labels"]


@pytest.mark.parametrize("order", ["apart", "left", "sure"])
def test_fill(server, other_models, order):
    model, tokenizer = opened(other_models["labels"])
    fills = predictions.fill(model, tokenizer, "the ___ sat on the ___", top=3, order=order)
    body = {"model": "labels", "input": "the ___ sat on the ___", "top": 3, "order": order}
    output = server.json("/v1/fill", body)["data"]
    assert [[item["tokens"] for item in blank] for blank in output] == [
        [item.tokens for item in blank] for blank in fills
    ]
    assert output[0][0]["probability"] == pytest.approx(fills[0][0].probability, rel=1e-4)


def test_translate(server, other_models):
    model, tokenizer = opened(other_models["translator"])
    results = translation.translate(model, tokenizer, TEXTS, beams=3, best=2, max_new=8)
    body = {"model": "translator", "input": TEXTS, "beams": 3, "best": 2, "max_new": 8}
    output = server.json("/v1/translate", body)["data"]
    assert [[item["tokens"] for item in group["best"]] for group in output] == [
        [item.tokens for item in result] for result in results
    ]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (EMBED, {"model": "labels", "input": "a"}, "does not give vectors"),
        (EMBED, {"model": "vectors", "input": ""}, "empty"),
        (EMBED, {"model": "vectors", "input": []}, "empty"),
        (EMBED, {"model": "vectors", "input": [[]]}, "empty"),
        (EMBED, {"model": "vectors", "input": [99999]}, "Tokens are"),
        (EMBED, {"model": "vectors", "input": "cat " * 100}, "64"),
        (EMBED, {"model": "vectors", "input": "a", "dimensions": 33}, "32"),
        (EMBED, {"model": "vectors", "input": "a", "dimensions": 0}, "dimensions"),
        (
            EMBED,
            {"model": "vectors", "input": "a", "encoding_format": "int8"},
            "encoding_format",
        ),
        (EMBED, {"model": "vectors", "input": {"a": 1}}, "input"),
        ("/classify", {"model": "vectors", "input": "a"}, "does not choose labels"),
        ("/classify", {"model": "labels", "input": ["a", "b"], "second": ["c"]}, "as many"),
        (SCORE, {"model": "labels", "text_1": "a", "text_2": "b"}, "3 labels"),
        (SCORE, {"model": "vectors", "text_1": ["a", "b"], "text_2": ["c"]}, "as many"),
        (SCORE, {"model": "translator", "text_1": "a", "text_2": "b"}, "does not score"),
        (RERANK, {"model": "vectors", "query": "", "documents": ["a"]}, "query"),
        (RERANK, {"model": "vectors", "query": "a", "documents": []}, "documents"),
        (RERANK, {"model": "vectors", "query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        (TAG, {"model": "labels", "input": "a b"}, "does not label words"),
        (TAG, {"model": "names", "input": " "}, "empty"),
        (TAG, {"model": "names", "input": [["cat", ""]]}, "empty"),
        (TAG, {"model": "names", "input": [[]]}, "input"),
        (TAG, {"model": "names", "input": "cat " * 100}, "64"),
        (TAG, {"model": "names", "input": [[3]]}, "input"),
        ("/v1/fill", {"model": "tiny", "input": "a ___"}, "does not fill"),
        ("/v1/fill", {"model": "labels", "input": "no blank"}, "blank"),
        ("/v1/fill", {"model": "labels", "input": "a ___", "top": 0}, "top"),
        ("/v1/translate", {"model": "tiny", "input": "a"}, "does not translate"),
        ("/v1/translate", {"model": "translator", "input": ""}, "empty"),
        ("/v1/translate", {"model": "translator", "input": "a", "beams": 2, "best": 3}, "best"),
        ("/v1/completions", {"model": "vectors", "prompt": "a"}, "does not continue"),
        (
            "/v1/chat/completions",
            {"model": "pairs", "messages": [{"role": "user", "content": "a"}]},
            "does not chat",
        ),
    ],
)
def test_bad_input_is_a_sentence(server, path, body, message):
    assert message in refused(server.post(path, body))
