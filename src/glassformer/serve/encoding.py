"""What whole texts give: vectors, scores, ranks, labels, the words for blanks, translations.

Vectors and labels come from the engine. Blanks and beams are read by passes of their own on the same weights, one
after another in a thread: the engine's answers do not change by it.
"""

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

from .. import generation
from ..engine import Encode
from .errors import ApiError, refuse
from .following import Followers, Tally, alone, unless_gone
from .generating import cannot
from .prompts import check_lengths, listed
from .registry import ServedModel
from .schemas import (
    ClassifyRequest,
    EmbeddingRequest,
    FillRequest,
    RerankRequest,
    ScoreRequest,
    TranslateRequest,
)

Text = str | list[int] | tuple[str, str]


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
    """The label of one text; ``probs`` in the order of ``labels``. With one label ``probs`` holds its value."""

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

    async def embed(self, http: HttpRequest, served: ServedModel, asked: EmbeddingRequest) -> EmbeddingAnswer:
        """POST /v1/embeddings"""
        refuse(not served.embeds, cannot(served, "give vectors"), "model")
        width = served.config.dim
        size = asked.dimensions or width
        refuse(size > width, f"dimensions is {size}; the model's vectors have {width}.", "dimensions")
        vectors, read = await self._outputs(http, served, listed(asked.input), "vector")
        if asked.dimensions is not None:
            vectors = torch.nn.functional.normalize(vectors[:, :size], dim=-1)
        coded = asked.encoding_format == "base64"
        data: list[Embedding] = [
            {"object": "embedding", "index": index, "embedding": _base64(one) if coded else one.tolist()}
            for index, one in enumerate(vectors)
        ]
        return {"object": "list", "model": served.id, "data": data, "usage": read}

    async def score(self, http: HttpRequest, served: ServedModel, asked: ScoreRequest) -> ScoreAnswer:
        """POST /score"""
        first, second = ([one] if isinstance(one, str) else one for one in (asked.text_1, asked.text_2))
        unequal = f"text_1 has {len(first)} texts and text_2 {len(second)}; give as many, or one in text_1."
        refuse(len(first) not in (1, len(second)), unequal, "text_1")
        scores, read = await self._scores(http, served, first * len(second) if len(first) == 1 else first, second)
        data: list[Score] = [{"object": "score", "index": n, "score": one} for n, one in enumerate(scores)]
        return {"object": "list", "model": served.id, "data": data, "usage": read}

    async def rerank(self, http: HttpRequest, served: ServedModel, asked: RerankRequest) -> RerankAnswer:
        """POST /v1/rerank, /v2/rerank"""
        texts = [one if isinstance(one, str) else one.text for one in asked.documents]
        scores, read = await self._scores(http, served, [asked.query] * len(texts), texts)
        order = sorted(range(len(texts)), key=lambda place: -scores[place])[: asked.top_n]
        results: list[Ranked] = [{"index": place, "relevance_score": scores[place]} for place in order]
        if asked.return_documents:
            results = [{**one, "document": {"text": texts[one["index"]]}} for one in results]
        meta = {"api_version": {"version": "2"}, "tokens": {"input_tokens": read["prompt_tokens"]}}
        return {"id": http.state.id, "results": results, "meta": meta}

    async def classify(self, http: HttpRequest, served: ServedModel, asked: ClassifyRequest) -> ClassifyAnswer:
        """POST /classify"""
        refuse(not served.labelled, cannot(served, "choose labels"), "model")
        first = [asked.input] if isinstance(asked.input, str) else asked.input
        second = [asked.second] if isinstance(asked.second, str) else asked.second
        refuse(second is not None and len(second) != len(first), "Give as many texts in second as in input.", "second")
        texts: list[Text] = [*first] if second is None else [*zip(first, second, strict=True)]
        logits, read = await self._outputs(http, served, texts, "labels")
        data = list[Class]()
        for index, row in enumerate(logits if logits.shape[1] == 1 else logits.softmax(-1)):
            best = served.labels[int(row.argmax())]
            data.append({"index": index, "label": best, "probs": row.tolist(), "num_classes": len(row)})
        return {"object": "list", "model": served.id, "labels": served.labels, "data": data, "usage": read}

    async def fill(self, http: HttpRequest, served: ServedModel, asked: FillRequest) -> dict[str, Any]:
        """POST /v1/fill"""
        refuse(not served.fills, cannot(served, "fill blanks"), "model")
        check_lengths([asked.input], served.characters, served.context, "input")
        how: Any = {"top": asked.top, "order": asked.order}
        work = partial(generation.fill, served.model, served.tokenizer, asked.input, **how)
        found = await unless_gone(http, alone(work))
        return {"object": "list", "model": served.id, "data": [[one.to_dict() for one in blank] for blank in found]}

    async def translate(self, http: HttpRequest, served: ServedModel, asked: TranslateRequest) -> dict[str, Any]:
        """POST /v1/translate"""
        refuse(not served.translates, cannot(served, "translate"), "model")
        texts = [asked.input] if isinstance(asked.input, str) else asked.input
        refuse(not all(texts), "A text is empty; give some text.", "input")
        check_lengths(texts, served.characters, served.context, "input")
        generation.check_beams(asked.beams, asked.best, asked.length_penalty, asked.max_new)
        how: dict[str, Any] = {"beams": asked.beams, "best": asked.best, "length_penalty": asked.length_penalty}
        how["max_new"] = asked.max_new
        work = partial(generation.search, served.model, served.tokenizer, texts, **how)
        found = await unless_gone(http, alone(work))
        data = [{"index": n, "best": [one.to_dict() for one in some]} for n, some in enumerate(found)]
        return {"object": "list", "model": served.id, "data": data}

    async def _scores(
        self, http: HttpRequest, served: ServedModel, first: Sequence[str], second: Sequence[str]
    ) -> tuple[list[float], Read]:
        """How alike two texts each are."""
        if served.labelled:
            count = len(served.labels)
            refuse(
                count != 1,
                f'"{served.id}" has {count} labels and says no one number for a pair; use /classify.',
                "model",
            )
            logits, read = await self._outputs(http, served, [*zip(first, second, strict=True)], "labels")
            return [1 / (1 + math.exp(-value)) for value in logits[:, 0].clamp(-60, 60).tolist()], read
        refuse(not served.embeds, cannot(served, "score pairs"), "model")
        texts = [*dict.fromkeys([*first, *second])]  # each is read once
        vectors, read = await self._outputs(http, served, [*texts], "vector")
        place = {text: index for index, text in enumerate(texts)}
        unit = torch.nn.functional.normalize(vectors.double(), dim=-1)
        pairs = zip(first, second, strict=True)
        return [float(unit[place[one]] @ unit[place[other]]) for one, other in pairs], read

    async def _outputs(
        self, http: HttpRequest, served: ServedModel, texts: Sequence[Text], output: Literal["vector", "labels"]
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
        segmented = bool(served.config.embed.segments)
        client = http.client.host if http.client else ""
        made = [Encode(ids, kinds if segmented else None, output, client=client) for ids, kinds in rows]
        tally: Tally = http.state.tally
        found = list[Tensor]()
        some = max(1, min(ATONCE, served.engine.max_queue // 2))
        for begin in range(0, len(made), some):  # a request takes a part of the queue, not all of it
            handles = self.followers.submit(served, made[begin : begin + some])
            await unless_gone(http, self.followers.results(handles, tally))
            found += [handle.output.float().cpu() for handle in handles if handle.output is not None]
        read = sum(len(ids) for ids, _ in rows)
        return torch.stack(found), {"prompt_tokens": read, "total_tokens": read}


ATONCE = 32


def _framed(served: ServedModel, texts: Sequence[Text]) -> list[tuple[list[int], list[int]]]:
    """Ids with what stands around a text or a pair, and segments; UserError for ids that the model does not know."""
    tokenizer, rows = served.tokenizer, list[tuple[list[int], list[int]]]()
    for one in texts:
        if isinstance(one, list):
            refuse(any(not 0 <= id < tokenizer.size for id in one), f"Tokens are 0 to {tokenizer.size - 1}.", "input")
            rows.append(tokenizer.framed([one]))
        else:
            rows += tokenizer.encode_pairs([one])
    return rows


def _base64(vector: Tensor) -> str:
    return base64.b64encode(vector.contiguous().numpy().astype("<f4").tobytes()).decode()
