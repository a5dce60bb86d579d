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
    """What is wrong, with which field, in words."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(TypedDict):
    """The body of every answer that is an error; the log has more under ``request_id``."""

    error: ErrorObject
    request_id: NotRequired[str]


class ApiError(HTTPException):  # FastAPI lets these through where it reads a body
    """An answer that is an error; ``param`` is the field of the request that is wrong."""

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
        """As JSON holds it."""
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
        """As it is sent."""
        return JSONResponse(self.body(request_id), self.status, self.headers)


def refuse(fact: bool, message: str, param: str | None = None, code: str | None = None) -> None:
    """Raise a 400 where the fact holds."""
    if fact:
        raise ApiError(400, message, param, code)


def api_error(error: BaseException, request_id: str) -> ApiError:
    """Any error as an answer; a mistake of ours leaves its traceback in the log, and no trace of it
    outside."""
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
    """A line of JSON on standard error, which no text of a client can end or forge."""
    note(json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **fields}))


def validation_error(problems: list[Any]) -> ApiError:
    """What pydantic found wrong, as a sentence about the first field."""
    first = problems[0]
    place = [str(part) for part in first["loc"][1:]]  # the first says where: body, query, path
    if first["type"] == "json_invalid":
        return ApiError(400, "The body is not valid JSON; send an object.", code="invalid_json")
    if first["type"] == "wrong" and not place:
        return ApiError(400, first["msg"], param=first["msg"].split()[0])
    if not place:
        return ApiError(
            400, "The body is not a JSON object; send one as application/json.", code="invalid_json"
        )
    several = [first]
    # one of several forms that a field may have: it is held to its own
    if _path(place[:-1]) == _path(place):
        several = [
            one for one in problems if [*map(str, one["loc"][1:])][: len(place) - 1] == place[:-1]
        ]
        inner = [one for one in several if not one["type"].endswith("_type")]
        several = inner[:1] if inner and inner[0]["type"] != "literal_error" else several
    name = _path([str(part) for part in several[0]["loc"][1:]])
    return ApiError(400, _said(name, several), param=name)


def _path(place: list[str]) -> str:
    """messages.0.content as messages[0].content; a type in a union says nothing to who wrote the
    JSON."""
    shown = ""
    for part in place:
        if part.isdigit():
            shown += f"[{part}]"
        elif (
            part.isidentifier()
            and not part[0].isupper()
            and part not in ("str", "int", "list", "dict", "float", "bool")
        ):
            shown += f".{part}" if shown else part
    return shown[:200] or "The body"


KINDS_OF = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "a text",
    "list": "a list",
}
BOUNDS = {"ge": "{} or more", "gt": "more than {}", "le": "{} or less", "lt": "less than {}"}


def _said(name: str, several: list[dict[str, Any]]) -> str:
    """A field, what was wrong with it, and what is allowed; in our words for every kind of error
    that fields have."""
    problem = several[0]
    kind, told = problem["type"], problem.get("ctx", {})
    bound = next(
        (one.format(_number(told[word])) for word, one in BOUNDS.items() if word in told), None
    )
    entries = "characters" if kind.startswith("string") else "entries"
    if kind == "missing":
        return f"{name} is missing; give it."
    if kind == "wrong":
        return f"{name}: {problem['msg']}"
    if bound is not None:
        return f"{name} is {_shown(problem['input'])}; give {bound}."
    if "max_length" in told:
        return f"{name} has more than {told['max_length']:,} {entries}; give fewer."
    if "min_length" in told:
        return f"{name} is empty; give at least one of its {entries}."
    if kind == "finite_number":
        return f"{name} is not finite; give a number."
    allowed = dict.fromkeys(
        one.get("ctx", {}).get("expected") or _kind(one["type"]) for one in several
    )
    return f"{name} is {_shown(problem['input'])}; give {' or '.join(allowed)}."


def _kind(error: str) -> str:
    return KINDS_OF.get(error.partition("_")[0], "an object")


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value:,}"


def _shown(value: Any) -> str:
    """What was sent, in a few characters."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    said = (
        json.dumps(value)
        if value is None or isinstance(value, str | int | float)
        else type(value).__name__
    )
    return said if len(said) <= 60 else f"{said[:56]} ..."
