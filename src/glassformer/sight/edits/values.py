"""Values by their paths: scaled, set, patched from another run, moved in a direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from ...core.errors import need
from ...core.nn.editing import Hook, Reading
from ...core.nn.hooks import Place
from . import donors, places
from .base import Edit, hook_each, setting, several
from .places import Choose, Positions, put


@dataclass(frozen=True, repr=False)
class scale(Edit):
    """A value times ``factor``: all of it, or at ``positions``, of one ``head``, at ``index`` on
    its last axis."""

    path: str
    factor: float
    positions: Positions = None
    head: int | None = None
    index: int | tuple[int, ...] | None = None

    def hooks(self, reading: Reading) -> Mapping[str, Hook]:
        def times(choose: Choose, path: str, x: Tensor, place: Place) -> Tensor:
            return put(x, x * self.factor, choose(path, x, place))

        need(isinstance(self.factor, int | float), f"factor is {self.factor!r}; give a number.")
        paths = places.values(reading, self.path)
        return hook_each(reading, paths, times, self.positions, self.head, several(self.index))


@dataclass(frozen=True, repr=False, eq=False)
class set_value(Edit):
    """A value becomes ``value``, a number or one for each place of the last axis or ``index``;
    where as in scale."""

    path: str
    value: float | Sequence[float] | Tensor
    positions: Positions = None
    head: int | None = None
    index: int | tuple[int, ...] | None = None

    def hooks(self, reading: Reading) -> Mapping[str, Hook]:
        index = several(self.index)
        hooks = dict[str, Hook]()
        for path in places.values(reading, self.path):
            value = donors.filled(reading, path, self.value, index)
            hooks |= hook_each(reading, [path], setting(value), self.positions, self.head, index)
        return hooks


@dataclass(frozen=True, repr=False, eq=False)
class steer(Edit):
    """``scale`` times a direction added to a value (Turner et al. 2023), everywhere or at
    ``positions``.

    ``vector`` has a number for each place of the last axis, or is two texts: what the value is at
    the last token of the first, less what it is at that of the second.
    """

    path: str
    vector: Sequence[float] | Tensor | tuple[str, str]
    scale: float = 1.0
    positions: Positions = None
    head: int | None = None

    def hooks(self, reading: Reading) -> Mapping[str, Hook]:
        hooks: dict[str, Hook] = {}
        for path in places.values(reading, self.path):
            direction = donors.direction(reading, path, self.vector, self.head)
            hooks |= hook_each(
                reading, [path], partial(self._add, direction), self.positions, self.head
            )
        return hooks

    def _add(self, direction: Tensor, choose: Choose, path: str, x: Tensor, place: Place) -> Tensor:
        return put(x, x + self.scale * direction.to(x), choose(path, x, place))


@dataclass(frozen=True, repr=False, eq=False)
class patch(Edit):
    """A value becomes what it was in another run, at ``positions`` or at all that the other run
    has.

    ``values`` is what look gave, a trace, a tensor of the path's own shape, or a text that the
    model then reads (``source`` beside it; None: the source of this run). ``from_positions`` are
    the other run's, in the same order, where they differ.
    """

    path: str
    values: Any
    positions: Positions = None
    from_positions: Positions = None
    head: int | None = None
    source: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "from_positions", places.plain(self.from_positions))

    def hooks(self, reading: Reading) -> Mapping[str, Hook]:
        hooks: dict[str, Hook] = {}
        for path in places.values(reading, self.path):
            donor = donors.values_of(reading, path, self.values, self.source)
            taken = donors.taken(reading, path, donor, self.positions, self.from_positions)  # type: ignore[arg-type]
            hooks |= hook_each(
                reading, [path], partial(self._patch, taken), self.positions, self.head
            )
        return hooks

    def _patch(
        self, taken: donors.Taken, choose: Choose, path: str, x: Tensor, place: Place
    ) -> Tensor:
        new, is_patched = taken(path, x, place)
        chosen = choose(path, x, place)
        return put(x, new, is_patched if chosen is None else is_patched & chosen)
