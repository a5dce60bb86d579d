"""What a page of the recipe book holds, and how a published config.json is read without believing
it. No torch here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from .. import config
from ..errors import UserError, nearest

T = TypeVar("T")
MISSING: Any = object()


@dataclass(frozen=True)
class Rule:
    """Their name or names for our name or names.

    A {letter} on both sides repeats the rule; a {letter} on one side only stacks along a new first
    axis; several names on one side are the whole tensor's parts along ``axis`` (ours: as wide as
    the model's parameters, theirs: equal, or as wide as ``parts`` to each other). ``transpose``
    turns each of their matrices; ``unsqueeze``: theirs has one more axis, of 1, in front. ``axes``
    says how else the axes of theirs become ours, as einops writes it, h being ``heads``:

        "h c d -> (h d) c"            a heads axis folded (TransformerLens' W_Q)
        "(h d 2) c -> (h 2 d) c"      rotary pairs of neighbours to halves (original Llama files)
    """

    theirs: str | tuple[str, ...]
    ours: str | tuple[str, ...]
    transpose: bool = False
    axis: int = 0
    unsqueeze: bool = False
    parts: tuple[int, ...] = ()
    axes: str = ""
    heads: int = 1


@dataclass(frozen=True)
class Table:
    """All the rules of a family (none: every name is our own), and what its files may hold besides.

    ``ignore``: names of constants that older files carry. ``copies``: (name, original), where a
    file may repeat a tied weight. ``prefix``: what files saved from the bare model leave away.
    ``renamed``: (end of a name in some files, what it is here).
    """

    rules: tuple[Rule, ...]
    ignore: tuple[str, ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    prefix: str = ""
    renamed: tuple[tuple[str, str], ...] = ()


def rules(parts: Mapping[str, str], transpose: bool = False) -> tuple[Rule, ...]:
    """A rule for the weight and one for the bias of each of their layers and ours; ``transpose``
    turns the weights."""
    ends = {"weight": transpose, "bias": False}
    pairs = [
        (f"{theirs}.{end}", f"{ours}.{end}", turn)
        for theirs, ours in parts.items()
        for end, turn in ends.items()
    ]
    return tuple(Rule(theirs, ours, transpose=turn) for theirs, ours, turn in pairs)


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

    def same(self, name: str, other: str) -> bool: ...


class ConfigReader:
    """A config.json as published: each value is checked as it is read, and an absurd one is one
    sentence.

    ``held`` are the weights beside it where they are known, since some files say more than their
    config.
    """

    def __init__(
        self, table: Mapping[str, Any], source: str = "config.json", held: Held | None = None
    ) -> None:
        self.table = table
        self.source = source
        self.held = held

    def holds(self, name: str) -> bool:
        """Whether the weights beside it hold this tensor."""
        return self.held is not None and name in self.held.entries

    def value(self, key: str, default: Any = MISSING) -> Any:
        """The value under ``key``; null and absent are the default, and an error where there is
        none."""
        found = self.table.get(key)
        if found is None and default is MISSING:
            raise UserError(f'{self.source} lacks "{key}"; add it, or download the file again.')
        return default if found is None else found

    def whole(self, key: str, default: Any = MISSING, most: int = 1 << 20) -> Any:
        """An integer from 1 to ``most``."""
        found = self.value(key, default)
        fits = found is default or (type(found) is int and 0 < found <= most)
        self.must(fits, key, f"an integer from 1 to {most}")
        return found

    def number(
        self, key: str, default: Any = MISSING, least: float = 0.0, most: float = 1e12
    ) -> Any:
        """A finite number from ``least`` to ``most``."""
        found = self.value(key, default)
        fits = found is default or (type(found) in (int, float) and least <= found <= most)
        self.must(fits, key, f"a number from {least:g} to {most:g}")
        return found if found is None else float(found)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        found = self.value(key, default)
        self.must(isinstance(found, bool), key, "true or false")
        return bool(found)

    def choice(self, key: str, options: Mapping[str, T], default: str) -> T:
        """What the text under ``key`` stands for."""
        found = self.value(key, default)
        hint = nearest(found, options) if isinstance(found, str) else ""
        self.must(
            isinstance(found, str) and found in options, key, f"one of {', '.join(options)}", hint
        )
        return options[found]

    def architecture(self, default: str) -> str:
        """The first of the architectures, which says what ends a model has."""
        return str((self.value("architectures", None) or [default])[0])

    def inside(self, key: str) -> ConfigReader | None:
        """The table under ``key``, or None."""
        found = self.value(key, None)
        self.must(found is None or isinstance(found, Mapping), key, "a table")
        return ConfigReader(found, f"{self.source}: {key}") if found else None

    def only(self, key: str, allowed: Any, what: str) -> None:
        """Refuse by name what no module here does."""
        found = self.value(key, allowed)
        if found != allowed or isinstance(found, bool) != isinstance(allowed, bool):
            shown = json.dumps(found, default=str)[:60]
            raise UserError(
                f'{self.source}: "{key}" is {shown}, but {what}; use a model without it.'
            )

    def must(self, fact: bool, key: str, expected: str, hint: str = "") -> None:
        if not fact:
            shown = json.dumps(self.table.get(key), default=str)[:60]
            raise UserError(f'{self.source}: "{key}" is {shown}; it must be {expected}.{hint}')
