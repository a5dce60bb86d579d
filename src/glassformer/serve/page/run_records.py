"""Records that a training writes beside its log: samples and expert routing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from ...core.files import JsonObject
from ..schemas import Number
from .tail import record_of

SAMPLES = "samples.jsonl"
ROUTING = "routing.jsonl"
MAX_BYTES = 4 << 20  # bytes that are read from the end of a file
MAX_RECORDS = 200  # samples, or validations of a mixture, that are told


class ExpertRecord(BaseModel):
    """An expert's share of a validation's choices, and its tokens."""

    share: Number
    tokens: list[tuple[str, int, Number]]


class RoutingRecord(BaseModel):
    """A mixture at a validation: of a damaged line nothing is answered."""

    mixture: str
    experts: list[ExpertRecord]


def json_lines(path: Path) -> Iterator[JsonObject]:
    """Yields the complete JSON lines at the end of a file; nothing if it is missing."""
    with contextlib.suppress(OSError), path.open("rb") as opened:
        opened.seek(max(0, path.stat().st_size - MAX_BYTES))
        yield from filter(None, map(record_of, opened.read().split(b"\n")))


def size(path: Path) -> int:
    """Size of a file in bytes, 0 if it is missing."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def samples(folder: Path) -> list[JsonObject]:
    """Latest samples of the training: {step, text}."""
    records = [
        {"step": record["step"], "text": record["text"][:4000]}
        for record in json_lines(folder / SAMPLES)
        if isinstance(record.get("text"), str)
    ]
    return records[-MAX_RECORDS:]


def routing(folder: Path) -> list[JsonObject]:
    """For each mixture the steps of its validations, each expert's share at each, and its tokens at
    the last.

    A share is of all choices, so that the shares of a step sum to 1; a token comes with how often
    it chose the expert and in which share of its places that is.
    """
    mixtures: dict[str, JsonObject] = {}
    for record in json_lines(folder / ROUTING):
        with contextlib.suppress(ValueError):
            read = RoutingRecord.model_validate(record)
            shares = [expert.share for expert in read.experts]
            tokens = [expert.tokens for expert in read.experts]
            path = read.mixture
            mixture = mixtures.setdefault(
                path, {"address": path, "steps": [], "share": [], "tokens": []}
            )
            mixture["steps"] = [*mixture["steps"], record["step"]][-MAX_RECORDS:]
            mixture["share"] = [*mixture["share"], shares][-MAX_RECORDS:]
            mixture["tokens"] = tokens
    return list(mixtures.values())
