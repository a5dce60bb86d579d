"""An engine: many requests at once on one model, each answered with the very tokens that it would
get alone."""

from .engine import Engine
from .recording import RecordedValues
from .request import (
    Completion,
    Encode,
    EngineClosed,
    Event,
    Guide,
    QueueFull,
    Request,
    RequestTooLarge,
    Result,
    Stats,
    TokenLogprob,
    Usage,
)
from .sequence import RequestHandle

__all__ = [
    "Completion",
    "Encode",
    "Engine",
    "EngineClosed",
    "Event",
    "Guide",
    "QueueFull",
    "RecordedValues",
    "Request",
    "RequestHandle",
    "RequestTooLarge",
    "Result",
    "Stats",
    "TokenLogprob",
    "Usage",
]
