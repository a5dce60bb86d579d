"""Every setting of a run: its dotted path, type, default and meaning, read off the dataclasses. No torch here.

What a field means is the comment behind it, or else the sentence of its class's docstring that names it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
import typing
from collections.abc import Iterator
from typing import Any

from .. import config
from . import run, serial


@dataclasses.dataclass(frozen=True)
class Setting:
    """One field by its path; ``owner`` is the class it belongs to, ``default`` "" where a value has to be given."""

    path: str
    kind: str
    default: str
    meaning: str
    owner: type


def every(once: bool = False) -> Iterator[Setting]:
    """The settings of a run file in its order, as the command line writes them; ``once``: a class where it is first."""
    seen: set[type] = set()
    for kind, prefix in ((run.Train, ""), (run.Data, "data."), (run.Examples, "data.")):
        yield from _inside(kind, prefix, (), seen if once else None)
    yield Setting("recipe", "text", "glass/1m", "the shape to begin with: glassformer recipes", run.Run)
    yield Setting("from", "text", "", "or the trained model to begin with: a folder or a hub name", run.Run)
    for model in typing.get_args(config.Model):
        yield from _inside(model, "", (), seen if once else None)


def paths() -> list[str]:
    """Every setting by its path, for hints."""
    return [setting.path for setting in every()]


def _inside(kind: type, prefix: str, above: tuple[type, ...], seen: set[type] | None) -> Iterator[Setting]:
    hints, meanings = typing.get_type_hints(kind), meaning(kind)
    for field in dataclasses.fields(kind):
        hint, path = hints[field.name], prefix + field.name
        yield Setting(path, _name(hint), _default(field), meanings.get(field.name, ""), kind)
        for inner in _classes(hint):
            if inner not in above and inner not in (seen or ()):
                if seen is not None:
                    seen.add(inner)
                yield from _inside(inner, f"{path}.", (*above, kind, inner), seen)


@functools.cache
def meaning(kind: type) -> dict[str, str]:
    """What each field of a dataclass means, without the marks."""
    sentences = re.split(r"(?<=;) |(?<=\.) (?=[A-Z`])", " ".join((kind.__doc__ or "").split()))
    told = {}
    for field in dataclasses.fields(kind):
        said = next((one for one in sentences if f"``{field.name}``" in one), "")
        told[field.name] = said.replace("``", "").rstrip(".;")
    return told | dict(re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(kind), re.MULTILINE))


def _classes(hint: Any) -> list[type]:
    """The dataclasses that a field may hold, one or several of them; a user's own too."""
    inside = [] if dataclasses.is_dataclass(hint) else typing.get_args(hint)
    deeper = [found for part in inside if typing.get_origin(part) is tuple for found in _classes(part)]
    return [*serial.members(hint).values(), *deeper]


def _name(hint: Any) -> str:
    """A type as people say it."""
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        return f"list of {_name(typing.get_args(hint)[0])}"
    if typing.get_origin(hint) is dict:
        return f"table of {_name(typing.get_args(hint)[1])}"
    if typing.get_args(hint):
        return " | ".join(map(_name, typing.get_args(hint)))
    if "members_of" in getattr(hint, "__dict__", {}):
        return " | ".join(serial.members(hint))
    plain = {int: "integer", float: "number", bool: "true or false", str: "text", type(None): "none"}
    return str(plain.get(hint, getattr(hint, "__name__", hint)))


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value is dataclasses.MISSING:
        return ""
    if dataclasses.is_dataclass(value):
        return type(value).__name__
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)
