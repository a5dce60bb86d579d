"""What a page of the recipe book holds, and how a published config.json is read without believing
it. No torch here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias, TypeVar

from ..core import config
from ..core.config import serial
from ..core.errors import UserError, nearest
from .names import Table

T = TypeVar("T")
Settings: TypeAlias = dict[str, Any]  # of a config.json, by their words
MISSING: Any = object()


def tile(blocks: Sequence[config.Block]) -> tuple[config.Block, ...]:
    """The shortest pattern that repeats to these blocks."""
    depth = len(blocks)
    lengths = (length for length in range(1, depth) if depth % length == 0)
    repeats = (n for n in lengths if all(blocks[i] == blocks[i % n] for i in range(depth)))
    return tuple(blocks[: next(repeats, depth)])


def sizes(table: str, **words: Any) -> dict[str, Settings]:
    """Published sizes in the words of their config.json: those of every size, and a ``table``.

    Its first line has words, and each other one a size's name and values as JSON, - for none.
    """
    head, *lines = (line.split() for line in table.strip().splitlines())
    return {
        name: words | {word: json.loads(x) for word, x in zip(head, row, strict=True) if x != "-"}
        for name, *row in lines
    }


class Sizes(Mapping[str, config.Model]):
    """The configs of published sizes, each read from its words when it is first asked for."""

    def __init__(self, rows: Mapping[str, Any], recipe: Recipe) -> None:
        self.rows, self.recipe = dict(rows), recipe

    def __getitem__(self, name: str) -> config.Model:
        row = self.rows[name]
        if isinstance(row, dict):
            row = self.rows[name] = self.recipe.read(ConfigReader(row))
        return row  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Recipe:
    """A published family as data: sizes, its config.json in and out, its weights' names, where it
    comes from.

    ``words`` are its config.json both ways; ``read_config`` and ``write_config`` say it where
    they do not. ``family`` is what its classes are called in transformers, which end in a Model
    and in these ``heads``; none: in CausalLM. ``layout`` gives the config whose parameters the
    published files hold, where that is not the model's own (a GPT-2 without biases is published
    with biases of zero). ``bare`` are the architectures whose files leave the table's prefix
    away. ``fixed`` are words of the config.json that a tokenizer does not change, though they
    name a token (RoBERTa's padding). ``checkpoint`` is a small published model, where that is not
    the one whose ``tokenizer`` is named. A recipe without words has no published layout.
    """

    name: str
    paper: str
    sizes: Mapping[str, Any]
    architectures: tuple[str, ...] = ()
    model_type: str = ""
    tokenizer: str = ""
    checkpoint: str = ""
    read_config: Callable[[ConfigReader], config.Model] | None = None
    write_config: Callable[[Any], Settings] | None = None
    weights: Table | Callable[[Any], Table] = Table(())
    layout: Callable[[config.Model], config.Model] = lambda model: model
    bare: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    words: BothWays | None = None
    family: str = ""
    heads: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        derived: Settings = {}
        if not isinstance(self.sizes, Sizes):
            derived["sizes"] = Sizes(self.sizes, self)
        if self.words and not self.read_config:
            derived |= {"read_config": self.words.decode, "write_config": self.words.encode}
        if self.family and not self.architectures:
            classes = (f"{self.family}For{head}" for head in self.heads or ("CausalLM",))
            derived["architectures"] = (*classes, f"{self.family}Model")
        if self.heads:
            derived["bare"] = (f"{self.family}Model",)
        if self.words and not self.model_type:
            derived["model_type"] = self.name
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @cached_property
    def examples(self) -> list[config.Model]:
        """Models that stand for all: the first size and the last, and what its words change."""
        first, *_, last = (*self.sizes, *self.sizes)
        template = [self.words.template] if self.words else []
        return [*template, self.sizes[first], self.sizes[last]]

    @cached_property
    def added_types(self) -> set[str]:
        """The types in its models that ``config.member`` added, by name."""
        return set[str]().union(*map(serial.added_types, self.examples))

    def read(self, raw: ConfigReader) -> config.Model:
        """The config of a config.json and of the files beside it."""
        from . import sentences

        assert self.read_config is not None
        return sentences.read_config(raw, self.read_config(raw))

    def table(self, model: config.Model) -> Table:
        """The names of this model's weights."""
        return self.weights if isinstance(self.weights, Table) else self.weights(model)

    def names(self, model: config.Model) -> tuple[Table, config.Model]:
        """The names of this model's weights, and the config whose parameters the files hold."""
        return self.table(model), self.layout(model)


class BothWays(Protocol):
    """A config.json, in and out."""

    @property
    def template(self) -> Any: ...

    def decode(self, raw: ConfigReader) -> config.Model: ...

    def encode(self, model: Any) -> Settings: ...


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
            value_text = json.dumps(value, default=str)[:60]
            raise UserError(
                f'{self.source}: "{key}" is {value_text}, but {reason}; use a model without it.'
            )

    def must(self, fact: bool, key: str, expected: str, hint: str = "") -> None:
        if not fact:
            value_text = json.dumps(self.table.get(key), default=str)[:60]
            raise UserError(f'{self.source}: "{key}" is {value_text}; it must be {expected}.{hint}')
