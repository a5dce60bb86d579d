"""An engine: many requests at once on one model, each answered with the very tokens that it would
get alone."""

from .engine import Engine
from .job import Stats
from .request import (
    Completion,
    Encode,
    EngineClosed,
    Event,
    Guide,
    Handle,
    QueueFull,
    Request,
    RequestTooLarge,
    Result,
    Seen,
    TokenLogprob,
    Usage,
)

__all__ = [
    "Completion",
    "Encode",
    "Engine",
    "EngineClosed",
    "Event",
    "Guide",
    "Handle",
    "QueueFull",
    "Request",
    "RequestTooLarge",
    "Result",
    "Seen",
    "Stats",
    "TokenLogprob",
    "Usage",
]
