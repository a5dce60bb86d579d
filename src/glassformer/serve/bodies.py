"""Bodies read and answers written in threads: one client's megabytes of JSON stop nobody else's
stream."""

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
    """A request whose JSON is parsed and validated in a thread; FastAPI would do both on the event
    loop."""

    model: type[BaseModel]

    async def json(self) -> Any:
        """The body as ``model``. Raises ApiError where a field is wrong, ValueError for what is no
        JSON."""
        body = await self.body()
        return await to_thread.run_sync(self._parsed, body)

    def _parsed(self, body: bytes) -> BaseModel:
        try:
            return self.model.model_validate(json.loads(body))
        except ValidationError as error:
            problems = [
                {**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)
            ]
            raise validation_error(problems) from None


class ThreadedRoute(APIRoute):
    """A path whose body, the endpoint's parameter ``asked``, is a ThreadedRequest's."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own, which finds the body parsed."""
        handle = super().get_route_handler()
        model = get_type_hints(self.endpoint).get("asked")
        if model is None:
            return handle

        async def threaded(request: Request) -> Response:
            read = ThreadedRequest(request.scope, request.receive)
            read.model = model
            return await handle(read)

        return threaded


async def in_json(answer: Any) -> Response:
    """A stream as it is; anything else as JSON."""
    if isinstance(answer, EventStream):
        return answer
    return Response(await to_thread.run_sync(_encoded, answer), media_type="application/json")


# levels that are written piece by piece: the encoder in C keeps the interpreter while it writes one
DEEP = 5


def _encoded(answer: Any) -> bytes:
    return "".join(_pieces(answer, DEEP)).encode()


def _pieces(value: Any, depth: int) -> Iterator[str]:
    if depth and isinstance(value, dict):
        opening = "{"
        for name, one in value.items():
            yield f"{opening}{as_json(name)}:"
            yield from _pieces(one, depth - 1)
            opening = ","
        yield "}" if value else "{}"
    elif depth and isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        opening = "["
        for one in value:
            yield opening
            yield from _pieces(one, depth - 1)
            opening = ","
        yield "]"
    else:
        yield as_json(value)
