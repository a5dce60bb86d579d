"""The FastAPI application: every route of the OpenAI-compatible API, described by openapi.json."""

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
from .bodies import ThreadedRoute, json_response
from .chat import ChatAnswer, chat, encode_messages
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
from .following import ClientDisconnected, RequestTracker, client_of
from .inspecting import Inspection, inspect
from .metrics import Metrics
from .middleware import HostCheck, RequestMiddleware
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
    """Endpoints of the server, with the registry, metrics and request tracker that they share."""

    def __init__(self, registry: Registry, version: str) -> None:
        self.registry, self.metrics, self.release = registry, Metrics(registry), version
        self.followers = RequestTracker(registry, self.metrics)
        self.encoding = Encoding(self.followers)
        self.ending = False

    def end(self) -> None:
        """Marks the server as shutting down: running requests are answered and health reports
        503."""
        self.ending = True

    # ------------------------------------------------------------------------------ generation

    async def completions(self, http: Request, body: CompletionRequest) -> Response:
        """Continue one or several texts."""
        served = self.registry[body.model]
        return await json_response(
            await complete(http, served, body, self.followers, http.state.tally, client_of(http))
        )

    async def chat(self, http: Request, body: ChatRequest) -> Response:
        """Answer a conversation."""
        served = self.registry[body.model]
        return await json_response(
            await chat(http, served, body, self.followers, http.state.tally, client_of(http))
        )

    # --------------------------------------------------------------------------------- encoding

    async def embeddings(self, http: Request, body: EmbeddingRequest) -> Response:
        """A vector for each text; with ``dimensions`` its first numbers, scaled to length 1."""
        return await json_response(await self.encoding.embed(http, self.registry[body.model], body))

    async def score(self, http: Request, body: ScoreRequest) -> Response:
        """Similarity of pairs of texts."""
        return await json_response(await self.encoding.score(http, self.registry[body.model], body))

    async def rerank(self, http: Request, body: RerankRequest) -> Response:
        """Documents ranked by relevance to the query, best first."""
        return await json_response(
            await self.encoding.rerank(http, self.registry[body.model], body)
        )

    async def classify(self, http: Request, body: ClassifyRequest) -> Response:
        """The label of each text, or pair of texts."""
        return await json_response(
            await self.encoding.classify(http, self.registry[body.model], body)
        )

    async def tag(self, http: Request, body: TagRequest) -> Response:
        """The label of each word of each sentence."""
        return await json_response(await self.encoding.tag(http, self.registry[body.model], body))

    async def fill(self, http: Request, body: FillRequest) -> Response:
        """Candidates for the blanks of a text."""
        return await json_response(
            await fill(http, self.registry[body.model], body, self.followers)
        )

    async def translate(self, http: Request, body: TranslateRequest) -> Response:
        """Beam-search translations of each source."""
        return await json_response(
            await translate(http, self.registry[body.model], body, self.followers)
        )

    async def inspect(self, http: Request, body: InspectRequest) -> Response:
        """Named values, the logit lens and top tokens of one forward pass, optionally edited."""
        return await json_response(
            await inspect(http, self.registry[body.model], body, self.followers, client_of(http))
        )

    # ---------------------------------------------------------------------------------- tokens

    async def tokenize(self, body: TokenizeRequest) -> Response:
        """Token ids of a text, or of a conversation."""
        served = self.registry[body.model]
        tokenizer = served.tokenizer
        if body.messages is not None:
            ids = await encode_messages(
                served, ChatRequest(messages=body.messages, track=[], edits=[])
            )
        else:
            text = body.prompt or ""
            check_lengths([text], 1 << 30, served.context, "prompt")
            bos = bool(body.add_special_tokens) and served.starts_with_bos
            ids = await to_thread.run_sync(partial(tokenizer.encode, text, bos=bos))
        pieces = [tokenizer.token(id) for id in ids] if body.return_token_strs else None
        answer: TokenizeAnswer = {
            "tokens": ids,
            "count": len(ids),
            "max_model_len": served.context,
            "token_strs": pieces,
        }
        return await json_response(answer)

    async def detokenize(self, body: DetokenizeRequest) -> Response:
        """Text of token ids, with special tokens by name."""
        tokenizer, ids = self.registry[body.model].tokenizer, body.tokens

        def decode() -> DetokenizeAnswer:
            refuse(
                any(not 0 <= id < tokenizer.size for id in ids),
                f"Tokens are 0 to {tokenizer.size - 1}.",
                "tokens",
            )
            return {"prompt": tokenizer.decode(ids, special=True)}

        return await json_response(await to_thread.run_sync(decode))

    async def tokenizer_info(self, model: str | None = None) -> dict[str, Any]:
        """Special tokens, vocabulary size and chat template of a tokenizer."""
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
        """Served models."""
        return {
            "object": "list",
            "data": [model_card(served) for served in self.registry.models.values()],
        }

    async def model(self, name: Annotated[str, Path(max_length=4096)]) -> ModelCard:
        """Card of one served model."""
        return model_card(self.registry[name])

    # ---------------------------------------------------------------------------------- health

    async def health(self) -> Response:
        """200 while every engine is alive; 503 when one has died or the server is shutting down."""
        dead = [id for id, served in self.registry.models.items() if not served.engine.alive]
        if dead or self.ending:
            raise ApiError(
                503, "The server ends." if self.ending else f"The engine of {dead[0]} has ended."
            )
        return JSONResponse({"status": "ok"})

    async def version(self) -> dict[str, str]:
        """Version of glassformer."""
        return {"version": self.release}

    async def load(self) -> dict[str, int]:
        """Number of requests in flight, without this one."""
        return {"server_load": self.metrics.load - 1}

    async def prometheus(self) -> Response:
        """Counters and gauges in Prometheus's text format."""
        return Response(
            await to_thread.run_sync(self.metrics.text),
            media_type="text/plain; version=0.0.4; charset=utf-8",
        )


def model_card(served: ServedModel) -> ModelCard:
    """Model card as in OpenAI's /v1/models, with the endpoints that the model supports."""
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


def add_routes(app: FastAPI, api: Api) -> None:
    """Adds every route to the application."""

    def responses(model: Any, stream: bool = False) -> dict[int | str, dict[str, Any]]:
        content = {"text/event-stream": {"schema": EVENT}} if stream else {}
        return {200: {"model": model, "content": content}}

    add = app.add_api_route
    post: Any = {"methods": ["POST"], "response_model": None}
    get: Any = {"methods": ["GET"], "response_model": None}
    add("/v1/completions", api.completions, responses=responses(CompletionAnswer, True), **post)
    add("/v1/chat/completions", api.chat, responses=responses(ChatAnswer, True), **post)
    add("/v1/embeddings", api.embeddings, responses=responses(EmbeddingAnswer), **post)
    for path in ("/score", "/v1/score"):
        add(path, api.score, responses=responses(ScoreAnswer), **post)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        add(path, api.rerank, responses=responses(RerankAnswer), **post)
    for path in ("/classify", "/v1/classify"):
        add(path, api.classify, responses=responses(ClassifyAnswer), **post)
    add("/v1/inspect", api.inspect, responses=responses(Inspection), **post)
    add("/v1/tag", api.tag, responses=responses(TagAnswer), **post)
    add("/v1/fill", api.fill, responses=responses(FillAnswer), **post)
    add("/v1/translate", api.translate, responses=responses(TranslateAnswer), **post)
    add("/tokenize", api.tokenize, responses=responses(TokenizeAnswer), **post)
    add("/detokenize", api.detokenize, responses=responses(DetokenizeAnswer), **post)
    add("/tokenizer_info", api.tokenizer_info, responses=responses(TokenizerInfo), **get)
    add("/v1/models", api.models, responses=responses(ModelList), **get)
    add("/v1/models/{name:path}", api.model, responses=responses(ModelCard), **get)
    add("/health", api.health, **get)
    add("/health", api.health, methods=["HEAD"], include_in_schema=False)
    add("/version", api.version, **get)
    add("/load", api.load, **get)
    plain: Any = {"content": {"text/plain": {"schema": {"type": "string"}}}}
    add("/metrics", api.prometheus, responses={200: plain}, response_class=PlainTextResponse, **get)


async def _error_response(http: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnected):
        return Response(None, 499)
    id = http.state.id
    if isinstance(error, RequestValidationError):
        return validation_error(list(error.errors())).response(id)
    if isinstance(error, HTTPException) and not isinstance(error, ApiError):
        messages = {
            404: "There is nothing at this address.",
            405: "This address does not take that method.",
        }
        messages[400] = "The body cannot be read as JSON; send an object in UTF-8."
        return ApiError(
            error.status_code, messages.get(error.status_code, str(error.detail))
        ).response(id)
    return api_error(error, id).response(id)


def application(
    registry: Registry,
    version: str,
    *,
    hosts: frozenset[str] | None,
    addresses: bool = False,
    keys: Sequence[str] | None = None,
    log: bool = True,
) -> tuple[RequestMiddleware, Api]:
    """The server: paths behind the guards.

    ``hosts`` are the names by which it may be called, None any, beside any IP address with
    ``addresses``; ``keys`` the API keys, None where none is needed.
    """
    api = Api(registry, version)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
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
        lifespan=lifespan,
    )
    for kind in (RequestValidationError, HTTPException, UserError, MemoryError, Exception):
        app.add_exception_handler(kind, _error_response)
    app.router.route_class = ThreadedRoute
    add_routes(app, api)
    app.openapi()  # made now and kept: it takes a second, in which nobody else would be answered
    guarded = app if hosts is None else HostCheck(app, hosts, addresses)
    return RequestMiddleware(guarded, keys, api.metrics, log), api
