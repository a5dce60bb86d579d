"""The paths of the API, as FastAPI's application; openapi.json describes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Annotated, Any

from anyio import to_thread
from fastapi import FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response

from ..errors import UserError
from .answers import DetokenizeAnswer, ModelCard, ModelList, TokenizeAnswer, TokenizerInfo
from .bodies import ThreadedRoute, in_json
from .chat import ChatAnswer, chat, conversation
from .completions import CompletionAnswer, complete
from .encoding import (
    ClassifyAnswer,
    EmbeddingAnswer,
    Encoding,
    RerankAnswer,
    ScoreAnswer,
    TagAnswer,
)
from .errors import ApiError, ErrorAnswer, api_error, refuse, validation_error
from .following import Followers, Gone, client_of
from .inspecting import Inspection, inspect
from .metrics import Metrics
from .middleware import Doorkeeper, Outer
from .prompts import check_lengths
from .registry import Registry, ServedModel
from .schemas import (
    ChatRequest,
    ClassifyRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    FillRequest,
    InspectRequest,
    RerankRequest,
    ScoreRequest,
    TagRequest,
    TokenizeRequest,
    TranslateRequest,
)
from .searching import FillAnswer, TranslateAnswer, fill, translate

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer}
    for status in (400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 500, 503)
}

EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}


class Api:
    """What the paths share."""

    def __init__(self, registry: Registry, version: str) -> None:
        self.registry, self.metrics, self.release = registry, Metrics(registry), version
        self.followers = Followers(registry, self.metrics)
        self.encoding = Encoding(self.followers)
        self.ending = False

    def end(self) -> None:
        """The server ends: what is under way is answered, and health says so."""
        self.ending = True

    # ------------------------------------------------------------------------------ generation

    async def completions(self, http: Request, asked: CompletionRequest) -> Response:
        """Continue one or several texts."""
        served = self.registry[asked.model]
        return await in_json(
            await complete(http, served, asked, self.followers, http.state.tally, client_of(http))
        )

    async def chat(self, http: Request, asked: ChatRequest) -> Response:
        """Answer a conversation."""
        served = self.registry[asked.model]
        return await in_json(
            await chat(http, served, asked, self.followers, http.state.tally, client_of(http))
        )

    # --------------------------------------------------------------------------------- encoding

    async def embeddings(self, http: Request, asked: EmbeddingRequest) -> Response:
        """A vector for each text; with ``dimensions`` its first numbers, scaled to length 1."""
        return await in_json(await self.encoding.embed(http, self.registry[asked.model], asked))

    async def score(self, http: Request, asked: ScoreRequest) -> Response:
        """How alike texts are."""
        return await in_json(await self.encoding.score(http, self.registry[asked.model], asked))

    async def rerank(self, http: Request, asked: RerankRequest) -> Response:
        """Documents, the one first that fits the query best."""
        return await in_json(await self.encoding.rerank(http, self.registry[asked.model], asked))

    async def classify(self, http: Request, asked: ClassifyRequest) -> Response:
        """The label of each text, or pair of texts."""
        return await in_json(await self.encoding.classify(http, self.registry[asked.model], asked))

    async def tag(self, http: Request, asked: TagRequest) -> Response:
        """The label of each word of each sentence."""
        return await in_json(await self.encoding.tag(http, self.registry[asked.model], asked))

    async def fill(self, http: Request, asked: FillRequest) -> Response:
        """The words for the blanks of a text."""
        return await in_json(await fill(http, self.registry[asked.model], asked, self.followers))

    async def translate(self, http: Request, asked: TranslateRequest) -> Response:
        """The best that a beam search finds for each source."""
        return await in_json(
            await translate(http, self.registry[asked.model], asked, self.followers)
        )

    async def inspect(self, http: Request, asked: InspectRequest) -> Response:
        """What the weights compute for a text: any named value, the logit lens, the likeliest
        tokens; after edits."""
        return await in_json(
            await inspect(http, self.registry[asked.model], asked, self.followers, client_of(http))
        )

    # ---------------------------------------------------------------------------------- tokens

    async def tokenize(self, asked: TokenizeRequest) -> Response:
        """The ids of a text, or of a conversation."""
        served = self.registry[asked.model]
        tokenizer = served.tokenizer
        if asked.messages is not None:
            ids = await conversation(
                served, ChatRequest(messages=asked.messages, track=[], edits=[])
            )
        else:
            text = asked.prompt or ""
            check_lengths([text], 1 << 30, served.context, "prompt")
            bos = bool(asked.add_special_tokens) and served.opens
            ids = await to_thread.run_sync(partial(tokenizer.encode, text, bos=bos))
        pieces = [tokenizer.token(id) for id in ids] if asked.return_token_strs else None
        told: TokenizeAnswer = {
            "tokens": ids,
            "count": len(ids),
            "max_model_len": served.context,
            "token_strs": pieces,
        }
        return await in_json(told)

    async def detokenize(self, asked: DetokenizeRequest) -> Response:
        """The text of ids, special tokens by their names."""
        tokenizer, ids = self.registry[asked.model].tokenizer, asked.tokens

        def decode() -> DetokenizeAnswer:
            refuse(
                any(not 0 <= id < tokenizer.size for id in ids),
                f"Tokens are 0 to {tokenizer.size - 1}.",
                "tokens",
            )
            return {"prompt": tokenizer.decode(ids, special=True)}

        return await in_json(await to_thread.run_sync(decode))

    async def tokenizer_info(self, model: str | None = None) -> dict[str, Any]:
        """Who plays which part in the vocabulary."""
        served = self.registry[model]
        roles = {f"{role}_token": name for role, name in served.tokenizer.roles.items()}
        ids = {
            f"{role}_token_id": getattr(served.tokenizer, role) for role in served.tokenizer.roles
        }
        return {
            **roles,
            **ids,
            "tokenizer_class": type(served.tokenizer).__name__,
            "vocab_size": served.tokenizer.size,
            "model_max_length": served.context,
            "chat_template": served.template.source if served.template is not None else None,
        }

    # ---------------------------------------------------------------------------------- models

    async def models(self) -> ModelList:
        """Every model."""
        return {"object": "list", "data": [card(one) for one in self.registry.models.values()]}

    async def model(self, name: Annotated[str, Path(max_length=4096)]) -> ModelCard:
        """One model."""
        return card(self.registry[name])

    # ---------------------------------------------------------------------------------- health

    async def health(self) -> Response:
        """200 while every model answers; 503 when one does not, and when the server ends."""
        dead = [id for id, one in self.registry.models.items() if not one.engine.alive]
        if dead or self.ending:
            raise ApiError(
                503, "The server ends." if self.ending else f"The engine of {dead[0]} has ended."
            )
        return JSONResponse({"status": "ok"})

    async def version(self) -> dict[str, str]:
        """Of glassformer."""
        return {"version": self.release}

    async def load(self) -> dict[str, int]:
        """Answers under way, this one not counted."""
        return {"server_load": self.metrics.load - 1}

    async def prometheus(self) -> Response:
        """Counters and gauges in Prometheus's text format."""
        return Response(
            await to_thread.run_sync(self.metrics.text),
            media_type="text/plain; version=0.0.4; charset=utf-8",
        )


def card(served: ServedModel) -> ModelCard:
    """What is said of a model."""
    return {
        "id": served.id,
        "object": "model",
        "created": served.created,
        "owned_by": "glassformer",
        "root": served.id,
        "parent": None,
        "max_model_len": served.context,
        "abilities": served.abilities(),
    }


def routes(app: FastAPI, api: Api) -> None:
    """Every path."""

    def told(model: Any, stream: bool = False) -> dict[int | str, dict[str, Any]]:
        content = {"text/event-stream": {"schema": EVENT}} if stream else {}
        return {200: {"model": model, "content": content}}

    add = app.add_api_route
    post: Any = {"methods": ["POST"], "response_model": None}
    get: Any = {"methods": ["GET"], "response_model": None}
    add("/v1/completions", api.completions, responses=told(CompletionAnswer, True), **post)
    add("/v1/chat/completions", api.chat, responses=told(ChatAnswer, True), **post)
    add("/v1/embeddings", api.embeddings, responses=told(EmbeddingAnswer), **post)
    for path in ("/score", "/v1/score"):
        add(path, api.score, responses=told(ScoreAnswer), **post)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        add(path, api.rerank, responses=told(RerankAnswer), **post)
    for path in ("/classify", "/v1/classify"):
        add(path, api.classify, responses=told(ClassifyAnswer), **post)
    add("/v1/inspect", api.inspect, responses=told(Inspection), **post)
    add("/v1/tag", api.tag, responses=told(TagAnswer), **post)
    add("/v1/fill", api.fill, responses=told(FillAnswer), **post)
    add("/v1/translate", api.translate, responses=told(TranslateAnswer), **post)
    add("/tokenize", api.tokenize, responses=told(TokenizeAnswer), **post)
    add("/detokenize", api.detokenize, responses=told(DetokenizeAnswer), **post)
    add("/tokenizer_info", api.tokenizer_info, responses=told(TokenizerInfo), **get)
    add("/v1/models", api.models, responses=told(ModelList), **get)
    add("/v1/models/{name:path}", api.model, responses=told(ModelCard), **get)
    add("/health", api.health, **get)
    add("/health", api.health, methods=["HEAD"], include_in_schema=False)
    add("/version", api.version, **get)
    add("/load", api.load, **get)
    plain: Any = {"content": {"text/plain": {"schema": {"type": "string"}}}}
    add("/metrics", api.prometheus, responses={200: plain}, response_class=PlainTextResponse, **get)


async def _mistake(http: Request, error: Exception) -> Response:
    if isinstance(error, Gone):
        return Response(None, 499)
    id = http.state.id
    if isinstance(error, RequestValidationError):
        return validation_error(list(error.errors())).response(id)
    if isinstance(error, HTTPException) and not isinstance(error, ApiError):
        said = {
            404: "There is nothing at this address.",
            405: "This address does not take that method.",
        }
        said[400] = "The body cannot be read as JSON; send an object in UTF-8."
        return ApiError(error.status_code, said.get(error.status_code, str(error.detail))).response(
            id
        )
    return api_error(error, id).response(id)


def application(
    registry: Registry,
    version: str,
    *,
    hosts: frozenset[str] | None,
    addresses: bool = False,
    keys: Sequence[str] | None = None,
    log: bool = True,
) -> tuple[Outer, Api]:
    """The server: paths behind the guards.

    ``hosts`` are the names by which it may be called, None any, beside any IP address with
    ``addresses``; ``keys`` the API keys, None where none is needed.
    """
    api = Api(registry, version)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.ensure_future(api.followers.watch())
        yield
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching

    app = FastAPI(
        title="glassformer",
        version=version,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        responses=ERRORS,
        lifespan=life,
    )
    for kind in (RequestValidationError, HTTPException, UserError, MemoryError, Exception):
        app.add_exception_handler(kind, _mistake)
    app.router.route_class = ThreadedRoute
    routes(app, api)
    app.openapi()  # made now and kept: it takes a second, in which nobody else would be answered
    guarded = app if hosts is None else Doorkeeper(app, hosts, addresses)
    return Outer(guarded, keys, api.metrics, log), api
