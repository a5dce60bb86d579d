"""Request bodies parsed and responses encoded in threads: megabytes of JSON of one client never
block the streams of others."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, get_type_hints

from anyio import to_thread
from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from .errors import validation_error
from .logprobs import as_json
from .streaming import EventStream


class ThreadedRequest(Request):
    """Request whose JSON is parsed and validated in a thread; FastAPI does both on the event
    loop."""

    model: type[BaseModel]

    async def json(self) -> Any:
        """Parses the body as ``model``. Raises ApiError for an invalid field, ValueError for
        invalid JSON."""
        body = await self.body()
        return await to_thread.run_sync(self._parse, body)

    def _parse(self, body: bytes) -> BaseModel:
        try:
            return self.model.model_validate(json.loads(body))
        except ValidationError as error:
            problems = [
                {**problem, "loc": ("body", *problem["loc"])}
                for problem in error.errors(include_url=False)
            ]
            raise validation_error(problems) from None


class ThreadedRoute(APIRoute):
    """Route whose request body, the endpoint's parameter ``body``, is parsed by ThreadedRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wraps FastAPI's handler so that it receives the parsed body."""
        handle = super().get_route_handler()
        model = get_type_hints(self.endpoint).get("body")
        if model is None:
            return handle

        async def threaded(request: Request) -> Response:
            threaded_request = ThreadedRequest(request.scope, request.receive)
            threaded_request.model = model
            return await handle(threaded_request)

        return threaded


async def json_response(answer: Any) -> Response:
    """Returns a stream unchanged, anything else as a JSON response encoded in a thread."""
    if isinstance(answer, EventStream):
        return answer
    return Response(await to_thread.run_sync(_encode, answer), media_type="application/json")


# levels that are written piece by piece: the encoder in C keeps the interpreter while it writes one
MAX_DEPTH = 5


def _encode(answer: Any) -> bytes:
    return "".join(_json_chunks(answer, MAX_DEPTH)).encode()


def _json_chunks(value: Any, depth: int) -> Iterator[str]:
    if depth and isinstance(value, dict):
        opening = "{"
        for name, item in value.items():
            yield f"{opening}{as_json(name)}:"
            yield from _json_chunks(item, depth - 1)
            opening = ","
        yield "}" if value else "{}"
    elif depth and isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        opening = "["
        for item in value:
            yield opening
            yield from _json_chunks(item, depth - 1)
            opening = ","
        yield "]"
    else:
        yield as_json(value)
