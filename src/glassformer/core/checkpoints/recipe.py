"""What a page of the recipe book holds, and how a published config.json is read without believing
it. No torch here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

from .. import config
from ..errors import UserError, nearest

T = TypeVar("T")
MISSING: Any = object()


@dataclass(frozen=True)
class NameRule:
    """The name of weights in a family's files, and those of the model's parameters that they fill.

    A {letter} on both sides repeats the rule; a {letter} in the file's name alone stacks along a
    new first axis; several parameters are the whole tensor's parts, as wide as in the model.
    ``transpose`` turns each matrix of the files; ``unsqueeze``: the file's tensor has one more
    axis, of 1, in front. ``axes`` says how else its axes become the parameter's, as einops writes
    it, h being ``heads``:

        "h c d -> (h d) c"            a heads axis folded (TransformerLens' W_Q)
        "(h d 2) c -> (h 2 d) c"      rotary pairs of neighbours to halves (original Llama files)
    """

    file_name: str
    param_names: str | tuple[str, ...]
    transpose: bool = False
    unsqueeze: bool = False
    axes: str = ""
    heads: int = 1

    @property
    def patterns(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return (self.param_names,) if isinstance(self.param_names, str) else self.param_names

    @cached_property
    def stacks(self) -> str:
        """The letter that the file's name alone has; empty where there is none."""
        letters = re.findall(r"\{(\w)\}", self.file_name)
        return next((x for x in letters if f"{{{x}}}" not in self.patterns[0]), "")


@dataclass(frozen=True)
class Table:
    """All the rules of a family (none: every name is our own), and what its files may hold besides.

    ``ignore``: names of constants that older files carry. ``copies``: (name, original), where a
    file may repeat a tied weight. ``prefix``: what files saved from the bare model leave away.
    ``renamed``: (end of a name in some files, what it is here).
    """

    rules: tuple[NameRule, ...]
    ignore: tuple[str, ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    prefix: str = ""
    renamed: tuple[tuple[str, str], ...] = ()


def rules(layers: Mapping[str, str], transpose: bool = False) -> tuple[NameRule, ...]:
    """A rule for the weight and one for the bias of each of their layers and ours; ``transpose``
    turns the weights."""
    suffixes = {"weight": transpose, "bias": False}
    pairs = [
        (f"{file_name}.{end}", f"{param_name}.{end}", turn)
        for file_name, param_name in layers.items()
        for end, turn in suffixes.items()
    ]
    return tuple(
        NameRule(file_name, param_name, transpose=turn) for file_name, param_name, turn in pairs
    )


def tile(blocks: Sequence[config.Block]) -> tuple[config.Block, ...]:
    """The shortest pattern that repeats to these blocks."""
    depth = len(blocks)
    lengths = (length for length in range(1, depth) if depth % length == 0)
    repeats = (n for n in lengths if all(blocks[i] == blocks[i % n] for i in range(depth)))
    return tuple(blocks[: next(repeats, depth)])


@dataclass(frozen=True)
class Recipe:
    """A published family as data: sizes, its config.json in and out, its weights' names, where it
    comes from.

    ``layout`` gives the config whose parameters the published files hold, where that is not the
    model's own (a GPT-2 without biases is published with biases of zero). ``bare`` are the
    architectures whose files leave the table's prefix away. A recipe without ``read_config`` and
    ``write_config`` has no published layout.
    """

    name: str
    paper: str
    sizes: Mapping[str, config.Model]
    architectures: tuple[str, ...] = ()
    model_type: str = ""
    tokenizer: str = ""
    read_config: Callable[[ConfigReader], config.Model] | None = None
    write_config: Callable[[config.Model], dict[str, Any]] | None = None
    weights: Table | Callable[[config.Model], Table] = Table(())
    layout: Callable[[config.Model], config.Model] = lambda model: model
    bare: tuple[str, ...] = ()

    def table(self, model: config.Model) -> Table:
        """The names of this model's weights."""
        return self.weights if isinstance(self.weights, Table) else self.weights(model)


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
        """True or false."""
        value = self.value(key, default)
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
