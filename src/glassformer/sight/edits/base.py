"""An edit of values: paths by wildcards, where in them (positions, a head, places of the last axis),
and what they become.

B batch, T tokens, S keys.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ...core.errors import need
from ...core.nn.hooks import Place
from ..axes import HEADED, across, headed, keyed, of_source
from ..linear_probes import Probe
from ..looking import matching
from ..reading import Hook, Reading

Positions: TypeAlias = int | Sequence[int] | str | None
Plain: TypeAlias = tuple[int, ...] | str | None  # as edits hold them
# (path, value, place, which cells are meant; None: all) -> what the cells become
Change: TypeAlias = Callable[[str, Tensor, Place, Tensor | None], Tensor]

STRETCH = re.compile(r"(-?\d+)?:(-?\d+)?")


class Edit:
    """A change of a run; its ``repr`` is the line that makes it again, tensors apart."""

    path: str

    def __post_init__(self) -> None:
        if hasattr(self, "positions"):
            object.__setattr__(self, "positions", plain(self.positions))

    def read(self, reading: Reading) -> None:
        """Change the tokens that are read."""

    def paths(self, reading: Reading) -> list[str]:
        """Paths of the values that change; UserError for what does not exist."""
        return matching(self.path, list(reading.shapes), "value")

    def change(self, reading: Reading, path: str) -> Change:
        """Maker of the new values of a path."""
        raise NotImplementedError

    def hooks(self, reading: Reading) -> Mapping[str, Hook]:
        """Hooks by path; none for a path of which no cell is meant."""
        hooks: dict[str, Hook] = {}
        positions, head, index = (
            getattr(self, name, None) for name in ("positions", "head", "index")
        )
        for path in self.paths(reading):
            change = self.change(reading, path)
            choose = chooser(reading, path, positions, head, index)
            if choose is not None:
                hooks[path] = partial(_changed, change, choose)
        return hooks

    def __repr__(self) -> str:
        args = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            must = field.default is dataclasses.MISSING
            if must or value is not field.default:
                args.append(_shown(value) if must else f"{field.name}={_shown(value)}")
        return f"{type(self).__name__}({', '.join(args)})"


def _shown(value: Any) -> str:
    if isinstance(value, str | Probe):
        return json.dumps(value if isinstance(value, str) else value.name, ensure_ascii=False)
    if isinstance(value, Tensor):
        return f"<{'x'.join(map(str, value.shape))} values>"
    if isinstance(value, Sequence) and len(value) <= 12:
        inside = ", ".join(map(_shown, value))
        if isinstance(value, tuple):
            return f"({inside}{',' * (len(value) == 1)})"
        return f"[{inside}]"
    if isinstance(value, Mapping) and all(isinstance(key, int) for key in value):
        return f"{{{', '.join(f'{key}: {_shown(item)}' for key, item in value.items())}}}"
    is_number = isinstance(value, int | float) or value is None
    return repr(value) if is_number else f"<{type(value).__name__}>"


def _changed(change: Change, choose: Choose, path: str, x: Tensor, place: Place) -> Tensor:
    """``x`` with what the chosen cells become, laid out in memory like ``x``: products are rounded
    the same."""
    chosen = choose(path, x, place)
    new = change(path, x, place, chosen).to(x.dtype)
    strides = zip(x.stride(), x.shape, strict=True)
    if any(stride == 0 and size > 1 for stride, size in strides):  # cells share memory
        out = torch.empty_like(x)
    else:
        out = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return out.copy_(new if chosen is None else torch.where(chosen, new, x))


# ------------------------------------------------------------------------------------------- paths


def modules_with(reading: Reading, path: str, leaf: str, kind: str, beside: str = "") -> list[str]:
    """The modules that make a value ``leaf`` (and one ``beside`` it) and that ``path`` names, with
    or without it."""
    suffix = f".{leaf}"
    modules = [name.removesuffix(suffix) for name in reading.shapes if name.endswith(suffix)]
    modules = [name for name in modules if not beside or f"{name}.{beside}" in reading.shapes]
    need(
        bool(modules),
        f"This model has no {kind}, so there is none to edit; look at what it has: glassformer "
        "look.",
    )
    return matching(path.removesuffix(suffix), modules, kind)


def position_axis(path: str, sides: int) -> int:
    """Which axis counts tokens; UserError for what a Pool says of a whole document."""
    need(
        not path.startswith("pool."),
        f"{path} has one value for the whole text; leave positions out.",
    )
    return 2 if headed(path, sides) else 1


def positions_of(path: str, x: Tensor, place: Place) -> Tensor:
    """The position of each token of a value (B or 1, T), -1 at padding."""
    pos = place.source_pos if across(path) and place.source_pos is not None else place.pos
    return pos[:, -x.shape[position_axis(path, x.ndim)] :]  # logits may be of the last token alone


def along(path: str, mask: Tensor, sides: int) -> Tensor:
    """A mask of tokens (B or 1, T) as it broadcasts over a value of so many axes."""
    axis = position_axis(path, sides)
    return mask.view(len(mask), *[1] * (axis - 1), -1, *[1] * (sides - axis - 1))


# --------------------------------------------------------------------------------------- positions


def plain(positions: Positions) -> Plain:
    """Positions as an edit holds them; UserError for what they cannot be."""
    if positions is None or (isinstance(positions, str) and STRETCH.fullmatch(positions)):
        return positions
    several = (positions,) if isinstance(positions, int) else positions
    need(
        not isinstance(several, str) and all(type(item) is int for item in several),
        f"positions is {positions!r}; give a number, several such as (2, 3), or a "
        'range such as "5:".',
    )
    return tuple(several)  # type: ignore[arg-type]


def lengths(reading: Reading, source: bool) -> list[int] | None:
    """Token count of each text; None while unknown."""
    rows = reading.sources if source else reading.rows
    return None if rows is None else [len(row) for row in rows]


def counted(reading: Reading, position: int, source: bool = False, border: bool = False) -> int:
    """A position from the beginning; a ``border`` may lie behind the last one."""
    sizes = lengths(reading, source)
    if position < 0:
        need(
            sizes is not None and len(set(sizes)) == 1,
            f"Position {position} counts from the end, but the texts differ in length; count from "
            "0.",
        )
    bounded = sizes is not None and (position < 0 or source or not reading.grows)
    size = max(sizes) if bounded and sizes else reading.model.config.context
    need(
        -size <= position and (border or position < size),
        f"There is no position {position}: the {'source' if source else 'text'} has at most "
        f"{size} tokens, 0 to {size - 1}.",
    )
    return position + size if position < 0 else position


def _inside(reading: Reading, positions: Plain, source: bool) -> Callable[[Tensor], Tensor]:
    """A function that tells these positions; UserError for those that a text does not have."""
    if isinstance(positions, str):
        bounds = positions.split(":")
        start, end = (
            counted(reading, int(bound), source, True) if bound else default
            for bound, default in zip(bounds, (0, 1 << 62), strict=True)
        )
        return lambda pos: (pos >= start) & (pos < end)
    columns = torch.tensor([counted(reading, position, source) for position in positions or ()])
    return lambda pos: torch.isin(pos, columns.to(pos.device))


# ------------------------------------------------------------------------------------------- cells

Choose: TypeAlias = Callable[[str, Tensor, Place], Tensor | None]
"""Which cells, broadcast; None: all."""


def several(index: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """An index or several as a tuple; None stays."""
    if index is None:
        return index
    if isinstance(index, int):
        return (index,)
    return tuple(index)


def chooser(
    reading: Reading, path: str, positions: Plain, head: int | None, index: Any
) -> Choose | None:
    """Which cells of a value are meant, of all heads and the whole last axis unless said; None
    where none are."""
    shape = reading.shapes[path]
    if head is not None:
        need(
            headed(path, len(shape)),
            f"{path} has no heads; values with heads are {', '.join(HEADED)}.",
        )
        need(
            type(head) is int and 0 <= head < shape[1],
            f"{path} has no head {head!r}; it has heads 0 to {shape[1] - 1}.",
        )
    places = several(index)
    for item in places or ():
        need(
            type(item) is int and item >= 0 and (keyed(path) or item < shape[-1]),
            f"{path} has no index {item!r}; its last axis has 0 to {shape[-1] - 1}.",
        )
    inside = None
    if positions is not None:
        inside = _inside(reading, positions, of_source(reading.model, path))
        position_axis(path, len(shape))
    if () in (places, positions):
        return None

    def choose(path: str, x: Tensor, place: Place) -> Tensor | None:
        masks = []
        if inside is not None:
            masks.append(along(path, inside(positions_of(path, x, place)), x.ndim))
        if head is not None:
            masks.append((torch.arange(x.shape[1], device=x.device) == head)[:, None, None])
        if places is not None:
            chosen = torch.tensor(places, device=x.device)
            masks.append(torch.isin(torch.arange(x.shape[-1], device=x.device), chosen))
        return reduce(torch.Tensor.__and__, masks) if masks else None

    return choose
