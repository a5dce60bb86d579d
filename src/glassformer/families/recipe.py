"""A page of the recipe book: its fields and their use. No torch here."""

from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from ..core import config
from ..core.config import serial
from . import sentences
from .config_reader import MISSING as MISSING
from .config_reader import ConfigReader as ConfigReader
from .config_reader import Held as Held
from .config_reader import Settings as Settings
from .ends import (
    ENDS,
    head_name,
    name_ends,
    read_ends,
    write_dropout,
    write_ends,
)
from .names import Table


def tile(blocks: Sequence[config.Block]) -> tuple[config.Block, ...]:
    """The shortest pattern that repeats to these blocks."""
    depth = len(blocks)
    lengths = (length for length in range(1, depth) if depth % length == 0)
    repeats = (n for n in lengths if all(blocks[i] == blocks[i % n] for i in range(depth)))
    return tuple(blocks[: next(repeats, depth)])


class PublishedSizes(UserDict[str, Any]):
    """The configs of published sizes, each read from its words when it is first asked for."""

    recipe: Recipe

    def __getitem__(self, name: str) -> config.Model:
        row, make = self.data[name], self.recipe.make
        if isinstance(row, dict):
            row = make(**row) if make else self.recipe.read(ConfigReader(row))
            self.data[name] = row
        return row  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Recipe:
    """A published family as data: sizes, its config.json in and out, its weights' names, where it
    comes from.

    ``words`` are its config.json both ways; ``read_config`` and ``write_config`` say it where
    they do not. ``family`` is what its classes are called in transformers, which end in a Model
    and in these ``heads``; none: in CausalLM. ``eos`` ends a text where the file does not say;
    ``roots`` are the prefixes of classes, by their heads, that are not the table's. ``refused``
    are words of the config.json that must be as here, and why. ``layout`` gives the config whose
    parameters the published files hold, where that is not the model's own (a GPT-2 without biases
    is published with biases of zero). ``bare`` are the architectures whose files leave the table's prefix
    away. ``fixed`` are words of the config.json that a tokenizer does not change, though they
    name a token (RoBERTa's padding). ``checkpoint`` is a small published model, where that is not
    the one whose ``tokenizer`` is named. ``make`` makes a size of its words, where these are not its
    config.json's. A recipe without words has no published layout.
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
    make: Callable[..., config.Model] | None = None
    family: str = ""
    heads: tuple[str, ...] = ()
    eos: int | None = None
    roots: Mapping[str, str] = field(default_factory=Settings)
    refused: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        derived: Settings = {}
        if not isinstance(self.sizes, PublishedSizes):
            sizes = derived["sizes"] = PublishedSizes(self.sizes)
            sizes.recipe = self
        if self.words and not self.read_config:
            derived |= {"read_config": self._decode, "write_config": self._encode}
        if self.family and not self.architectures:
            classes = (f"{self.family}For{head}" for head in self.heads or ("CausalLM",))
            bare = (f"{self.family}Model",)
            derived |= {"architectures": (*classes, *bare), "bare": bare}
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

    @property
    def _is_encoder(self) -> bool:
        """True where the words say the ends too, as each family of encoders has others."""
        return self.words is None or self.words.template.is_encoder

    def _decode(self, raw: ConfigReader) -> config.Model:
        words: Any = self.words
        for path, terms in self.refused.items():
            name, _, word = path.rpartition(".")
            if table := raw.inside(name) if name else raw:
                table.only(word, *terms)
        model: Any = words.decode(raw)
        headless = raw.architecture("") in self.bare
        return model if self._is_encoder else read_ends(raw, model, self.eos, headless)  # type: ignore[no-any-return]

    def _encode(self, model: Any) -> Settings:
        words: Any = self.words
        bare, added = model, Settings()
        if not self._is_encoder:
            if model.head is not None:
                return words.encode(model)  # type: ignore[no-any-return]
            head = None if model.is_encoder else words.template.head
            bare = replace(model, head=head, pool=None, token_head=None)
            added = write_dropout(model)
        return write_ends(words.encode(bare) | added, model, self.architectures)

    def read(self, raw: ConfigReader) -> config.Model:
        """The config of a config.json and of the files beside it."""
        assert self.read_config is not None
        return sentences.read_config(raw, self.read_config(raw))

    def table(self, model: config.Model) -> Table:
        """The names of this model's weights."""
        table = self.weights if isinstance(self.weights, Table) else self.weights(model)
        kind = head_name(model)
        if kind not in ENDS or self._is_encoder:
            return table
        return name_ends(table, model, self.roots.get(kind, table.prefix))

    def names(self, model: config.Model) -> tuple[Table, config.Model]:
        """The names of this model's weights, and the config whose parameters the files hold."""
        return self.table(model), self.layout(model)


class BothWays(Protocol):
    """A config.json, in and out."""

    @property
    def template(self) -> Any: ...

    def decode(self, raw: ConfigReader) -> config.Model: ...

    def encode(self, model: Any) -> Settings: ...


PAGES: dict[str, Recipe] = {}  # of the families here, once their modules are imported
PUBLISHED: Settings = json.loads(Path(__file__).with_name("published.json").read_text("utf-8"))
"""For each family here, its classes in transformers, its paper, tokenizer and checkpoint, and
tables of its sizes: values in the order of ``words``, "-" for none, the words of ``every`` size,
and those of the sizes once more whose names have one of the ``endings``."""


def page(name: str, **recipe: Any) -> Recipe:
    """The recipe of a family here: what is published of it, and what its page says."""
    entry, sizes = PUBLISHED[name], Settings()
    stated = {key: tuple(x) if isinstance(x, list) else x for key, x in entry.items()}
    for table in entry.get("sizes", ()):
        for ending, more in table.get("endings", {"": {}}).items():
            for size, values in table["models"].items():
                pairs = zip(table["words"].split(), values, strict=True)
                row = {word: value for word, value in pairs if value != "-"}
                sizes[size + ending] = table.get("every", {}) | row | more
    PAGES[name] = Recipe(name, **stated | {"sizes": sizes} | recipe)
    return PAGES[name]
