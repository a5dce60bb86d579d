"""Vectors, scores, ranks, labels, blanks and translations over HTTP (encoding, searching): the
numbers of the same call in process."""

from __future__ import annotations

import base64
import struct

import pytest
import torch

from glassformer.tasks import predictions, translation

from .conftest import opened
from .test_bad_input import refused

TEXTS = ["the cat sat on the mat", "the dog sat on the log", "a mat and a log"]


def test_embeddings(server, other_models):
    model, tokenizer = opened(other_models["vectors"])
    vectors = predictions.embed(model, tokenizer, TEXTS)
    body = server.post("/v1/embeddings", {"model": "vectors", "input": TEXTS}).json()
    assert [item["index"] for item in body["data"]] == [0, 1, 2] and body["object"] == "list"
    torch.testing.assert_close(
        torch.tensor([item["embedding"] for item in body["data"]]), vectors, atol=1e-5, rtol=1e-5
    )
    ids = tokenizer.encode(TEXTS[0])
    by_ids = server.post("/v1/embeddings", {"model": "vectors", "input": ids}).json()["data"][0][
        "embedding"
    ]
    assert by_ids == pytest.approx(body["data"][0]["embedding"], abs=1e-6), (
        "alone and by its ids as among other_models"
    )
    short = server.post(
        "/v1/embeddings", {"model": "vectors", "input": TEXTS[0], "dimensions": 8}
    ).json()
    expected = torch.nn.functional.normalize(vectors[:1, :8], dim=-1)
    torch.testing.assert_close(
        torch.tensor([short["data"][0]["embedding"]]), expected, atol=1e-5, rtol=1e-5
    )


def test_embeddings_as_openais_client_asks_for_them(server):
    """The client requests base64 where the caller gives no format."""
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    plain = client.embeddings.create(model="vectors", input=TEXTS, encoding_format="float")
    coded = client.embeddings.create(model="vectors", input=TEXTS)
    for item, second in zip(plain.data, coded.data, strict=True):
        assert item.embedding == pytest.approx(second.embedding, abs=1e-6)
    raw = server.post(
        "/v1/embeddings", {"model": "vectors", "input": TEXTS[0], "encoding_format": "base64"}
    ).json()
    data = base64.b64decode(raw["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(data) // 4}f", data)) == pytest.approx(
        plain.data[0].embedding, abs=1e-6
    )


def test_a_decoder_embeds_too(server, chat_model):
    model, tokenizer = opened(chat_model)
    values = predictions.embed(model, tokenizer, ["O Romeo"])[0].tolist()
    body = server.post("/v1/embeddings", {"model": "tiny", "input": "O Romeo"}).json()["data"][0][
        "embedding"
    ]
    assert body == pytest.approx(values, abs=1e-4)


def test_classify(server, other_models):
    model, tokenizer = opened(other_models["labels"])
    logits = predictions.classify(model, tokenizer, TEXTS)
    body = server.post("/classify", {"model": "labels", "input": TEXTS}).json()
    torch.testing.assert_close(
        torch.tensor([item["probs"] for item in body["data"]]), logits, atol=1e-5, rtol=1e-5
    )
    assert [item["label"] for item in body["data"]] == [str(int(row.argmax())) for row in logits]
    pairs = predictions.classify(model, tokenizer, [(TEXTS[0], TEXTS[1])])
    two = server.post(
        "/classify", {"model": "labels", "input": TEXTS[0], "second": TEXTS[1]}
    ).json()
    assert two["data"][0]["probs"] == pytest.approx(pairs[0].tolist(), abs=1e-5)


def test_score_by_vectors_and_by_a_model_for_pairs(server, other_models):
    unit = predictions.embed(*opened(other_models["vectors"]), TEXTS, unit=True)
    body = server.post("/score", {"model": "vectors", "text_1": TEXTS[0], "text_2": TEXTS}).json()[
        "data"
    ]
    assert [item["score"] for item in body] == pytest.approx((unit @ unit[0]).tolist(), abs=1e-5)
    individual = predictions.classify(
        *opened(other_models["pairs"]), [(TEXTS[0], text) for text in TEXTS]
    ).sigmoid()[:, 0]
    body = server.post("/score", {"model": "pairs", "text_1": TEXTS[0], "text_2": TEXTS}).json()[
        "data"
    ]
    assert [item["score"] for item in body] == pytest.approx(individual.tolist(), abs=1e-5)


@pytest.mark.parametrize("model", ["vectors", "pairs"])
def test_rerank_gives_the_best_first_with_its_place(server, model):
    body = {
        "model": model,
        "query": TEXTS[0],
        "documents": [TEXTS[2], {"text": TEXTS[0]}, TEXTS[1]],
    }
    scores = server.post(
        "/score", {"model": model, "text_1": TEXTS[0], "text_2": [TEXTS[2], *TEXTS[:2]]}
    ).json()["data"]
    output = server.post("/v2/rerank", {**body, "return_documents": True}).json()["results"]
    assert [item["index"] for item in output] == sorted(
        range(3), key=lambda place: -scores[place]["score"]
    )
    for item in output:
        assert item["relevance_score"] == pytest.approx(scores[item["index"]]["score"], abs=1e-6)
        assert item["document"]["text"] == [TEXTS[2], TEXTS[0], TEXTS[1]][item["index"]]
    assert server.post("/v2/rerank", {**body, "top_n": 2}).json()["results"] == [
        {name: item[name] for name in ("index", "relevance_score")} for item in output[:2]
    ]


@pytest.mark.parametrize("model", ["vectors", "pairs"])
def test_rerank_as_coheres_client_asks_for_it(server, model):
    cohere = pytest.importorskip("cohere", reason="needs Cohere's client: pip install cohere")
    scores = server.post("/score", {"model": model, "text_1": TEXTS[0], "text_2": TEXTS}).json()[
        "data"
    ]
    order = sorted(range(3), key=lambda place: -scores[place]["score"])
    two = cohere.ClientV2(api_key="none", base_url=server.url).rerank(
        model=model, query=TEXTS[0], documents=TEXTS, top_n=2
    )
    assert [result.index for result in two.results] == order[:2]
    assert two.results[0].relevance_score == pytest.approx(scores[order[0]]["score"], abs=1e-6)
    item = cohere.Client(api_key="none", base_url=server.url).rerank(
        model=model, query=TEXTS[0], documents=[TEXTS[0], {"text": TEXTS[1]}], return_documents=True
    )
    assert {item.document.text for item in item.results} == set(TEXTS[:2])


def test_tags(server, other_models):
    model, tokenizer = opened(other_models["names"])
    sentences = [TEXTS[0].split(), ["dog"], TEXTS[2].split()]
    tags = predictions.tag(model, tokenizer, sentences)
    body = server.post("/v1/tag", {"model": "names", "input": [TEXTS[0], ["dog"], TEXTS[2]]}).json()
    assert [item["words"] for item in body["data"]] == sentences and body["labels"] == [
        "O",
        "B-PER",
        "I-PER",
    ]
    for item, probs in zip(body["data"], tags, strict=True):
        torch.testing.assert_close(torch.tensor(item["probs"]), probs, atol=1e-5, rtol=1e-5)
        assert item["labels"] == [body["labels"][int(row.argmax())] for row in probs]
    single = server.post("/v1/tag", {"model": "names", "input": TEXTS[0]}).json()
    assert (
        single["data"][0]["labels"] == body["data"][0]["labels"]
        and single["usage"]["prompt_tokens"] >= 6
    )
    cards = {
        item["id"]: item["abilities"] for item in server.client().get("/v1/models").json()["data"]
    }
    assert "tag" in cards["names"] and "tag" not in cards["labels"]


@pytest.mark.parametrize("order", ["apart", "left", "sure"])
def test_fill(server, other_models, order):
    model, tokenizer = opened(other_models["labels"])
    fills = predictions.fill(model, tokenizer, "the ___ sat on the ___", top=3, order=order)
    body = {"model": "labels", "input": "the ___ sat on the ___", "top": 3, "order": order}
    output = server.post("/v1/fill", body).json()["data"]
    assert [[item["tokens"] for item in blank] for blank in output] == [
        [item.tokens for item in blank] for blank in fills
    ]
    assert output[0][0]["probability"] == pytest.approx(fills[0][0].probability, rel=1e-4)


def test_translate(server, other_models):
    model, tokenizer = opened(other_models["translator"])
    results = translation.search(model, tokenizer, TEXTS, beams=3, best=2, max_new=8)
    body = {"model": "translator", "input": TEXTS, "beams": 3, "best": 2, "max_new": 8}
    output = server.post("/v1/translate", body).json()["data"]
    assert [[item["tokens"] for item in group["best"]] for group in output] == [
        [item.tokens for item in result] for result in results
    ]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/embeddings", {"model": "labels", "input": "a"}, "does not give vectors"),
        ("/v1/embeddings", {"model": "vectors", "input": ""}, "empty"),
        ("/v1/embeddings", {"model": "vectors", "input": []}, "empty"),
        ("/v1/embeddings", {"model": "vectors", "input": [[]]}, "empty"),
        ("/v1/embeddings", {"model": "vectors", "input": [99999]}, "Tokens are"),
        ("/v1/embeddings", {"model": "vectors", "input": "cat " * 100}, "64"),
        ("/v1/embeddings", {"model": "vectors", "input": "a", "dimensions": 33}, "32"),
        ("/v1/embeddings", {"model": "vectors", "input": "a", "dimensions": 0}, "dimensions"),
        (
            "/v1/embeddings",
            {"model": "vectors", "input": "a", "encoding_format": "int8"},
            "encoding_format",
        ),
        ("/v1/embeddings", {"model": "vectors", "input": {"a": 1}}, "input"),
        ("/classify", {"model": "vectors", "input": "a"}, "does not choose labels"),
        ("/classify", {"model": "labels", "input": ["a", "b"], "second": ["c"]}, "as many"),
        ("/score", {"model": "labels", "text_1": "a", "text_2": "b"}, "3 labels"),
        ("/score", {"model": "vectors", "text_1": ["a", "b"], "text_2": ["c"]}, "as many"),
        ("/score", {"model": "translator", "text_1": "a", "text_2": "b"}, "does not score"),
        ("/v2/rerank", {"model": "vectors", "query": "", "documents": ["a"]}, "query"),
        ("/v2/rerank", {"model": "vectors", "query": "a", "documents": []}, "documents"),
        ("/v2/rerank", {"model": "vectors", "query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        ("/v1/tag", {"model": "labels", "input": "a b"}, "does not label words"),
        ("/v1/tag", {"model": "names", "input": " "}, "empty"),
        ("/v1/tag", {"model": "names", "input": [["cat", ""]]}, "empty"),
        ("/v1/tag", {"model": "names", "input": [[]]}, "input"),
        ("/v1/tag", {"model": "names", "input": "cat " * 100}, "64"),
        ("/v1/tag", {"model": "names", "input": [[3]]}, "input"),
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
