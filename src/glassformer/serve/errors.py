"""What is answered when something is wrong: OpenAI's error object, with the status that its clients
act upon.

400 401 403 404 405 408 413 415 431   the request is wrong: do not send it again
429 503                               the server is busy, or ends: send it again later (Retry-After)
500                                   the server made a mistake
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Mapping
from typing import Any, NotRequired

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from ..engine import EngineClosed, QueueFull
from ..errors import UserError, note

RETRY_SECONDS = "1"
KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


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


class ApiError(HTTPException):  # FastAPI lets these through where it reads a body
    """HTTP error response; ``param`` is the invalid field of the request."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self, request_id: str) -> ErrorAnswer:
        kind = KINDS.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        error: ErrorObject = {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.code,
        }
        return {"error": error, "request_id": request_id}

    def response(self, request_id: str) -> Response:
        return JSONResponse(self.body(request_id), self.status, self.headers)


def refuse(
    condition: bool, message: str, param: str | None = None, code: str | None = None
) -> None:
    """Raises ApiError 400 if ``condition`` holds."""
    if condition:
        raise ApiError(400, message, param, code)


def api_error(error: BaseException, request_id: str) -> ApiError:
    """Converts any exception to an ApiError; internal errors are logged with a traceback that the
    client does not see."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFull):
        return ApiError(429, str(error), code="queue_full", headers={"retry-after": RETRY_SECONDS})
    if isinstance(error, EngineClosed):
        return ApiError(
            503, str(error), code="engine_closed", headers={"retry-after": RETRY_SECONDS}
        )
    if isinstance(error, UserError):
        return ApiError(400, str(error))
    if (
        isinstance(error, MemoryError)
        or "out of memory" in str(error)
        or "allocate memory" in str(error)
    ):
        return ApiError(
            500, "There was not enough memory for this request; shorten it.", code="out_of_memory"
        )
    lines = "".join(traceback.format_exception(error))
    log_line({"id": request_id, "error": type(error).__name__, "traceback": lines})
    return ApiError(
        500,
        f"The server made a mistake ({type(error).__name__}); its log says where, at {request_id}.",
    )


def log_line(fields: Mapping[str, Any]) -> None:
    """Writes one JSON line to standard error; JSON escaping keeps client text from forging
    lines."""
    note(json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **fields}))


def validation_error(problems: list[Any]) -> ApiError:
    """Turns pydantic's validation errors into one ApiError about the first invalid field."""
    first = problems[0]
    place = [str(key) for key in first["loc"][1:]]  # the first says where: body, query, path
    if first["type"] == "json_invalid":
        return ApiError(400, "The body is not valid JSON; send an object.", code="invalid_json")
    if first["type"] == "wrong" and not place:
        return ApiError(400, first["msg"], param=first["msg"].split()[0])
    if not place:
        return ApiError(
            400, "The body is not a JSON object; send one as application/json.", code="invalid_json"
        )
    alternatives = [first]
    # one of several forms that a field may have: it is held to its own
    if _field_path(place[:-1]) == _field_path(place):
        alternatives = [
            problem
            for problem in problems
            if [*map(str, problem["loc"][1:])][: len(place) - 1] == place[:-1]
        ]
        deeper = [problem for problem in alternatives if not problem["type"].endswith("_type")]
        alternatives = (
            deeper[:1] if deeper and deeper[0]["type"] != "literal_error" else alternatives
        )
    name = _field_path([str(key) for key in alternatives[0]["loc"][1:]])
    return ApiError(400, _describe(name, alternatives), param=name)


def _field_path(keys: list[str]) -> str:
    """Formats a pydantic location: messages.0.content as messages[0].content, without the names of
    union members."""
    path = ""
    for key in keys:
        if key.isdigit():
            path += f"[{key}]"
        elif (
            key.isidentifier()
            and not key[0].isupper()
            and key not in ("str", "int", "list", "dict", "float", "bool")
        ):
            path += f".{key}" if path else key
    return path[:200] or "The body"


TYPE_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
}
BOUNDS = {"ge": "{} or more", "gt": "more than {}", "le": "{} or less", "lt": "less than {}"}


def _describe(name: str, problems: list[dict[str, Any]]) -> str:
    """Message for one invalid field: its name, the value sent and the values allowed."""
    problem = problems[0]
    kind, context = problem["type"], problem.get("ctx", {})
    bound = next(
        (
            template.format(_number(context[word]))
            for word, template in BOUNDS.items()
            if word in context
        ),
        None,
    )
    entries = "characters" if kind.startswith("string") else "entries"
    if kind == "missing":
        return f"{name} is missing; give it."
    if kind == "wrong":
        return f"{name}: {problem['msg']}"
    if bound is not None:
        return f"{name} is {_preview(problem['input'])}; give {bound}."
    if "max_length" in context:
        return f"{name} has more than {context['max_length']:,} {entries}; give fewer."
    if "min_length" in context:
        return f"{name} is empty; give at least one of its {entries}."
    if kind == "finite_number":
        return f"{name} is not finite; give a number."
    allowed = dict.fromkeys(
        alternative.get("ctx", {}).get("expected") or _expected_type(alternative["type"])
        for alternative in problems
    )
    return f"{name} is {_preview(problem['input'])}; give {' or '.join(allowed)}."


def _expected_type(error: str) -> str:
    return TYPE_NAMES.get(error.partition("_")[0], "an object")


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"


def _preview(value: Any) -> str:
    """Short preview of an invalid value."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = (
        json.dumps(value)
        if value is None or isinstance(value, str | int | float)
        else type(value).__name__
    )
    return text if len(text) <= 60 else f"{text[:56]} ..."
