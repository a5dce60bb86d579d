"""Config <-> plain dictionaries, JSON and TOML; dotted overrides (``decoder.depth=12``).

Works for any frozen dataclass of plain values, tuples, dataclasses and unions: the vocabulary and
the run file alike. A union's member is told by ``"type"``. ``frozen`` holds what is made in Python
to the same rules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import operator
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias, TypeVar

from .. import registry
from ..errors import UserError, choices, nearest, need
from ..files import json_value

T = TypeVar("T")

# ------------------------------------------------------------------------------------ dataclasses


class Range(typing.NamedTuple):
    """Which numbers a field takes, and how an error asks for one; it stands in the field's type."""

    fits: Callable[[Any], bool]
    description: str


_POSITIVE = Range(lambda x: x > 0, "a number above 0")
PositiveInt: TypeAlias = Annotated[int, _POSITIVE]
PositiveFloat: TypeAlias = Annotated[float, _POSITIVE]
NonNegativeInt: TypeAlias = Annotated[int, Range(lambda x: x >= 0, "0 or more")]
AtLeastTwo: TypeAlias = Annotated[int, Range(lambda x: x >= 2, "2 or more")]
Share: TypeAlias = Annotated[float, Range(lambda x: 0 <= x < 1, "a share from 0 to below 1")]
InnerShare: TypeAlias = Annotated[float, Range(lambda x: 0 < x < 1, "a share between 0 and 1")]


@typing.dataclass_transform(frozen_default=True)
def frozen(kind: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass that checks its fields' types before ``__post_init__``.

    A field takes what a file may say for it, and becomes what the file's reader would make of it; a
    number is held to the ``Range`` in its type (``PositiveInt``, ``Share``). Raises UserError.
    """
    judge = getattr(kind, "__post_init__", None)
    title = getattr(kind, "table", kind.__name__)
    # fields with the numbers and dataclasses that they take as they are: a recipe makes many alike
    accepted: set[tuple[str, type, float | None]] = set()

    def check(self: Any) -> None:
        for name, hint in _fields(kind).items():  # type: ignore[arg-type]
            raw = getattr(self, name)
            key = name, type(raw), raw if type(raw) in (int, float, bool) else None
            if key in accepted:
                continue
            value = from_dict(hint, raw, f"{title}.{name}")
            object.__setattr__(self, name, value)
            if value is raw and (raw is key[2] or dataclasses.is_dataclass(raw)):
                accepted.add(key)
        if judge is not None:
            judge(self)

    kind.__post_init__ = check  # type: ignore[attr-defined]
    has_init = "__init__" in vars(kind)
    cls = dataclasses.dataclass(frozen=True)(kind)
    if has_init:  # it says itself what it takes
        return cls
    make: Any = cls.__init__

    @functools.wraps(make)
    def init(self: Any, *args: Any, **fields: Any) -> None:
        for name in fields:
            if name not in cls.__dataclass_fields__:  # type: ignore[attr-defined]
                hint = nearest(name, cls.__dataclass_fields__)  # type: ignore[attr-defined]
                raise UserError(f"{kind.__name__} has no setting {_show(name)}.{hint}")
        make(self, *args, **fields)

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


SIZE = 1 << 63  # integers stay below it


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    """The type of each field, with the range of a number."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


# of a slot's types: the further ones, by name
_MEMBERS: dict[frozenset[type], dict[str, type]] = {}
EXPRESSIONS: dict[frozenset[type], Callable[[str], Any]] = {}
"""The reader of a slot's member that is written as one text; it returns None for other texts."""


def _options(slot: Any) -> frozenset[type]:
    """The types of a slot but None: a union's, or the one that it is."""
    return frozenset(typing.get_args(slot) or (slot,)) - {type(None)}


@typing.dataclass_transform(frozen_default=True)
def member(slot: Any) -> Callable[[type[T]], type[T]]:
    """Class decorator: a frozen dataclass that is one more type of a slot, as ``config.Norm``.

    Configs, run files and checkpoints know it from then on, by its name; ``nn.builds`` tells its
    module. In a file of your own it is there once ``glassformer.use`` (``--use FILE``) has read the
    file.
    """

    def register(kind: type[T]) -> type[T]:
        need(
            kind.__name__ not in _builtin_members(slot),
            f"The slot has a {kind.__name__} already; give yours another name.",
        )
        cls = kind if "__dataclass_fields__" in vars(kind) else frozen(kind)
        _MEMBERS.setdefault(_options(slot), {})[kind.__name__] = cls
        return cls

    return register


def members(slot: Any) -> dict[str, type]:
    """The types of a slot by name, those that ``member`` added last."""
    classes, options = _builtin_members(slot), _options(slot)
    for slot_types, added in _MEMBERS.items():
        if slot_types <= options:
            classes |= sorted(added.items())
    return classes


def _builtin_members(slot: Any) -> dict[str, type]:
    """The types that we give a slot: its union's, or those of the registry's topic
    ``members_of``, whose modules are imported when its types are first asked for.
    """
    options = list(typing.get_args(slot) or (slot,))
    for package in registry.load(slot.members_of) if _is_base(slot) else ():
        options += vars(package).values()
    return {o.__name__: o for o in options if isinstance(o, type) and dataclasses.is_dataclass(o)}


def _is_base(slot: Any) -> bool:
    """The slot is a class whose types modules elsewhere define."""
    return "members_of" in getattr(slot, "__dict__", {})


def added_types(config: Any) -> set[str]:
    """The types in a config that ``member`` added, by name."""
    added = [kind for slot in _MEMBERS.values() for kind in slot.values()]
    names, stack = set[str](), [config]
    while stack:
        value = stack.pop()
        if isinstance(value, tuple):
            stack += value
        elif dataclasses.is_dataclass(value):
            stack += vars(value).values()
            names |= {type(value).__name__} if type(value) in added else set()
    return names


# ------------------------------------------------------------------------------------ dictionaries


def to_dict(value: Any) -> Any:
    """A dataclass as nested dictionaries, each with its ``"type"``; all else as JSON holds it."""
    if dataclasses.is_dataclass(value):
        inside = {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__, **inside}
    if isinstance(value, Mapping):
        return {key: to_dict(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_dict(item) for item in value]
    return value


def from_dict(kind: Any, raw: Any, path: str = "") -> Any:
    """The value of type ``kind`` that ``raw`` describes.

    Raises UserError with the dotted place for an unknown key, a missing one or a value of another
    type.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        value = from_dict(args[0], raw, path)
        for note in args[1:]:
            if isinstance(note, Range) and not note.fits(value):
                raise UserError(f"{path.lstrip('.')} is {value}; give {note.description}.")
        return value
    if origin is typing.Literal:
        if raw in args:
            return raw
        raise _error(path, f"{_show(raw)} is not one of {', '.join(map(json.dumps, args))}.")
    if origin is tuple:
        is_list = isinstance(raw, str) and args[0] is not str  # --save-at 1,2,4
        listed = _parse(f"[{raw}]") if is_list else raw
        items = listed if isinstance(listed, list | tuple) else [raw]
        return tuple(from_dict(args[0], item, f"{path}.{i}") for i, item in enumerate(items))
    if origin is dict:
        if not isinstance(raw, Mapping):
            raise _error(path, f"{_show(raw)} is not a table.")
        return {key: from_dict(args[1], item, f"{path}.{key}") for key, item in raw.items()}
    is_union = origin in (typing.Union, types.UnionType)
    is_slot = is_union or dataclasses.is_dataclass(kind) or _is_base(kind)
    return (_from_slot if is_slot else _plain)(kind, raw, path)


def _from_slot(kind: Any, raw: Any, path: str) -> Any:
    """A value of one of the slot's types: a dataclass by table or name, else a plain type's."""
    options, classes = typing.get_args(kind) or (kind,), members(kind)
    word = raw if isinstance(raw, str) else None
    if type(None) in options and (
        raw is None or (word is not None and word.lower() == "none" and str not in options)
    ):
        return None
    if isinstance(raw, tuple(classes.values())):
        return raw
    if word in classes:  # a type with nothing to set, by name alone
        return _from_table(classes[word], {}, path)
    module, name = type(raw).__module__, type(raw).__name__
    if classes and isinstance(raw, Mapping):
        only = next(iter(classes)) if sum(map(dataclasses.is_dataclass, options)) == 1 else None
        name = raw.get("type", only)
        if isinstance(name, str) and name in classes:
            return _from_table(classes[name], raw, path)
    elif classes and module not in ("builtins", "numpy") and not module.startswith("glassformer."):
        message = f"{name} is no type of this slot; write @config.member(SLOT) above its class."
        raise _error(path, message)
    if classes and (isinstance(raw, Mapping) or module.startswith("glassformer.")):
        problem = '"type" is missing' if name is None else f'"type" is {_show(name)}'
        raise _error(path, f"{problem}; give one of {choices(name, classes, table=True)}")
    if word is not None and (written := EXPRESSIONS.get(_options(kind))):
        try:
            if (value := written(word)) is not None:
                return value
        except UserError as error:
            raise _error(path, str(error)) from None
    problems = []
    for option in options:
        if option in _PLAIN or typing.get_origin(option):
            try:
                return from_dict(option, raw, path)
            except UserError as error:
                problems.append(error)
    if problems:
        raise problems[-1]
    problem = (
        f"{_show(raw)} is not a table with a type" if word is None else f"there is no {_show(raw)}"
    )
    hint = ' Write a table as {type = "NAME", key = value}, closed.' * (word or "").startswith("{")
    raise _error(path, f"{problem}; give one of {choices(raw, classes)}{hint}")


def _from_table(kind: type, raw: Mapping[str, Any], path: str) -> Any:
    hints = _fields(kind)
    table = {key: value for key, value in raw.items() if key != "type" or "type" in hints}
    for key in table:
        if key not in hints:
            messages = {
                "Run": "A run file has no table",
                "Stack": f"{path.rpartition('.')[2] or 'A stack'} has no setting",
            }
            sentence = messages.get(kind.__name__, f"{kind.__name__} has no setting")
            raise _error(path, f"{sentence} {_show(key)}.{nearest(str(key), hints)}")
    for field in dataclasses.fields(kind):
        if (
            field.default is field.default_factory is dataclasses.MISSING
            and field.name not in table
        ):
            raise _error(path, f'{kind.__name__} needs "{field.name}"; add it.')
    return kind(
        **{key: from_dict(hints[key], value, f"{path}.{key}") for key, value in table.items()}
    )


_PLAIN = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}


def _plain(kind: Any, raw: Any, path: str) -> Any:
    if kind is Any:
        return raw
    value = _parse(raw) if isinstance(raw, str) and kind is not str else raw
    if isinstance(value, str) and kind is float:
        with contextlib.suppress(ValueError):  # .001 and 1.e-3 are numbers to everybody but TOML
            value = float(value)
    if kind in (int, float) and not isinstance(value, bool):
        if isinstance(value, float) and value.is_integer() and kind is int:
            value = int(value)
        if hasattr(value, "__index__"):  # numpy's integers too
            value = operator.index(value)
            if abs(value) >= SIZE:
                raise _error(path, f"{_show(value)} is not a number of 64 bits.")
            value = kind(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _error(path, f"{_show(value)} is not {_PLAIN.get(kind, kind.__name__)}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise _error(path, f"{_show(str(value))} is not a finite number.")
    return value


def _error(path: str, sentence: str) -> UserError:
    return UserError(f"{path.lstrip('.')}: {sentence}" if path else sentence)


def _show(raw: Any) -> str:
    """A value as JSON has it, on one line and not longer than one."""
    try:
        text = json.dumps(raw, default=str, skipkeys=True)
    except (ValueError, RecursionError):  # a number of thousands of digits, a table within itself
        text = "this value"
    return text if len(text) <= 120 else f"{text[:100]} ... {text[-15:]}"


# ------------------------------------------------------------------------------------ overrides


def _parse(text: str) -> Any:
    """A command-line value as TOML would read it; anything else stays a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML; 5,000 digits; a list in a list in ...
        return text


def change(config: T, changes: Mapping[str, Any], root: str = "") -> T:
    """A copy of a config with many places changed at once, checked when all are in.

    Keys are dotted paths or the names of nested tables. A table or ``PATH.type`` of another type
    replaces what stood there; a path through a tuple without a number means every entry. Raises
    UserError for an unknown path.
    """
    if not changes:
        return config
    tree = to_dict(config)
    # a new type comes before the fields below it, which are the new type's
    for path in sorted(
        changes, key=lambda path: path.count(".") if path.endswith(".type") else math.inf
    ):
        value = changes[path]
        tree = _replace(
            tree, path.split("."), _parse(value) if isinstance(value, str) else value, path
        )
    changed: T = from_dict(type(config), tree, root)
    return changed


def _replace(node: Any, keys: list[str], value: Any, path: str) -> Any:
    """``node`` with ``value`` at ``keys``, tables merged."""
    table = isinstance(value, Mapping)
    if isinstance(node, list) and (keys or (table and "type" not in value)):
        if not keys or not keys[0].isdigit():
            return [_replace(item, keys, value, path) for item in node]
        at = int(keys[0])
        need(
            at < len(node),
            f"{path}: there are {len(node)} entries, counted from 0; {at} is past the end.",
        )
        return [*node[:at], _replace(node[at], keys[1:], value, path), *node[at + 1 :]]
    if keys:
        if isinstance(node, str) and node.isidentifier():  # a type by name alone: --optimizer Muon
            node = {"type": node}
        if not isinstance(node, dict):
            raise UserError(f"{path}: there is nothing to set below {json.dumps(node)}.")
        if keys == ["type"] and isinstance(value, str):
            return node if node.get("type") == value else {"type": value}
        key = keys[0]
        # an unknown key is found at the end
        return {**node, key: _replace(node.get(key, {}), keys[1:], value, path)}
    if table and isinstance(node, dict) and value.get("type", node.get("type")) == node.get("type"):
        for key, item in value.items():
            node = _replace(node, [key], item, f"{path}.{key}") if key != "type" else node
        return node
    return value


# ---------------------------------------------------------------------------------------- files


def dumps(value: Any) -> str:
    """``value`` as JSON text that ``loads`` reads back."""
    return json.dumps(to_dict(value), indent=1, allow_nan=False) + "\n"


def loads(kind: Any, text: str, source: str = "the JSON text") -> Any:
    """The config of type ``kind`` in a JSON text; ``source`` names it in errors."""
    return from_dict(kind, json_value(text, source, "restore or fix it"))
