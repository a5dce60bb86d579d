"""Encoder endpoints computed by the engine: embeddings, scores, ranks, text and token labels."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import TypedDict

from ..core.files import JsonObject
from ..tasks.pool import probabilities
from ..tasks.predictions import is_framed_as_file, worded
from .asgi.limits import FLOAT_BYTES, MOST_TEXTS, MOST_TOKENS
from .asgi.replies import HttpError, refuse
from .engine import Encode
from .engine.sequence import Encoded
from .schemas import JsonInt, ModelRequest, TextOrTexts, Texts, Words, example
from .served_models import Context, ServedModel, check_ids

Text = str | list[int] | tuple[str, str]
Rows = list[tuple[list[int], list[int]]]  # ids and segments


class EmbeddingRequest(ModelRequest):
    """POST /v1/embeddings"""

    model_config = example(input=["The cat sat", "A dog ran"])

    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[JsonInt, Field(ge=1, le=1 << 20)] | None = None


class ScoreRequest(ModelRequest):
    """POST /score: each text of one side with each of the other, or one with all."""

    text_1: TextOrTexts
    text_2: TextOrTexts


class ClassifyRequest(ModelRequest):
    """POST /classify; ``second`` are the other texts, where the model reads pairs."""

    model_config = example(input=["The cat sat"])

    input: TextOrTexts
    second: TextOrTexts | None = None


class TagRequest(ModelRequest):
    """POST /v1/tag: sentences, each a text whose words stand between spaces, or a list of words."""

    model_config = example(input=["Anna saw Rome"])

    input: str | Annotated[list[str | Words], Field(min_length=1, max_length=MOST_TEXTS)]


class RerankDocument(BaseModel):
    """A document of Cohere's first rerank; what else a client keeps in it is not read."""

    model_config = ConfigDict(extra="ignore", strict=True)

    text: str


class RerankRequest(ModelRequest):
    """POST /v1/rerank and /v2/rerank, as Cohere's client sends it."""

    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[str | RerankDocument], Field(min_length=1, max_length=MOST_TEXTS)]
    top_n: Annotated[JsonInt, Field(ge=1, le=MOST_TOKENS)] | None = None
    return_documents: bool = False


class TokenUsage(TypedDict):
    """Token counts of an encoder request."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """One vector, as numbers or as the base64 of float32 (little-endian)."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class ListAnswer(TypedDict):
    """Results of one model in the order of the inputs."""

    object: Literal["list"]
    model: str


class EmbeddingAnswer(ListAnswer):
    """Vectors in the order of the texts."""

    data: list[Embedding]
    usage: TokenUsage


class PairScore(TypedDict):
    """Similarity of two texts: cosine of their vectors, or the score of a cross-encoder."""

    object: Literal["score"]
    index: int
    score: float


class ScoreAnswer(ListAnswer):
    """The scores in the order of the pairs."""

    data: list[PairScore]
    usage: TokenUsage


class Class(TypedDict):
    """The label of one text; ``probs`` in the order of ``labels``. With one label ``probs`` holds
    its value."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyAnswer(ListAnswer):
    """The labels in the order of the texts."""

    labels: list[str]
    data: list[Class]
    usage: TokenUsage


class Tagged(TypedDict):
    """The words of one sentence, the label of each, and its ``probs`` in the order of
    ``labels``."""

    index: int
    words: list[str]
    labels: list[str]
    probs: list[list[float]]


class TagAnswer(ListAnswer):
    """The labels of every word, in the order of the sentences."""

    labels: list[str]
    data: list[Tagged]
    usage: TokenUsage


class RankedText(TypedDict):
    """A document as Cohere's first rerank gives it back."""

    text: str


class Ranked(TypedDict):
    """One document: its place in the request."""

    index: int
    relevance_score: float
    document: NotRequired[RankedText]


class RerankAnswer(TypedDict):
    """Documents ranked by relevance, best first."""

    id: str
    results: list[Ranked]
    meta: JsonObject


def list_answer(context: Context, data: Sequence[Any], **fields: Any) -> Any:
    """ListAnswer with ``data`` and other fields."""
    return {"object": "list", "model": context.served.id, "data": data, **fields}


def texts_of(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


async def embed(context: Context, body: EmbeddingRequest) -> Any:
    """A vector for each text; with ``dimensions`` its first numbers, scaled to length 1."""
    served = context.served
    context.require("embeddings", "give vectors")
    width = served.config.dim
    size = body.dimensions or served.config.dim
    message = f"dimensions is {size}; the model's vectors have {width}."
    refuse(size > width, message, "dimensions")
    vectors, usage = await _vectors(context, body.input)
    context.hold(vectors.numel() * FLOAT_BYTES)
    if body.dimensions is not None:
        vectors = F.normalize(vectors[:, :size], dim=-1)
    encode = _base64 if body.encoding_format == "base64" else Tensor.tolist
    data: list[Embedding] = [
        {"object": "embedding", "index": index, "embedding": encode(vector)}
        for index, vector in enumerate(vectors)
    ]
    return list_answer(context, data, usage=usage)


async def score(context: Context, body: ScoreRequest) -> Any:
    """Similarity of pairs of texts."""
    first = texts_of(body.text_1)
    second = texts_of(body.text_2)
    message = (
        f"text_1 has {len(first)} texts and text_2 {len(second)}; give as many, or one in text_1."
    )
    refuse(len(first) not in (1, len(second)), message, "text_1")
    if len(first) == 1:
        first = first * len(second)
    scores, usage = await _scores(context, first, second)
    data: list[PairScore] = [
        {"object": "score", "index": n, "score": score} for n, score in enumerate(scores)
    ]
    return list_answer(context, data, usage=usage)


async def rerank(context: Context, body: RerankRequest) -> RerankAnswer:
    """Documents ranked by relevance to the query, best first."""
    texts = [
        document if isinstance(document, str) else document.text for document in body.documents
    ]
    scores, usage = await _scores(context, [body.query] * len(texts), texts)
    order = sorted(range(len(texts)), key=lambda index: -scores[index])[: body.top_n]
    results: list[Ranked] = [{"index": index, "relevance_score": scores[index]} for index in order]
    for result in results if body.return_documents else ():
        result["document"] = {"text": texts[result["index"]]}
    meta = {"api_version": {"version": "2"}, "tokens": {"input_tokens": usage["prompt_tokens"]}}
    return {"id": context.http.state.id, "results": results, "meta": meta}


async def classify(context: Context, body: ClassifyRequest) -> Any:
    """The label of each text, or pair of texts."""
    served = context.served
    context.require("classify", "choose labels")
    first = texts_of(body.input)
    texts: list[Text] = [*first]
    if body.second is not None:
        second = texts_of(body.second)
        message = "Give as many texts in second as in input."
        refuse(len(second) != len(first), message, "second")
        texts = [*zip(first, second, strict=True)]
    pool = served.config.pool
    assert pool is not None  # it is able to classify
    logits, usage = await _outputs(context, texts, "labels")
    data = list[Class]()
    for index, row in enumerate(probabilities(logits, pool)):
        best = served.labels[int(row.argmax())]
        data.append({"index": index, "label": best, "probs": row.tolist(), "num_classes": len(row)})
    return list_answer(context, data, labels=served.labels, usage=usage)


async def tag(context: Context, body: TagRequest) -> Any:
    """The label of each word of each sentence."""
    served = context.served
    context.require("tag", "label words")
    inputs = [body.input] if isinstance(body.input, str) else body.input
    sentences = [sentence.split() if isinstance(sentence, str) else sentence for sentence in inputs]
    is_empty = not all(words and all(words) for words in sentences)
    refuse(is_empty, "A sentence is empty; give words in each.", "input")
    texts = [*map(" ".join, sentences)]
    served.check_lengths(texts, "input")
    size = sum(map(len, texts))
    rows, firsts = await context.run(size, worded, served.tokenizer, sentences, served.context)
    data = list[Tagged]()
    for words, token_logits, first_tokens in zip(
        sentences, await _encode(context, rows, "tags"), firsts, strict=True
    ):
        probs = token_logits[first_tokens].softmax(-1)
        labels = [served.labels[best] for best in probs.argmax(-1).tolist()]
        data.append({"index": len(data), "words": words, "labels": labels, "probs": probs.tolist()})
    return list_answer(context, data, labels=served.labels, usage=_usage(rows))


async def _scores(
    context: Context, first: Sequence[str], second: Sequence[str]
) -> tuple[list[float], TokenUsage]:
    """Similarity score of each pair: cross-encoder probability, or cosine of embeddings."""
    served = context.served
    if "classify" in served.abilities:
        message = (
            f'"{served.id}" has {len(served.labels)} labels and says no one number for a pair; use '
            "/classify."
        )
        refuse(len(served.labels) != 1, message, "model")
        logits, usage = await _outputs(context, [*zip(first, second, strict=True)], "labels")
        return [1 / (1 + math.exp(-logit)) for logit in logits[:, 0].clamp(-60, 60).tolist()], usage
    context.require("embeddings", "score pairs")
    row_of = {text: row for row, text in enumerate(dict.fromkeys([*first, *second]))}
    vectors, usage = await _vectors(context, [*row_of])  # each is read once
    unit = F.normalize(vectors.double(), dim=-1)
    pairs = zip(first, second, strict=True)
    return [float(unit[row_of[a]] @ unit[row_of[b]]) for a, b in pairs], usage


async def _vectors(context: Context, texts: Sequence[Text]) -> tuple[Tensor, TokenUsage]:
    """The vectors of texts behind the model's default prompt, where it has one."""
    before = context.served.prompt
    prompted = [before + text if isinstance(text, str) else text for text in texts]
    return await _outputs(context, prompted, "vector")


async def _outputs(
    context: Context, texts: Sequence[Text], output: Literal["vector", "labels"]
) -> tuple[Tensor, TokenUsage]:
    """Encodes texts and returns vectors (N, C) or label logits (N, L) in fp32."""
    served = context.served
    flat = [piece for text in texts for piece in (text if isinstance(text, tuple) else (text,))]
    served.check_lengths(flat, "input")
    refuse(not all(flat), "A text is empty; give some text.", "input")
    rows = await context.run(sum(map(len, flat)), _encode_texts, served, texts, output)
    refuse(not all(ids for ids, _ in rows), "A text has no token; give some text.", "input")
    longest = max(len(ids) for ids, _ in rows)
    if longest > served.context:
        message = f"A text has {longest} tokens and the model reads {served.context}; shorten it."
        raise HttpError(400, message, "input", "context_length_exceeded")
    return torch.stack(await _encode(context, rows, output)), _usage(rows)


async def _encode(context: Context, rows: Rows, output: Encoded) -> list[Tensor]:
    """Submits token ids with segment ids to the engine and returns the outputs."""
    segmented = context.served.config.embed.segments > 1
    client = context.client
    requests = [
        Encode(ids, kinds if segmented else None, output, client=client) for ids, kinds in rows
    ]
    return await context.outputs(requests)


def _usage(rows: Rows) -> TokenUsage:
    tokens = sum(len(ids) for ids, _ in rows)
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _encode_texts(served: ServedModel, texts: Sequence[Text], output: Encoded) -> Rows:
    """Token ids and segment ids of texts or pairs, with the special tokens of this output. Raises
    HttpError for ids outside the vocabulary."""
    tokenizer = served.tokenizer
    as_file = output == "vector" and is_framed_as_file(served.config)
    rows = Rows()
    for text in texts:
        if isinstance(text, list):
            check_ids(text, tokenizer.size, "input")
            rows.append(tokenizer.framed([text], as_file=as_file))
        else:
            rows += tokenizer.encode_pairs([text], as_file=as_file)
    return rows


def _base64(vector: Tensor) -> str:
    return base64.b64encode(vector.contiguous().numpy().astype("<f4").tobytes()).decode()
