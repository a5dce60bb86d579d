"""What a training writes beside its log: what the model wrote on its way, and which tokens went to
which expert."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SAMPLES, ROUTING = "samples.jsonl", "routing.jsonl"
MOST = 4 << 20  # bytes that are read from the end of a file
KEPT = 200  # samples, or validations of a mixture, that are told


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of JSON at the end of a file; none where it is not there."""
    with contextlib.suppress(OSError), path.open("rb") as opened:
        opened.seek(max(0, path.stat().st_size - MOST))
        for line in opened.read().split(b"\n"):
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict) and isinstance(found.get("step"), int):
                    yield found


def size(path: Path) -> int:
    """The bytes of a file, 0 where it is not there: it grows when there is something new."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def samples(folder: Path) -> list[dict[str, Any]]:
    """What the model wrote on its way: {step, text}, the last ones."""
    told = [
        {"step": one["step"], "text": one["text"][:4000]}
        for one in lines(folder / SAMPLES)
        if isinstance(one.get("text"), str)
    ]
    return told[-KEPT:]


def routing(folder: Path) -> list[dict[str, Any]]:
    """For each mixture the steps of its validations, each expert's share at each, and its tokens at
    the last.

    A share is of all choices, so that the shares of a step sum to 1; a token comes with how often
    it chose the expert and in which share of its places that is.
    """
    told: dict[str, dict[str, Any]] = {}
    for one in lines(folder / ROUTING):
        with contextlib.suppress(LookupError, TypeError):
            shares = [expert["share"] for expert in one["experts"]]
            tokens = [expert["tokens"] for expert in one["experts"]]
            path = str(one["mixture"])
            mine = told.setdefault(path, {"address": path, "steps": [], "share": [], "tokens": []})
            mine["steps"], mine["share"] = (
                [*mine["steps"], one["step"]][-KEPT:],
                [*mine["share"], shares][-KEPT:],
            )
            mine["tokens"] = tokens
    return list(told.values())
