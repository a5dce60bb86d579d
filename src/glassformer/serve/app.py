"""Routes of the OpenAI-compatible API in one table, and openapi.json made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Self

from pydantic import BaseModel, Field, TypeAdapter, model_validator
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from typing_extensions import TypedDict

from ..core.errors import UserError
from ..core.files import JsonObject
from . import encoding, searching
from .asgi.body_errors import field_error
from .asgi.limits import LONGEST_NAME, MOST_ANSWERS, MOST_TOKENS
from .asgi.replies import HttpError, RequestMiddleware, encode_json, handle_error, json_response
from .asgi.security import Guard, check_key
from .chat import ChatAnswer, ChatRequest, Messages, chat, encode_messages
from .completions import CompletionAnswer, complete
from .inspecting import Inspection, InspectRequest, inspect
from .lanes import ByteBudget, Lanes
from .prometheus import Metrics
from .responses import ResponseAnswer, ResponseRequest, respond
from .schemas import CompletionRequest, Ids, ModelRequest
from .served_models import Context, Registry, ServedModel, check_characters, check_ids, endpoint

ERRORS = (400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 500, 503)
HINT = "use its IP address, 127.0.0.1 or localhost, or start it with --allow-host NAME"


class ErrorObject(TypedDict):
    """Error object of OpenAI's API: a message and the request field that caused it."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(TypedDict):
    """Body of every error response; the log has details under ``request_id``."""

    error: ErrorObject
    request_id: NotRequired[str]


class ModelCard(TypedDict):
    """One model; ``abilities`` are the paths that it answers, ``parent`` is the base of an
    adapter."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    abilities: list[str]


class ModelList(TypedDict):
    """Every model."""

    object: Literal["list"]
    data: list[ModelCard]


class TokenizeAnswer(TypedDict):
    """A text as ids; their names in the vocabulary where they were asked for."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None


class DetokenizeAnswer(TypedDict):
    """Ids as text."""

    prompt: str


class TokenizerInfo(TypedDict):
    """Tokenizer of a model, with the token and the id of each role: bos_token, bos_token_id and
    so on."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    chat_template: str | None


class StreamEvent(TypedDict):
    """An event of a stream; its ``data`` is a chunk as JSON, or [DONE] at the end."""

    data: str


class TokenizeRequest(ModelRequest):
    """POST /tokenize: a prompt, or the messages of a conversation."""

    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise field_error("give either prompt or messages.")
        return self


class DetokenizeRequest(ModelRequest):
    """POST /detokenize"""

    tokens: Annotated[Ids, Field(max_length=MOST_TOKENS)]


class Post(NamedTuple):
    """A path that is computed from a JSON body; aliases are not described."""

    handler: Callable[[Context, Any], Awaitable[Any]]
    body: type[BaseModel]
    answer: Any
    paths: tuple[str, ...]


async def tokenize(context: Context, body: TokenizeRequest) -> TokenizeAnswer:
    """Token ids of a text, or of a conversation."""
    served = context.served
    if body.messages is not None:
        ids = await encode_messages(context, body.messages)
    else:
        text = body.prompt or ""
        check_characters([text], "prompt")
        bos = body.add_special_tokens and served.starts_with_bos
        ids = await context.run(len(text), partial(served.tokenizer.encode, text, bos=bos))
    pieces = None
    if body.return_token_strs:
        pieces = await context.run(len(ids), lambda: [*map(served.tokenizer.token, ids)])
    return {
        "tokens": ids,
        "count": len(ids),
        "max_model_len": served.context,
        "token_strs": pieces,
    }


async def detokenize(context: Context, body: DetokenizeRequest) -> DetokenizeAnswer:
    """Text of token ids, with special tokens by name."""
    tokenizer = context.served.tokenizer

    def decode() -> DetokenizeAnswer:
        check_ids(body.tokens, tokenizer.size, "tokens")
        return {"prompt": tokenizer.decode(body.tokens, special=True)}

    return await context.run(len(body.tokens), decode)


POSTS = (
    Post(complete, CompletionRequest, CompletionAnswer, ("/v1/completions",)),
    Post(chat, ChatRequest, ChatAnswer, ("/v1/chat/completions",)),
    Post(respond, ResponseRequest, ResponseAnswer, ("/v1/responses",)),
    Post(encoding.embed, encoding.EmbeddingRequest, encoding.EmbeddingAnswer, ("/v1/embeddings",)),
    Post(encoding.score, encoding.ScoreRequest, encoding.ScoreAnswer, ("/score", "/v1/score")),
    Post(
        encoding.rerank,
        encoding.RerankRequest,
        encoding.RerankAnswer,
        ("/rerank", "/v1/rerank", "/v2/rerank"),
    ),
    Post(
        encoding.classify,
        encoding.ClassifyRequest,
        encoding.ClassifyAnswer,
        ("/classify", "/v1/classify"),
    ),
    Post(encoding.tag, encoding.TagRequest, encoding.TagAnswer, ("/v1/tag",)),
    Post(searching.fill, searching.FillRequest, searching.FillAnswer, ("/v1/fill",)),
    Post(
        searching.translate,
        searching.TranslateRequest,
        searching.TranslateAnswer,
        ("/v1/translate",),
    ),
    Post(inspect, InspectRequest, Inspection, ("/v1/inspect",)),
    Post(tokenize, TokenizeRequest, TokenizeAnswer, ("/tokenize",)),
    Post(detokenize, DetokenizeRequest, DetokenizeAnswer, ("/detokenize",)),
)
STREAMED = (complete, chat, respond)


class Api:
    """The server's routes, with the registry and metrics that they share."""

    middleware: RequestMiddleware

    def __init__(self, registry: Registry, version: str) -> None:
        self.registry = registry
        self.metrics = Metrics({id: served.engine for id, served in registry.entries.items()})
        self.lanes = Lanes()
        self.bodies = ByteBudget()
        self.answers = ByteBudget(MOST_ANSWERS)
        self.release = version
        self.ending = False  # the server answers what is under way, and ``health`` says 503
        self.description = encode_json(openapi(version, self.gets()))

    async def models(self, request: Request) -> ModelList:
        """Served models."""
        return {"object": "list", "data": [*map(model_card, self.registry.entries.values())]}

    async def model(self, request: Request) -> ModelCard:
        """Card of one served model."""
        return model_card(self.registry[request.path_params["name"]])

    async def tokenizer_info(self, request: Request) -> JsonObject:
        """Special tokens, vocabulary size and chat template of a tokenizer."""
        served = self.registry[request.query_params.get("model")]
        tokenizer = served.tokenizer
        roles = JsonObject()
        for role, name in tokenizer.roles.items():
            roles |= {f"{role}_token": name, f"{role}_token_id": getattr(tokenizer, role)}
        return {
            **roles,
            "tokenizer_class": type(tokenizer).__name__,
            "vocab_size": tokenizer.size,
            "model_max_length": served.context,
            "chat_template": served.template.source if served.template is not None else None,
        }

    async def health(self, request: Request) -> dict[str, str]:
        """200 while every engine is alive; 503 when one has died or the server is shutting down."""
        dead = [id for id, served in self.registry.entries.items() if not served.engine.alive]
        if dead or self.ending:
            message = "The server ends." if self.ending else f"The engine of {dead[0]} has ended."
            raise HttpError(503, message)
        return {"status": "ok"}

    async def version(self, request: Request) -> dict[str, str]:
        """Version of glassformer."""
        return {"version": self.release}

    async def load(self, request: Request) -> dict[str, int]:
        """Number of requests in flight, without this one."""
        return {"server_load": self.middleware.load - 1}

    async def prometheus(self, request: Request) -> Response:
        """Counters and gauges in Prometheus's text format."""
        text = await self.lanes.run(request, 0, self.metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, request: Request) -> Response:
        """Description of every path, field and bound."""
        return json_response(self.description)

    def gets(self) -> dict[str, tuple[Callable[[Request], Awaitable[Any]], Any]]:
        """Paths that are read, with the type of their answers."""
        return {
            "/v1/models": (self.models, ModelList),
            "/v1/models/{name}": (self.model, ModelCard),
            "/tokenizer_info": (self.tokenizer_info, TokenizerInfo),
            "/health": (self.health, dict[str, str]),
            "/version": (self.version, dict[str, str]),
            "/load": (self.load, dict[str, int]),
            "/metrics": (self.prometheus, str),
        }

    def routes(self) -> list[Route]:
        """Route table of the API."""
        gets = {path: handler for path, (handler, _) in self.gets().items()}
        gets = {path.replace("{name}", "{name:path}"): handler for path, handler in gets.items()}
        gets["/openapi.json"] = self.openapi
        return [
            *(Route(path, read_with(handler), methods=["GET"]) for path, handler in gets.items()),
            *(
                Route(path, self._computed(post), methods=["POST"])
                for post in POSTS
                for path in post.paths
            ),
        ]

    def _computed(self, post: Post) -> Callable[[Request], Awaitable[Response]]:
        services = (self.registry, self.metrics, self.lanes, self.bodies, self.answers)
        return endpoint(post.handler, post.body, *services)


def read_with(
    handler: Callable[[Request], Awaitable[Any]],
) -> Callable[[Request], Awaitable[Response]]:
    """Starlette endpoint of what is read; what is no Response is answered as JSON."""

    async def answer(request: Request) -> Response:
        value = await handler(request)
        return value if isinstance(value, Response) else json_response(value)

    return answer


def model_card(served: ServedModel) -> ModelCard:
    """Model card as in OpenAI's /v1/models, with the endpoints that the model supports."""
    parent = None if served.base is None else served.base.id
    return {
        "id": served.id,
        "object": "model",
        "created": served.created,
        "owned_by": "glassformer",
        "root": parent or served.id,
        "parent": parent,
        "max_model_len": served.context,
        "abilities": served.abilities,
    }


def openapi(version: str, gets: dict[str, tuple[Any, Any]]) -> JsonObject:
    """OpenAPI description of the routes: bodies and answers by pydantic's JSON schemas."""
    schemas: JsonObject = {}

    def content(kind: Any, media_type: str = "application/json") -> JsonObject:
        template = "#/components/schemas/{model}"
        schema = TypeAdapter(kind).json_schema(ref_template=template)
        schemas.update(schema.pop("$defs", {}))
        return {media_type: {"schema": schema}}

    errors = {
        str(status): {"description": "An error", "content": content(ErrorAnswer)}
        for status in ERRORS
    }

    def operation(handler: Any, answer: JsonObject, **fields: Any) -> JsonObject:
        success = {"description": "The answer", "content": answer}
        responses = {"200": success, **errors}
        return {"summary": handler.__doc__, "responses": responses, **fields}

    paths = JsonObject()
    for path, (handler, kind) in gets.items():
        text = {"schema": {"type": "string", "maxLength": LONGEST_NAME}}
        parameters = list[JsonObject]()
        if "{name}" in path:
            parameters = [{"name": "name", "in": "path", "required": True, **text}]
        elif path == "/tokenizer_info":
            parameters = [{"name": "model", "in": "query", **text}]
        answer = content(kind, "text/plain" if kind is str else "application/json")
        paths[path] = {"get": operation(handler, answer, parameters=parameters)}
    for post in POSTS:
        answer = content(post.answer)
        if post.handler in STREAMED:
            answer |= content(StreamEvent, "text/event-stream")
        body = {"required": True, "content": content(post.body)}
        described = {"post": operation(post.handler, answer, requestBody=body)}
        paths |= dict.fromkeys(post.paths, described)
    return {
        "openapi": "3.1.0",
        "info": {"title": "glassformer", "version": version},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def application(
    registry: Registry,
    version: str,
    *,
    hosts: frozenset[str] | None,
    addresses: bool = False,
    keys: Sequence[str] | None = None,
    log: bool = True,
) -> tuple[RequestMiddleware, Api]:
    """ASGI application of the API: its routes behind the guards.

    ``hosts`` are the names by which it may be called, None any, beside any IP address with
    ``addresses``; ``keys`` the API keys, None where none is needed.
    """
    api = Api(registry, version)

    kinds = (UserError, HTTPException, Exception)
    handlers: Any = dict.fromkeys(kinds, handle_error)
    app: Any = Starlette(routes=api.routes(), exception_handlers=handlers)
    if hosts is not None:
        app = Guard(app, hosts, addresses=addresses, hint=HINT)
    identify = None if keys is None else partial(client_of, keys=keys)
    api.middleware = RequestMiddleware(app, identify, log)
    return api.middleware, api


def client_of(headers: Headers, keys: Sequence[str]) -> str:
    """The client of an API key, by its number. Raises HttpError 401."""
    return f"key {check_key(headers, keys, 'Bearer')}"
