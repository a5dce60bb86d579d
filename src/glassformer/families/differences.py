"""Differences of two configs, or of any two values of JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def differences(first: Any, second: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The dotted path of each value that differs, and the value on either side (None where it is
    absent).

    Tables are compared key by key where they are of one ``type``, lists item by item where they are
    equally long.
    """
    entries: Iterable[tuple[Any, Any, Any]] = ()
    if (
        isinstance(first, dict)
        and isinstance(second, dict)
        and first.get("type") == second.get("type")
    ):
        entries = ((key, first.get(key), second.get(key)) for key in {**first, **second})
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        entries = zip(range(len(first)), first, second, strict=True)
    elif first != second:
        yield path, first, second
    for key, before, after in entries:
        yield from differences(before, after, f"{path}.{key}" if path else str(key))
