"""Where two configs, or any two values of JSON, differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The dotted path of each value that differs, and the value on either side (None where it is
    absent).

    Tables are compared key by key where they are of one ``type``, lists item by item where they are
    equally long.
    """
    if (
        isinstance(ours, dict)
        and isinstance(theirs, dict)
        and ours.get("type") == theirs.get("type")
    ):
        for key in {**ours, **theirs}:
            yield from differences(
                ours.get(key), theirs.get(key), f"{path}.{key}" if path else str(key)
            )
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(*pair, f"{path}.{i}" if path else str(i))
    elif ours != theirs:
        yield path, ours, theirs
