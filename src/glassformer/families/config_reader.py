"""A published config.json, read without believing it. No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from ..core.errors import UserError, nearest

T = TypeVar("T")
Settings: TypeAlias = dict[str, Any]  # of a config.json, by their words
MISSING: Any = object()


class Held(Protocol):
    """The tensors that lie beside a config.json."""

    @property
    def entries(self) -> Mapping[str, Any]: ...

    def equal(self, name: str, copy: str) -> bool: ...


@dataclass(eq=False)
class ConfigReader:
    """A config.json as published: each value is checked as it is read, and an absurd one is one
    sentence.

    ``weights`` are those beside it where they are known, since some files say more than their
    config.
    """

    table: Mapping[str, Any]
    source: str = "config.json"
    weights: Held | None = None

    def holds(self, name: str) -> bool:
        return self.weights is not None and name in self.weights.entries

    def value(self, key: str, default: Any = MISSING) -> Any:
        """The value under ``key``; null and absent are the default, and an error where there is
        none."""
        value = self.table.get(key)
        if value is None and default is MISSING:
            raise UserError(f'{self.source} lacks "{key}"; add it, or download the file again.')
        return default if value is None else value

    def integer(self, key: str, default: Any = MISSING, most: int = 1 << 20) -> Any:
        """An integer from 1 to ``most``."""
        value = self.value(key, default)
        fits = value is default or (type(value) is int and 0 < value <= most)
        self.must(fits, key, f"an integer from 1 to {most}")
        return value

    def number(
        self, key: str, default: Any = MISSING, least: float = 0.0, most: float = 1e12
    ) -> Any:
        """A finite number from ``least`` to ``most``."""
        value = self.value(key, default)
        fits = value is default or (type(value) in (int, float) and least <= value <= most)
        self.must(fits, key, f"a number from {least:g} to {most:g}")
        return value if value is None else float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false; null is false, as in Python, where ``default`` is for an absent key."""
        value = self.value(key, default) if self.table.get(key, default) is not None else False
        self.must(isinstance(value, bool), key, "true or false")
        return bool(value)

    def choice(self, key: str, options: Mapping[str, T], default: str) -> T:
        """The option that the text under ``key`` names."""
        text = self.value(key, default)
        hint = nearest(text, options) if isinstance(text, str) else ""
        self.must(
            isinstance(text, str) and text in options, key, f"one of {', '.join(options)}", hint
        )
        return options[text]

    def token_id(self, key: str, default: Any = MISSING) -> int:
        """The id of a token."""
        value = self.value(key, default)
        self.must(type(value) is int and value >= 0, key, "the id of a token")
        return int(value)

    def architecture(self, default: str) -> str:
        """The first of the architectures, which says what ends a model has."""
        return str((self.value("architectures", None) or [default])[0])

    def inside(self, key: str) -> ConfigReader | None:
        """The table under ``key``, or None."""
        table = self.value(key, None)
        self.must(table is None or isinstance(table, Mapping), key, "a table")
        return ConfigReader(table, f"{self.source}: {key}") if table else None

    def only(self, key: str, allowed: Any, reason: str) -> None:
        """Refuse by name what no module here does."""
        value = self.value(key, allowed)
        if value != allowed or isinstance(value, bool) != isinstance(allowed, bool):
            raise UserError(
                f'{self.source}: "{key}" is {short(value)}, but {reason}; use a model without it.'
            )

    def must(self, fact: bool, key: str, expected: str, hint: str = "") -> None:
        if not fact:
            value = short(self.table.get(key))
            raise UserError(f'{self.source}: "{key}" is {value}; it must be {expected}.{hint}')


def short(value: Any) -> str:
    """The beginning of a value as JSON."""
    return json.dumps(value, default=str)[:60]
