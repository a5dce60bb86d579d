"""Which values an edit means: paths by wildcards, positions of a text, heads, neurons; and whether
they exist.

B batch, T tokens, S keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeAlias

import torch
from torch import Tensor

from ...core.errors import UserError, need
from ...core.nn.editing import Reading
from ...core.nn.hooks import Place
from .. import looking

Positions: TypeAlias = int | Sequence[int] | str | None
Plain: TypeAlias = tuple[int, ...] | str | None  # as edits hold them
# positions, -1 at padding -> booleans of the same shape
Within: TypeAlias = Callable[[Tensor], Tensor]
# which cells, broadcast; None: all
Choose: TypeAlias = Callable[[str, Tensor, Place], Tensor | None]

HEADED = ("q", "k", "v", "z", "scores", "pattern")
"""Values with an axis of heads, (B, H, T, ..); all others are (B, T, ..)."""
STRETCH = re.compile(r"(-?\d+)?:(-?\d+)?")

# ------------------------------------------------------------------------------------------------
# paths


def named(path: str, names: Sequence[str], kind: str) -> list[str]:
    """Members of ``names`` that the pattern ``path`` matches; UserError, with the nearest, where
    there are none."""
    matches = [name for name in names if fnmatchcase(name, path)]
    if not matches:
        need(
            bool(names),
            f"This model has no {kind}, so there is none to edit; look at what it "
            "has: glassformer look.",
        )
        near = get_close_matches(path, names, n=1, cutoff=0.3)
        meant = f' Did you mean "{near[0]}"?' if near else ""
        raise UserError(
            f'No {kind} is called "{path}".{meant} There are: {", ".join(looking.listing(names))}.'
        )
    return matches


def modules_with(reading: Reading, path: str, leaf: str, kind: str, beside: str = "") -> list[str]:
    """The modules that make a value ``leaf`` (and one ``beside`` it) and that ``path`` names, with
    or without it."""
    suffix = f".{leaf}"
    paths = [name.removesuffix(suffix) for name in reading.shapes if name.endswith(suffix)]
    paths = [
        candidate for candidate in paths if not beside or f"{candidate}.{beside}" in reading.shapes
    ]
    return named(path.removesuffix(suffix), paths, kind)


def values(reading: Reading, path: str) -> list[str]:
    """The values that ``path`` names."""
    return named(path, list(reading.shapes), "value")


def headed(path: str, sides: int) -> bool:
    """True if a value of so many axes has an axis of heads."""
    return sides == 4 and path.rpartition(".")[2] in HEADED


def position_axis(path: str, sides: int) -> int:
    """Which axis counts tokens; UserError for what a Pool says of a whole document."""
    need(
        not path.startswith("pool."),
        f"{path} has no positions: it is of the whole text; leave positions out.",
    )
    return 2 if headed(path, sides) else 1


def across(path: str) -> bool:
    """True if a value of the decoder has an axis of source tokens."""
    return path.endswith((".cross.k", ".cross.v"))


def of_source(reading: Reading, path: str) -> bool:
    """True if a value has an axis of the tokens that an encoder-decoder's encoder reads."""
    return reading.is_encoder_decoder and (
        path.startswith(("encoder.", "source_embed.")) or across(path)
    )


def positions_of(path: str, x: Tensor, place: Place) -> Tensor:
    """The position of each token of a value (B or 1, T), -1 at padding."""
    pos = place.source_pos if across(path) and place.source_pos is not None else place.pos
    return pos[:, -x.shape[position_axis(path, x.ndim)] :]  # logits may be of the last token alone


# --------------------------------------------------------------------------------------------
# positions


def plain(positions: Positions) -> Plain:
    """Positions as an edit holds them; UserError for what they cannot be."""
    if positions is None or (isinstance(positions, str) and STRETCH.fullmatch(positions)):
        return positions
    several = (positions,) if isinstance(positions, int) else positions
    is_list = not isinstance(several, str) and all(type(item) is int for item in several)
    need(
        is_list,
        f"positions is {positions!r}; give a number, several such as (2, 3), or a "
        'stretch such as "5:".',
    )
    return tuple(several)  # type: ignore[arg-type]


def lengths(reading: Reading, source: bool) -> list[int] | None:
    """Token count of each text; None while unknown."""
    rows = reading.sources if source else reading.rows
    return None if rows is None else [len(row) for row in rows]


def within(reading: Reading, positions: Plain, source: bool = False) -> Within | None:
    """A function that tells these positions; None for none at all. UserError for those that a text
    does not have."""
    if positions is None:
        return lambda pos: pos >= 0
    if isinstance(positions, str):
        low, high = STRETCH.fullmatch(positions).groups()  # type: ignore[union-attr]
        start, end = (
            None if bound is None else counted(reading, int(bound), source, True)
            for bound in (low, high)
        )

        def inside(pos: Tensor) -> Tensor:
            inside_range = pos >= (start or 0)
            return inside_range if end is None else inside_range & (pos < end)

        return inside
    columns = [counted(reading, position, source) for position in positions]
    return (
        (lambda pos: torch.isin(pos, torch.tensor(columns, device=pos.device))) if columns else None
    )


def counted(reading: Reading, position: int, source: bool = False, border: bool = False) -> int:
    """A position from the beginning; a ``border`` may lie behind the last one."""
    sizes = lengths(reading, source)
    side = "source" if source else "text"
    if position < 0:
        equal_lengths = sizes is not None and len(set(sizes)) == 1
        need(
            equal_lengths,
            f"Position {position} counts from the end of one text; these are "
            "several: count from 0.",
        )
        assert sizes is not None
        need(position + sizes[0] >= 0, _no_position(position, sizes[0], side))
        return position + sizes[0]
    context = reading.model.config.context
    size = context if sizes is None or (reading.grows and not source) else max(sizes)
    need(border or position < size, _no_position(position, size, side))
    return position


def _no_position(position: int, size: int, side: str) -> str:
    return (
        f"There is no position {position}: the {side} has at most {size} tokens, 0 to {size - 1}."
    )


# --------------------------------------------------------------------------------------------
# selection


def head_of(reading: Reading, path: str, head: int | None) -> None:
    """UserError unless this head exists."""
    if head is None:
        return
    shape = reading.shapes[path]
    need(
        headed(path, len(shape)),
        f"{path} has no heads; those that have are called {', '.join(HEADED)}.",
    )
    heads = shape[1]
    need(
        type(head) is int and 0 <= head < heads,
        f"{path} has no head {head!r}; it has heads 0 to {heads - 1}.",
    )


def chooser(
    reading: Reading,
    path: str,
    positions: Plain = None,
    head: int | None = None,
    index: int | tuple[int, ...] | None = None,
) -> Choose | None:
    """Which cells of a value are meant, of all heads and the whole last axis unless said; None
    where none are."""
    shape = reading.shapes[path]
    head_of(reading, path, head)
    several = (index,) if isinstance(index, int) else index
    for item in several or ():
        available = f"its last axis has 0 to {shape[-1] - 1}"
        grows = path.endswith((".scores", ".pattern"))
        need(
            type(item) is int and item >= 0 and (grows or item < shape[-1]),
            f"{path} has no index {item!r}; {available}.",
        )
    is_inside = None if positions is None else within(reading, positions, of_source(reading, path))
    if several == () or (positions is not None and is_inside is None):
        return None
    if positions is not None:
        position_axis(path, len(shape))

    def choose(path: str, x: Tensor, place: Place) -> Tensor | None:
        chosen: Tensor | None = None
        if is_inside is not None:
            inside = is_inside(positions_of(path, x, place))  # (B or 1, T)
            axis = position_axis(path, x.ndim)
            chosen = inside.view(
                inside.shape[0], *([1] * (axis - 1)), inside.shape[1], *([1] * (x.ndim - axis - 1))
            )
        if head is not None:
            chosen = both(
                chosen, (torch.arange(x.shape[1], device=x.device) == head)[:, None, None]
            )
        if several is not None:
            chosen = both(
                chosen,
                torch.isin(
                    torch.arange(x.shape[-1], device=x.device),
                    torch.tensor(several, device=x.device),
                ),
            )
        return chosen

    return choose


def both(first: Tensor | None, second: Tensor) -> Tensor:
    """Logical and of two masks; None is true everywhere."""
    return second if first is None else first & second


def put(x: Tensor, new: Tensor, chosen: Tensor | None) -> Tensor:
    """``x`` with ``new`` in the cells that are chosen, laid out in memory like ``x``: products are
    rounded the same."""
    overlaps = any(
        stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape, strict=True)
    )
    out = (
        torch.empty_like(x)
        if overlaps
        else torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    )
    return out.copy_(new.to(x.dtype) if chosen is None else torch.where(chosen, new.to(x.dtype), x))
