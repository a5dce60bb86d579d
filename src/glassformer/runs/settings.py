"""Every setting of a run: its dotted path, type, default and meaning, read off the dataclasses. No
torch here.

What a field means is the comment behind it.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any, get_type_hints

from .. import families  # noqa: F401  # their mechanisms are types of the slots
from ..core import config
from ..core.config import run, serial
from ..scale.parallel import Parallel
from . import run_config


@dataclasses.dataclass(frozen=True)
class Setting:
    """One field by its path; ``default`` is "" where a value has to be given."""

    path: str
    kind: str
    default: str
    meaning: str


@dataclasses.dataclass(frozen=True)
class Type:
    """A class that a run file can name, and the slot where it first stands; ``settings`` are its
    fields."""

    kind: type
    slot: str
    settings: list[Setting]


MODEL = [
    Setting("recipe", "text", "glass/1m", "the shape to begin with: glassformer recipes"),
    Setting(
        "from",
        "text",
        "",
        "or the trained model to begin with: a folder or a hub name; {seed} in it is train.seed",
    ),
]


SECTIONS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("", (run.Train,)),
    ("data.", (run_config.Data, run_config.Examples)),
    ("", typing.get_args(config.Model)),
    ("parallel.", (Parallel,)),
)
"""The classes of a run file's tables, and what stands before their settings."""


_hints = cache(get_type_hints)


def all_settings() -> Iterator[Setting]:
    """The settings of a run file in its order, as the command line writes them; a class at each of
    its places."""
    for prefix, kinds in SECTIONS:
        for kind in kinds:
            yield from _nested_fields(kind, prefix, ())
    yield from MODEL


def types() -> dict[str, Type]:
    """Each class of a run file once, by its name: [train] and what is inside of it, then [data],
    then [model].

    Where two have one name, the slot comes before it: "mask Prefix", "objective Prefix".
    """
    by_type: dict[type, Type] = {}
    for prefix, kinds in SECTIONS:
        waiting = [(kind, prefix, "") for kind in kinds]
        # grows: what a class holds comes after the classes beside it
        for kind, path, slot in waiting:
            if kind not in by_type:
                by_type[kind] = Type(kind, slot, list(_fields(kind, path)))
                hints = _hints(kind)
                waiting += [
                    (inner, f"{path}{field.name}.", field.name)
                    for field in dataclasses.fields(kind)
                    for inner in _nested_classes(hints[field.name])
                ]
        if run_config.Data in kinds:
            by_type[run_config.Run] = Type(run_config.Run, "", MODEL)
    count = collections.Counter(kind.__name__ for kind in by_type)
    named = ((kind.__name__, entry) for kind, entry in by_type.items())
    return {f"{entry.slot} {name}" if count[name] > 1 else name: entry for name, entry in named}


def paths() -> list[str]:
    """Every setting by its path, for hints."""
    return [setting.path for setting in all_settings()]


def default_optimizers() -> str:
    """Which optimizer trains where none is named, in a sentence."""
    kinds = (
        ("a glass recipe", run.FROM_SCRATCH),
        ("from a checkpoint", run.FINETUNE),
        ("anything else", run.Train().optimizer),
    )
    return "; ".join(f"{name}: {_optimizer(optimizer)}" for name, optimizer in kinds)


def _optimizer(optimizer: run.Optimizer) -> str:
    suffix = f", rest at {optimizer.rest.lr:g}" if isinstance(optimizer, run.Muon) else ""
    return f"{type(optimizer).__name__} at {optimizer.lr:g}{suffix}"


def _fields(kind: type, prefix: str) -> Iterator[Setting]:
    """The fields of a class."""
    hints, meanings = _hints(kind), meaning(kind)
    for field in dataclasses.fields(kind):
        default, description = _default(field), meanings.get(field.name, "")
        if (kind, field.name) == (run.Train, "optimizer"):
            default, description = "", f"{description}; if none is named: {default_optimizers()}"
        yield Setting(prefix + field.name, _name(hints[field.name]), default, description)


def _nested_fields(kind: type, prefix: str, above: tuple[type, ...]) -> Iterator[Setting]:
    """The fields of a class, each with those of the classes that it may hold."""
    hints = _hints(kind)
    for field, setting in zip(dataclasses.fields(kind), _fields(kind, prefix), strict=True):
        yield setting
        for inner in _nested_classes(hints[field.name]):
            if inner not in above:
                yield from _nested_fields(inner, f"{setting.path}.", (*above, kind, inner))


@cache
def meaning(kind: type) -> dict[str, str]:
    """The meaning of each field of a dataclass: the comment behind or
    above it, or that of the field it inherits."""
    meanings: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(kind.__mro__)):
        try:
            lines = inspect.getsource(base).splitlines()
        except OSError:  # a class of a notebook's or of a prompt
            continue
        above: list[str] = []
        for line in lines:
            if comment := re.match(r"    # (.+)$", line):
                above.append(comment[1])
                continue
            if field := re.match(r"    (\w+): .*?(?:  # (.+))?$", line):
                meanings[field[1]] = field[2] or " ".join(above)
            above = []
    return {name: meaning for name, meaning in meanings.items() if meaning}


def _nested_classes(hint: Any) -> list[type]:
    """The dataclasses that a field may hold, one or several of them; a user's own too."""
    inside = [] if dataclasses.is_dataclass(hint) else typing.get_args(hint)
    deeper = [
        inner
        for option in inside
        if typing.get_origin(option) is tuple
        for inner in _nested_classes(option)
    ]
    return [*serial.members(hint).values(), *deeper]


def _name(hint: Any) -> str:
    """A type as people say it."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " | ".join(map(str, args))
    if origin is tuple:
        return f"list of {_name(args[0])}"
    if origin is dict:
        return f"table of {_name(args[1])}"
    if args:
        return " | ".join(map(_name, args))
    if "members_of" in getattr(hint, "__dict__", {}):
        return " | ".join(serial.members(hint))
    plain = {
        int: "integer",
        float: "number",
        bool: "true or false",
        str: "text",
        type(None): "none",
    }
    return str(plain.get(hint, getattr(hint, "__name__", hint)))


def _default(field: dataclasses.Field[Any]) -> str:
    value = (
        field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    )
    if value is dataclasses.MISSING:
        return ""
    if dataclasses.is_dataclass(value):
        return type(value).__name__
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    return json.dumps(value)
