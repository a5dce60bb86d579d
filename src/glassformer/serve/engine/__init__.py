"""An engine: many requests at once on one model, each answered with the very tokens that it would
get alone."""

from .engine import Engine, Stats
from .recording import RecordedValues
from .results import Completion, Event, Result, TokenLogprob, Usage
from .sequence import (
    Encode,
    EngineClosed,
    Guide,
    QueueFull,
    Request,
    RequestHandle,
    RequestTooLarge,
)

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
