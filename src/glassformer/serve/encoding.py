"""Encoder endpoints computed by the engine: embeddings, scores, ranks, text and token labels."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NotRequired

import torch
from anyio import to_thread
from starlette.requests import Request as HttpRequest
from torch import Tensor
from typing_extensions import TypedDict

from ..engine import Encode
from ..engine.request import Encoded
from ..generation.predictions import worded
from .errors import ApiError, refuse
from .following import RequestTracker, client_of
from .generating import unsupported_message
from .prompts import as_list, check_lengths
from .registry import ServedModel
from .schemas import (
    ClassifyRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    TagRequest,
)

Text = str | list[int] | tuple[str, str]
Rows = list[tuple[list[int], list[int]]]  # ids and segments


class TokenUsage(TypedDict):
    """Token counts of an encoder request."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """One vector, as numbers or as the base64 of float32 (little-endian)."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingAnswer(TypedDict):
    """Vectors in the order of the texts."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: TokenUsage


class Score(TypedDict):
    """Similarity of two texts: cosine of their vectors, or the score of a cross-encoder."""

    object: Literal["score"]
    index: int
    score: float


class ScoreAnswer(TypedDict):
    """The scores in the order of the pairs."""

    object: Literal["list"]
    model: str
    data: list[Score]
    usage: TokenUsage


class Class(TypedDict):
    """The label of one text; ``probs`` in the order of ``labels``. With one label ``probs`` holds
    its value."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyAnswer(TypedDict):
    """The labels in the order of the texts."""

    object: Literal["list"]
    model: str
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


class TagAnswer(TypedDict):
    """The labels of every word, in the order of the sentences."""

    object: Literal["list"]
    model: str
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
    meta: dict[str, Any]


class Encoding:
    """Embedding, scoring and classification endpoints."""

    def __init__(self, followers: RequestTracker) -> None:
        self.followers = followers

    async def embed(
        self, http: HttpRequest, served: ServedModel, body: EmbeddingRequest
    ) -> EmbeddingAnswer:
        """POST /v1/embeddings"""
        refuse(not served.embeds, unsupported_message(served, "give vectors"), "model")
        width = served.config.dim
        size = body.dimensions or width
        refuse(
            size > width, f"dimensions is {size}; the model's vectors have {width}.", "dimensions"
        )
        vectors, usage = await self._outputs(http, served, as_list(body.input), "vector")
        if body.dimensions is not None:
            vectors = torch.nn.functional.normalize(vectors[:, :size], dim=-1)
        as_base64 = body.encoding_format == "base64"
        data: list[Embedding] = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _base64(vector) if as_base64 else vector.tolist(),
            }
            for index, vector in enumerate(vectors)
        ]
        return {"object": "list", "model": served.id, "data": data, "usage": usage}

    async def score(
        self, http: HttpRequest, served: ServedModel, body: ScoreRequest
    ) -> ScoreAnswer:
        """POST /score"""
        first, second = (
            [texts] if isinstance(texts, str) else texts for texts in (body.text_1, body.text_2)
        )
        message = (
            f"text_1 has {len(first)} texts and text_2 {len(second)}; give as many, or one "
            "in text_1."
        )
        refuse(len(first) not in (1, len(second)), message, "text_1")
        scores, usage = await self._scores(
            http, served, first * len(second) if len(first) == 1 else first, second
        )
        data: list[Score] = [
            {"object": "score", "index": n, "score": score} for n, score in enumerate(scores)
        ]
        return {"object": "list", "model": served.id, "data": data, "usage": usage}

    async def rerank(
        self, http: HttpRequest, served: ServedModel, body: RerankRequest
    ) -> RerankAnswer:
        """POST /v1/rerank, /v2/rerank"""
        texts = [
            document if isinstance(document, str) else document.text for document in body.documents
        ]
        scores, usage = await self._scores(http, served, [body.query] * len(texts), texts)
        order = sorted(range(len(texts)), key=lambda place: -scores[place])[: body.top_n]
        results: list[Ranked] = [
            {"index": place, "relevance_score": scores[place]} for place in order
        ]
        if body.return_documents:
            results = [
                {**result, "document": {"text": texts[result["index"]]}} for result in results
            ]
        meta = {"api_version": {"version": "2"}, "tokens": {"input_tokens": usage["prompt_tokens"]}}
        return {"id": http.state.id, "results": results, "meta": meta}

    async def classify(
        self, http: HttpRequest, served: ServedModel, body: ClassifyRequest
    ) -> ClassifyAnswer:
        """POST /classify"""
        refuse(not served.labelled, unsupported_message(served, "choose labels"), "model")
        first = [body.input] if isinstance(body.input, str) else body.input
        second = [body.second] if isinstance(body.second, str) else body.second
        refuse(
            second is not None and len(second) != len(first),
            "Give as many texts in second as in input.",
            "second",
        )
        texts: list[Text] = [*first] if second is None else [*zip(first, second, strict=True)]
        logits, usage = await self._outputs(http, served, texts, "labels")
        data = list[Class]()
        for index, row in enumerate(logits if logits.shape[1] == 1 else logits.softmax(-1)):
            best = served.labels[int(row.argmax())]
            data.append(
                {"index": index, "label": best, "probs": row.tolist(), "num_classes": len(row)}
            )
        return {
            "object": "list",
            "model": served.id,
            "labels": served.labels,
            "data": data,
            "usage": usage,
        }

    async def tag(self, http: HttpRequest, served: ServedModel, body: TagRequest) -> TagAnswer:
        """POST /v1/tag"""
        refuse(not served.tags, unsupported_message(served, "label words"), "model")
        inputs = [body.input] if isinstance(body.input, str) else body.input
        sentences = [
            sentence.split() if isinstance(sentence, str) else sentence for sentence in inputs
        ]
        refuse(
            not all(map(all, sentences)) or not all(sentences),
            "A sentence is empty; give words in each.",
            "input",
        )
        check_lengths(
            [" ".join(words) for words in sentences], served.characters, served.context, "input"
        )
        rows, firsts = await to_thread.run_sync(
            partial(worded, served.tokenizer, sentences, served.context)
        )
        logits = await self._encode(http, served, rows, "tags")
        data = list[Tagged]()
        for index, (words, token_logits, first_tokens) in enumerate(
            zip(sentences, logits, firsts, strict=True)
        ):
            probs = token_logits[first_tokens].softmax(-1)
            labels = [served.labels[best] for best in probs.argmax(-1).tolist()]
            data.append({"index": index, "words": words, "labels": labels, "probs": probs.tolist()})
        return {
            "object": "list",
            "model": served.id,
            "labels": served.labels,
            "data": data,
            "usage": _usage(rows),
        }

    async def _scores(
        self, http: HttpRequest, served: ServedModel, first: Sequence[str], second: Sequence[str]
    ) -> tuple[list[float], TokenUsage]:
        """Similarity score of each pair: cross-encoder probability, or cosine of embeddings."""
        if served.labelled:
            count = len(served.labels)
            refuse(
                count != 1,
                f'"{served.id}" has {count} labels and says no one number for a pair; use '
                "/classify.",
                "model",
            )
            logits, usage = await self._outputs(
                http, served, [*zip(first, second, strict=True)], "labels"
            )
            return [
                1 / (1 + math.exp(-value)) for value in logits[:, 0].clamp(-60, 60).tolist()
            ], usage
        refuse(not served.embeds, unsupported_message(served, "score pairs"), "model")
        texts = [*dict.fromkeys([*first, *second])]  # each is read once
        vectors, usage = await self._outputs(http, served, [*texts], "vector")
        row_of = {text: index for index, text in enumerate(texts)}
        unit = torch.nn.functional.normalize(vectors.double(), dim=-1)
        pairs = zip(first, second, strict=True)
        return [float(unit[row_of[a]] @ unit[row_of[b]]) for a, b in pairs], usage

    async def _outputs(
        self,
        http: HttpRequest,
        served: ServedModel,
        texts: Sequence[Text],
        output: Literal["vector", "labels"],
    ) -> tuple[Tensor, TokenUsage]:
        """Encodes texts and returns vectors (N, C) or label logits (N, L) in fp32."""
        flat = [piece for text in texts for piece in (text if isinstance(text, tuple) else (text,))]
        check_lengths(flat, served.characters, served.context, "input")
        refuse(any(not text for text in flat), "A text is empty; give some text.", "input")
        rows = await to_thread.run_sync(partial(_encode_texts, served, texts))
        longest = max(len(ids) for ids, _ in rows)
        if longest > served.context:
            message = (
                f"A text has {longest} tokens and the model reads {served.context}; shorten it."
            )
            raise ApiError(400, message, "input", "context_length_exceeded")
        return torch.stack(await self._encode(http, served, rows, output)), _usage(rows)

    async def _encode(
        self, http: HttpRequest, served: ServedModel, rows: Rows, output: Encoded
    ) -> list[Tensor]:
        """Submits token ids with segment ids to the engine and returns the outputs."""
        segmented, client = bool(served.config.embed.segments), client_of(http)
        requests = [
            Encode(ids, kinds if segmented else None, output, client=client) for ids, kinds in rows
        ]
        return await self.followers.outputs(http, served, requests)


def _usage(rows: Rows) -> TokenUsage:
    tokens = sum(len(ids) for ids, _ in rows)
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _encode_texts(served: ServedModel, texts: Sequence[Text]) -> Rows:
    """Token ids and segment ids of texts or pairs, with special tokens. Raises ApiError for ids
    outside the vocabulary."""
    tokenizer, rows = served.tokenizer, Rows()
    for text in texts:
        if isinstance(text, list):
            refuse(
                any(not 0 <= id < tokenizer.size for id in text),
                f"Tokens are 0 to {tokenizer.size - 1}.",
                "input",
            )
            rows.append(tokenizer.framed([text]))
        else:
            rows += tokenizer.encode_pairs([text])
    return rows


def _base64(vector: Tensor) -> str:
    return base64.b64encode(vector.contiguous().numpy().astype("<f4").tobytes()).decode()
