"""Values by their paths: scaled, set, patched from another run, moved in a direction.

B batch, T tokens, S keys, R rows of another run, U its tokens, C the last axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...core.errors import UserError, need
from ...core.nn.hooks import Place
from ..axes import keyed, of_source
from ..linear_probes import Probe
from ..looking import look
from ..reading import Reading
from ..streams import random_direction
from .base import (
    Change,
    Edit,
    Plain,
    Positions,
    along,
    counted,
    lengths,
    plain,
    position_axis,
    positions_of,
    several,
)


@dataclass(frozen=True, repr=False)
class scale(Edit):
    """A value times ``factor``: all of it, or at ``positions``, of one ``head``, at ``index`` on
    its last axis."""

    path: str
    factor: float
    positions: Positions = None
    head: int | None = None
    index: int | tuple[int, ...] | None = None

    def change(self, reading: Reading, path: str) -> Change:
        need(isinstance(self.factor, int | float), f"factor is {self.factor!r}; give a number.")
        return lambda path, x, place, chosen: x * self.factor


@dataclass(frozen=True, repr=False, eq=False)
class set_value(Edit):
    """A value becomes ``value``, a number or one for each place of the last axis or ``index``;
    where as in scale."""

    path: str
    value: float | Sequence[float] | Tensor
    positions: Positions = None
    head: int | None = None
    index: int | tuple[int, ...] | None = None

    def change(self, reading: Reading, path: str) -> Change:
        value = torch.as_tensor(self._filled(reading, path))
        return lambda path, x, place, chosen: value.to(x.device)

    def _filled(self, reading: Reading, path: str) -> float | Tensor:
        """The value as it fills the last axis; UserError for too few or too many numbers."""
        if isinstance(self.value, int | float):
            return float(self.value)
        tensor = _as_tensor(self.value, "value")
        places = several(self.index)
        size = reading.shapes[path][-1]
        expected = size if places is None else len(places)
        need(
            tensor.shape == (expected,) and not keyed(path),
            f"value has {tuple(tensor.shape)} numbers and {path} takes {expected}; give as "
            "many, or one number.",
        )
        if places is None:
            return tensor
        wide = tensor.new_zeros(size)
        wide[list(places)] = tensor
        return wide


@dataclass(frozen=True, repr=False, eq=False)
class steer(Edit):
    """``scale`` times a direction added to a value (Turner et al. 2023), everywhere or at
    ``positions``.

    ``vector`` has a number for each place of the last axis, or is two texts: what the value is at
    the last token of the first, less what it is at that of the second. Or it is a probe, by its file:
    its direction ``toward`` a label (the last), from the mean of all texts to the mean of the label's.
    ``random`` seeds a direction of the same length to compare with.
    """

    path: str
    vector: str | Probe | Sequence[float] | Tensor | tuple[str, str]
    scale: float = 1.0
    positions: Positions = None
    head: int | None = None
    toward: str | None = None
    random: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.vector, str):
            object.__setattr__(self, "vector", Probe.load(self.vector))

    def read(self, reading: Reading) -> None:
        if isinstance(self.vector, Probe):
            self.vector.must_fit(reading.model)

    def change(self, reading: Reading, path: str) -> Change:
        direction = self._seeded(reading, path)
        return lambda path, x, place, chosen: x + self.scale * direction.to(x)

    def _seeded(self, reading: Reading, path: str) -> Tensor:
        """The direction, or the random one of its length."""
        direction = self._direction(reading, path)
        return direction if self.random is None else random_direction(direction, self.random)

    def _of_probe(self, reading: Reading, path: str, probe: Probe, kind: str) -> Tensor:
        """Numbers of a probe in the sides of a token: (1, C), or (H, 1, D) of a value with heads."""
        return probe.tensor(path, kind, self.toward).view(reading.shapes[path][1:])

    def _direction(self, reading: Reading, path: str) -> Tensor:
        """A direction in the last axis of a value (C,), or for each head (H, 1, C)."""
        if isinstance(self.vector, Probe):
            return self._of_probe(reading, path, self.vector, "direction")
        vector = self.vector
        if isinstance(vector, Sequence) and any(isinstance(item, str) for item in vector):
            need(
                len(vector) == 2 and all(isinstance(item, str) for item in vector),
                f"vector is {vector!r}; give numbers, or two texts.",
            )
            axis = position_axis(path, len(reading.shapes[path]))
            to, back = (
                _recorded(reading, path, str(text), None).select(axis, -1)[0] for text in vector
            )
            apart = to - back
            if apart.ndim == 1:
                return apart
            return apart.unsqueeze(1 if axis == 2 else 0)
        tensor = _as_tensor(vector, "vector")
        size = reading.shapes[path][-1]
        need(
            tensor.shape == (size,),
            f"vector has {tuple(tensor.shape)} numbers and {path} takes {size}; give as many.",
        )
        return tensor


class project_out(steer):
    """A direction taken out of a value (directional ablation), ``scale`` of it, where as in steer.
    Along it the value becomes the mean of the texts of a probe, else 0."""

    def change(self, reading: Reading, path: str) -> Change:
        direction, mean = self._seeded(reading, path), torch.zeros(())
        if isinstance(self.vector, Probe):
            mean = self._of_probe(reading, path, self.vector, "mean")
        unit: Tensor = direction / direction.norm()
        axes = (-3, -1) if unit.ndim == 3 else (-1,)

        def removed(path: str, x: Tensor, place: Place, chosen: Tensor | None) -> Tensor:
            length = ((x - mean.to(x)) * unit.to(x)).sum(axes, keepdim=True)
            return x - self.scale * length * unit.to(x)

        return removed


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
        object.__setattr__(self, "from_positions", plain(self.from_positions))

    def change(self, reading: Reading, path: str) -> Change:
        values = self._values(reading, path)
        size = values.shape[position_axis(path, values.ndim)]
        return partial(_taken, values, self._columns(reading, path, size))

    def _values(self, reading: Reading, path: str) -> Tensor:
        """The value of a path in the other run, (R, .., U, ..); UserError where it has none, or one
        of another shape."""
        if isinstance(self.values, str):
            value: Any = _recorded(reading, path, self.values, self.source)
        elif isinstance(self.values, Tensor):
            value = self.values
        else:
            try:
                value = self.values[path]
            except (KeyError, UserError, TypeError):
                names = list(self.values) if isinstance(self.values, Mapping) else []
                near = get_close_matches(path, names, n=1, cutoff=0.3)
                has = f" It has {near[0]}." if near else ""
                raise UserError(
                    f'The other run has no value "{path}".{has} Record it with look.'
                ) from None
        shape = reading.shapes[path]
        tensor = _as_tensor(value, path).detach()
        tensor = tensor[None] if tensor.ndim == len(shape) - 1 else tensor
        free = {0, position_axis(path, len(shape)), *([3] if keyed(path) else [])}
        expected = ["*" if axis in free else str(size) for axis, size in enumerate(shape)]
        actual = ["*" if axis in free else str(size) for axis, size in enumerate(tensor.shape)]
        need(
            actual == expected,
            f"{path} is {'x'.join(expected)} here and {'x'.join(map(str, tensor.shape))} in the "
            "other run; give a run of this model.",
        )
        rows = reading.rows
        need(
            len(tensor) == 1 or rows is None or len(tensor) == len(rows),
            f"{path} holds {len(tensor)} texts and the model reads {len(rows or ())}; give one, or "
            "equally many.",
        )
        return tensor

    def _columns(self, reading: Reading, path: str, size: int) -> Tensor:
        """Which of the other run's columns stands for each position, -1 for none (the last position
        + 1,); UserError where they do not correspond."""
        source = of_source(reading.model, path)
        positions: Plain = self.positions  # type: ignore[assignment]
        columns = [counted(reading, at, source) for at in positions or () if isinstance(at, int)]
        donors: Any = self.from_positions
        if donors is not None:
            need(
                isinstance(donors, tuple)
                and isinstance(positions, tuple)
                and len(donors) == len(positions),
                f"from_positions is {donors!r} and positions {positions!r}; give equally many "
                "in both.",
            )
        elif positions is None:
            texts = lengths(reading, source) or [size]
            need(
                all(text == size for text in texts),
                f"The other run has {size} tokens and the text has {max(texts)}; give positions.",
            )
        wrong = [at for at in (columns if donors is None else donors) if not -size <= at < size]
        need(
            not wrong,
            f"There is no position {wrong[:1]} in the other run: it has {size} tokens.",
        )
        if donors is None:
            return torch.arange(size)
        column = torch.full((max(columns, default=0) + 1,), -1)
        column[columns] = torch.tensor(donors, dtype=torch.long) % size
        return column


def _taken(
    values: Tensor, column: Tensor, path: str, x: Tensor, place: Place, chosen: Tensor | None
) -> Tensor:
    """``x`` with the other run's ``values`` (R, .., U, ..) where these have a ``column`` for its
    position."""
    axis = position_axis(path, x.ndim)
    pos = positions_of(path, x, place)  # (B or 1, T)
    size = len(column)
    inside = (pos >= 0) & (pos < size)
    column = torch.where(inside, column.to(pos.device)[pos.clamp(0, size - 1)], -1)
    values = values.to(x.device).movedim(axis, 1)  # (R, U, ..)
    if len(values) > 1:
        rows = torch.arange(len(x), device=x.device) if place.rows is None else place.rows
        new = values[rows[:, None], column.clamp(min=0)]
    else:
        new = values[0, column.clamp(min=0)]
    new = new.movedim(1, axis)
    if keyed(path):
        assert place.keys is not None
        # (B or 1, 1, 1, S)
        key = torch.where(place.keys < values.shape[-1], place.keys, -1)[:, None, None]
        shape = (max(len(new), len(key)), *new.shape[1:3], key.shape[-1])
        new = new.expand(shape[0], -1, -1, -1).gather(3, key.clamp(min=0).expand(shape))
        new = new.masked_fill(key < 0, float("-inf") if path.endswith(".scores") else 0.0)
    return torch.where(along(path, column >= 0, x.ndim), new.to(x.dtype), x)


def _as_tensor(value: Any, name: str) -> Tensor:
    """Numbers as a tensor; UserError for anything else."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(
            f"{name} holds no numbers but {type(value).__name__}; give a list of numbers or a "
            "tensor."
        ) from None


def _recorded(reading: Reading, path: str, text: str, source: Any) -> Tensor:
    """The value while the model reads another text, beside the same source unless another is
    given."""
    need(
        reading.tokenizer is not None,
        f"A tokenizer is needed to read {text!r}; give one, or values.",
    )
    if reading.is_encoder_decoder and source is None:
        need(
            reading.sources is not None and len(reading.sources) == 1,
            "Give the source of the other run as source.",
        )
        source = (reading.sources or [[]])[0]
    return look(reading.model, reading.tokenizer, text, path, source=source)[path]
