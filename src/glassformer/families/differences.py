"""Where two configs, or any two values of JSON, differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def differences(first: Any, second: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The dotted path of each value that differs, and the value on either side (None where it is
    absent).

    Tables are compared key by key where they are of one ``type``, lists item by item where they are
    equally long.
    """
    if (
        isinstance(first, dict)
        and isinstance(second, dict)
        and first.get("type") == second.get("type")
    ):
        for key in {**first, **second}:
            yield from differences(
                first.get(key), second.get(key), f"{path}.{key}" if path else str(key)
            )
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for i, pair in enumerate(zip(first, second, strict=True)):
            yield from differences(*pair, f"{path}.{i}" if path else str(i))
    elif first != second:
        yield path, first, second
