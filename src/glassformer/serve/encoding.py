"""What whole texts give, by the engine: vectors, scores, ranks, labels of texts and of words."""

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
from .following import Followers, client_of
from .generating import cannot
from .prompts import check_lengths, listed
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


class Read(TypedDict):
    """Tokens read."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """One vector, as numbers or as the base64 of float32 (little-endian)."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingAnswer(TypedDict):
    """The vectors in the order of the texts."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: Read


class Score(TypedDict):
    """How alike two texts are: their cosine, or what a model for pairs says."""

    object: Literal["score"]
    index: int
    score: float


class ScoreAnswer(TypedDict):
    """The scores in the order of the pairs."""

    object: Literal["list"]
    model: str
    data: list[Score]
    usage: Read


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
    usage: Read


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
    usage: Read


class RankedText(TypedDict):
    """A document as Cohere's first rerank gives it back."""

    text: str


class Ranked(TypedDict):
    """One document: its place in the request."""

    index: int
    relevance_score: float
    document: NotRequired[RankedText]


class RerankAnswer(TypedDict):
    """The best first."""

    id: str
    results: list[Ranked]
    meta: dict[str, Any]


class Encoding:
    """Reads texts with the models that encode."""

    def __init__(self, followers: Followers) -> None:
        self.followers = followers

    async def embed(
        self, http: HttpRequest, served: ServedModel, asked: EmbeddingRequest
    ) -> EmbeddingAnswer:
        """POST /v1/embeddings"""
        refuse(not served.embeds, cannot(served, "give vectors"), "model")
        width = served.config.dim
        size = asked.dimensions or width
        refuse(
            size > width, f"dimensions is {size}; the model's vectors have {width}.", "dimensions"
        )
        vectors, read = await self._outputs(http, served, listed(asked.input), "vector")
        if asked.dimensions is not None:
            vectors = torch.nn.functional.normalize(vectors[:, :size], dim=-1)
        coded = asked.encoding_format == "base64"
        data: list[Embedding] = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _base64(one) if coded else one.tolist(),
            }
            for index, one in enumerate(vectors)
        ]
        return {"object": "list", "model": served.id, "data": data, "usage": read}

    async def score(
        self, http: HttpRequest, served: ServedModel, asked: ScoreRequest
    ) -> ScoreAnswer:
        """POST /score"""
        first, second = (
            [one] if isinstance(one, str) else one for one in (asked.text_1, asked.text_2)
        )
        unequal = (
            f"text_1 has {len(first)} texts and text_2 {len(second)}; give as many, or one "
            "in text_1."
        )
        refuse(len(first) not in (1, len(second)), unequal, "text_1")
        scores, read = await self._scores(
            http, served, first * len(second) if len(first) == 1 else first, second
        )
        data: list[Score] = [
            {"object": "score", "index": n, "score": one} for n, one in enumerate(scores)
        ]
        return {"object": "list", "model": served.id, "data": data, "usage": read}

    async def rerank(
        self, http: HttpRequest, served: ServedModel, asked: RerankRequest
    ) -> RerankAnswer:
        """POST /v1/rerank, /v2/rerank"""
        texts = [one if isinstance(one, str) else one.text for one in asked.documents]
        scores, read = await self._scores(http, served, [asked.query] * len(texts), texts)
        order = sorted(range(len(texts)), key=lambda place: -scores[place])[: asked.top_n]
        results: list[Ranked] = [
            {"index": place, "relevance_score": scores[place]} for place in order
        ]
        if asked.return_documents:
            results = [{**one, "document": {"text": texts[one["index"]]}} for one in results]
        meta = {"api_version": {"version": "2"}, "tokens": {"input_tokens": read["prompt_tokens"]}}
        return {"id": http.state.id, "results": results, "meta": meta}

    async def classify(
        self, http: HttpRequest, served: ServedModel, asked: ClassifyRequest
    ) -> ClassifyAnswer:
        """POST /classify"""
        refuse(not served.labelled, cannot(served, "choose labels"), "model")
        first = [asked.input] if isinstance(asked.input, str) else asked.input
        second = [asked.second] if isinstance(asked.second, str) else asked.second
        refuse(
            second is not None and len(second) != len(first),
            "Give as many texts in second as in input.",
            "second",
        )
        texts: list[Text] = [*first] if second is None else [*zip(first, second, strict=True)]
        logits, read = await self._outputs(http, served, texts, "labels")
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
            "usage": read,
        }

    async def tag(self, http: HttpRequest, served: ServedModel, asked: TagRequest) -> TagAnswer:
        """POST /v1/tag"""
        refuse(not served.tags, cannot(served, "label words"), "model")
        given = [asked.input] if isinstance(asked.input, str) else asked.input
        sentences = [one.split() if isinstance(one, str) else one for one in given]
        refuse(
            not all(map(all, sentences)) or not all(sentences),
            "A sentence is empty; give words in each.",
            "input",
        )
        check_lengths(
            [" ".join(one) for one in sentences], served.characters, served.context, "input"
        )
        rows, firsts = await to_thread.run_sync(
            partial(worded, served.tokenizer, sentences, served.context)
        )
        logits = await self._read(http, served, rows, "tags")
        data = list[Tagged]()
        for index, (words, own, some) in enumerate(zip(sentences, logits, firsts, strict=True)):
            probs = own[some].softmax(-1)
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
    ) -> tuple[list[float], Read]:
        """How alike two texts each are."""
        if served.labelled:
            count = len(served.labels)
            refuse(
                count != 1,
                f'"{served.id}" has {count} labels and says no one number for a pair; use '
                "/classify.",
                "model",
            )
            logits, read = await self._outputs(
                http, served, [*zip(first, second, strict=True)], "labels"
            )
            return [
                1 / (1 + math.exp(-value)) for value in logits[:, 0].clamp(-60, 60).tolist()
            ], read
        refuse(not served.embeds, cannot(served, "score pairs"), "model")
        texts = [*dict.fromkeys([*first, *second])]  # each is read once
        vectors, read = await self._outputs(http, served, [*texts], "vector")
        place = {text: index for index, text in enumerate(texts)}
        unit = torch.nn.functional.normalize(vectors.double(), dim=-1)
        pairs = zip(first, second, strict=True)
        return [float(unit[place[one]] @ unit[place[other]]) for one, other in pairs], read

    async def _outputs(
        self,
        http: HttpRequest,
        served: ServedModel,
        texts: Sequence[Text],
        output: Literal["vector", "labels"],
    ) -> tuple[Tensor, Read]:
        """What the engine makes of each text (N, C or L), in fp32."""
        flat = [part for one in texts for part in (one if isinstance(one, tuple) else (one,))]
        check_lengths(flat, served.characters, served.context, "input")
        refuse(any(not one for one in flat), "A text is empty; give some text.", "input")
        rows = await to_thread.run_sync(partial(_framed, served, texts))
        longest = max(len(ids) for ids, _ in rows)
        if longest > served.context:
            said = f"A text has {longest} tokens and the model reads {served.context}; shorten it."
            raise ApiError(400, said, "input", "context_length_exceeded")
        return torch.stack(await self._read(http, served, rows, output)), _usage(rows)

    async def _read(
        self, http: HttpRequest, served: ServedModel, rows: Rows, output: Encoded
    ) -> list[Tensor]:
        """What the engine makes of ids with their segments."""
        segmented, client = bool(served.config.embed.segments), client_of(http)
        made = [
            Encode(ids, kinds if segmented else None, output, client=client) for ids, kinds in rows
        ]
        return await self.followers.outputs(http, served, made)


def _usage(rows: Rows) -> Read:
    read = sum(len(ids) for ids, _ in rows)
    return {"prompt_tokens": read, "total_tokens": read}


def _framed(served: ServedModel, texts: Sequence[Text]) -> Rows:
    """Ids with what stands around a text or a pair, and segments; UserError for ids that the model
    does not know."""
    tokenizer, rows = served.tokenizer, Rows()
    for one in texts:
        if isinstance(one, list):
            refuse(
                any(not 0 <= id < tokenizer.size for id in one),
                f"Tokens are 0 to {tokenizer.size - 1}.",
                "input",
            )
            rows.append(tokenizer.framed([one]))
        else:
            rows += tokenizer.encode_pairs([one])
    return rows


def _base64(vector: Tensor) -> str:
    return base64.b64encode(vector.contiguous().numpy().astype("<f4").tobytes()).decode()
