"""What types and fields were called once: read in files and overrides, and in Python, with a
warning. No torch here."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..errors import need, old_name

T = TypeVar("T")

_RENAMED: dict[type, dict[str, str]] = {}  # fields' old names -> new
TYPES_RENAMED = {
    "LinearStretch": "LinearScaling",
    "Llama3Stretch": "Llama3Scaling",
    "LongStretch": "LongRopeScaling",
    "YarnStretch": "YarnScaling",
}
"""Types' old names -> new: what older files say is read; ``config`` has the old names too, with a
warning."""
HINTS = {"patience": "; early_stop counts evaluations without a better one"}
"""What is added where an old name of a field may have been meant for another field."""


def renamed(**names: str) -> Callable[[type[T]], type[T]]:
    """Class decorator: fields' old names, ``old="new"``, that files, overrides and Python may say,
    with a warning."""

    def told(kind: type, old: str) -> str:
        old_name(f"{kind.__name__}.{old}", f"{kind.__name__}.{names[old]}", depth=2)
        return names[old]

    def register(kind: type[T]) -> type[T]:
        make: Any = kind.__init__

        @functools.wraps(make)
        def init(self: Any, *given: Any, **fields: Any) -> None:
            # `dataclasses.replace` gives every field by its name of today
            for old in names.keys() & fields.keys():
                new = names[old]
                need(
                    new not in fields,
                    f"{kind.__name__}.{old} is {kind.__name__}.{new} now; give {new} alone.",
                )
            make(
                self,
                *given,
                **{told(kind, name) if name in names else name: x for name, x in fields.items()},
            )

        def read(old: str, self: Any) -> Any:
            return getattr(self, told(kind, old))

        def write(old: str, self: Any, value: Any) -> None:
            setattr(self, told(kind, old), value)

        kind.__init__ = init  # type: ignore[method-assign]
        for old in names:
            setattr(
                kind, old, property(functools.partial(read, old), functools.partial(write, old))
            )
        _RENAMED[kind] = names
        return kind

    return register


def moved(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module whose names have changed, ``{old: new}``; each is there, with
    a warning."""

    def look_up(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        old_name(f"{module}.{name}", f"{module}.{names[name]}")
        return getattr(sys.modules[module], names[name])

    return look_up


def old_names(kind: Any) -> dict[str, str]:
    """Old names of fields -> new, of the type ``kind`` (its bases' too) or of those that are called
    so."""
    known = _RENAMED.items()
    if isinstance(kind, type):
        return functools.reduce(
            operator.or_, (names for one, names in known if issubclass(kind, one)), {}
        )
    return functools.reduce(
        operator.or_, (names for one, names in known if kind == one.__name__), {}
    )


LOG_KEYS = {"rate": "lr", "rates": "lrs", "norm": "grad_norm", "valid": "valid_loss"}
"""Keys of log.jsonl, old -> new."""


def log_line(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A line of log.jsonl with the keys of today: the log of a run that was resumed may have
    both."""
    return {LOG_KEYS.get(key, key): value for key, value in raw.items()}


def run_record(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A run.json as it is written today."""
    return {
        "execution" if key == "plan" else key: value
        for key, value in with_current_names(raw).items()
    }


def with_current_names(raw: Any) -> Any:
    """What an older version wrote, with the names of types and fields of today; nobody can be asked
    to edit it."""
    if isinstance(raw, Mapping):
        kind = raw.get("type")
        kind = TYPES_RENAMED.get(kind, kind) if isinstance(kind, str) else kind
        names = old_names(kind)
        table = {names.get(key, key): with_current_names(value) for key, value in raw.items()}
        return {**table, "type": kind} if "type" in raw else table
    return [with_current_names(item) for item in raw] if isinstance(raw, list) else raw
