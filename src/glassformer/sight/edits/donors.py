"""What a value becomes: numbers, what it was in another run, a direction between two texts.

B batch, T tokens, S keys, R rows of another run, U its tokens, C the last axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor

from ...core.errors import UserError, need
from ...core.nn.editing import Reading
from ...core.nn.hooks import Place
from ..looking import look
from . import places


def filled(
    reading: Reading, path: str, value: Any, index: tuple[int, ...] | None
) -> float | Tensor:
    """``value`` as it fills the last axis of a value, or its places ``index``; UserError for too
    few or too many."""
    if isinstance(value, int | float):
        return float(value)
    tensor = as_tensor(value, "value")
    size = reading.shapes[path][-1]
    expected = size if index is None else len(index)
    message = (
        f"value has {tuple(tensor.shape)} numbers and {path} takes {expected}; give as "
        "many, or one number."
    )
    need(tensor.shape == (expected,) and not path.endswith((".scores", ".pattern")), message)
    if index is None:
        return tensor
    wide = tensor.new_zeros(size)
    wide[list(index)] = tensor
    return wide


def as_tensor(value: Any, name: str) -> Tensor:
    """Numbers as a tensor; UserError for anything else."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(
            f"{name} holds no numbers but {type(value).__name__}; give a list of numbers or a "
            "tensor."
        ) from None


def values_of(reading: Reading, path: str, values: Any, source: Any) -> Tensor:
    """The value of a path in another run, (R, .., U, ..); UserError where it has none, or one of
    another shape."""
    if isinstance(values, str):
        tensor = _seen(reading, path, values, source)
    elif isinstance(values, Tensor):
        tensor = values
    else:
        try:
            tensor = values[path]
        except (KeyError, UserError, TypeError):
            names = list(values) if isinstance(values, Mapping) else []
            near = get_close_matches(path, names, n=1, cutoff=0.3)
            has = f" It has {near[0]}." if near else ""
            raise UserError(
                f'What is patched from has no value "{path}".{has} Record it with look.'
            ) from None
    shape = reading.shapes[path]
    tensor = as_tensor(tensor, path).detach()
    tensor = tensor[None] if tensor.ndim == len(shape) - 1 else tensor
    free = {0, places.position_axis(path, len(shape)), *([3] if _keyed(path) else [])}
    fits = tensor.ndim == len(shape) and all(
        actual == expected
        for axis, (actual, expected) in enumerate(zip(tensor.shape, shape, strict=True))
        if axis not in free
    )
    expected_shape = "x".join("*" if axis in free else str(size) for axis, size in enumerate(shape))
    actual_shape = "x".join(map(str, tensor.shape))
    need(
        fits,
        f"{path} is {expected_shape} here and {actual_shape} in what is patched from; "
        "give a run of this model.",
    )
    rows = reading.rows
    many = len(tensor) == 1 or rows is None or len(tensor) == len(rows)
    need(
        many,
        f"{path} is of {len(tensor)} texts and {len(rows or ())} are read; give one, or as many.",
    )
    return tensor


def _keyed(path: str) -> bool:
    return path.endswith((".scores", ".pattern"))


def _seen(reading: Reading, path: str, text: str, source: Any) -> Tensor:
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


@dataclass(frozen=True)
class Taken:
    """Another run's value (R, .., U, ..), and which of its columns stands for each position, -1 for
    none."""

    value: Tensor
    column: Tensor  # (the last position + 1,)

    def __call__(self, path: str, x: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        """New value of each cell of ``x``, and a mask of the cells that change, broadcast."""
        axis = places.position_axis(path, x.ndim)
        value = self.value.to(x.device)
        column = self._column(places.positions_of(path, x, place))  # (B or 1, T)
        value = value.movedim(axis, 1)  # (R, U, ..)
        if len(value) > 1:
            document_rows = (
                torch.arange(len(x), device=x.device) if place.rows is None else place.rows
            )
            new = value[document_rows[:, None], column.clamp(min=0)]
        else:
            new = value[0, column.clamp(min=0)]
        new = new.movedim(1, axis)
        if _keyed(path):
            assert place.keys is not None
            # (B or 1, 1, 1, S)
            key = torch.where(place.keys < value.shape[-1], place.keys, -1)[:, None, None]
            shape = (max(len(new), len(key)), *new.shape[1:3], key.shape[-1])
            new = new.expand(shape[0], -1, -1, -1).gather(3, key.clamp(min=0).expand(shape))
            new = new.masked_fill(key < 0, float("-inf") if path.endswith(".scores") else 0.0)
        is_real = column >= 0
        return new, is_real.view(
            is_real.shape[0], *([1] * (axis - 1)), is_real.shape[1], *([1] * (x.ndim - axis - 1))
        )

    def _column(self, pos: Tensor) -> Tensor:
        column = self.column.to(pos.device)
        size = len(self.column)
        return torch.where((pos >= 0) & (pos < size), column[pos.clamp(0, size - 1)], -1)


def taken(
    reading: Reading,
    path: str,
    values: Tensor,
    positions: tuple[int, ...] | str | None,
    value_positions: tuple[int, ...] | str | None,
) -> Taken:
    """Which position takes which of ``given``; UserError where they do not correspond."""
    size = values.shape[places.position_axis(path, values.ndim)]
    source = places.of_source(reading, path)
    texts = places.lengths(reading, source)
    if value_positions is not None:
        fits = (
            isinstance(value_positions, tuple)
            and isinstance(positions, tuple)
            and len(value_positions) == len(positions)
        )
        need(
            fits,
            f"from_positions is {value_positions!r} and positions {positions!r}; give as "
            "many numbers in both.",
        )
        assert isinstance(value_positions, tuple) and isinstance(positions, tuple)
        columns = [places.counted(reading, position, source) for position in positions]
        wrong = [position for position in value_positions if not -size <= position < size]
        need(
            not wrong,
            f"There is no position {wrong[:1]} in what is patched from: it has {size} tokens.",
        )
        column = torch.full((max(columns, default=0) + 1,), -1)
        column[columns] = torch.tensor(
            [position % size for position in value_positions], dtype=torch.long
        )
        return Taken(values, column)
    if positions is None and texts is not None:
        message = (
            f"What is patched from has {size} tokens and the text has {max(texts)}; give positions."
        )
        need(all(text == size for text in texts), message)
    if isinstance(positions, tuple):
        beyond = [
            position for position in positions if places.counted(reading, position, source) >= size
        ]
        need(
            not beyond,
            f"There is no position {beyond[:1]} in what is patched from: it has {size} tokens.",
        )
    return Taken(values, torch.arange(size))


def direction(reading: Reading, path: str, vector: Any, head: int | None) -> Tensor:
    """A direction in the last axis of a value (C,), or for each head (H, 1, C); of two texts, their
    difference."""
    if isinstance(vector, Sequence) and any(isinstance(item, str) for item in vector):
        two = len(vector) == 2 and all(isinstance(item, str) for item in vector)
        need(two, f"vector is {vector!r}; give numbers, or two texts.")
        axis = places.position_axis(path, len(reading.shapes[path]))
        to, back = (_seen(reading, path, text, None).select(axis, -1)[0] for text in vector)
        apart = to - back
        return apart if apart.ndim == 1 else apart.unsqueeze(1 if axis == 2 else 0)
    tensor = as_tensor(vector, "vector")
    size = reading.shapes[path][-1]
    need(
        tensor.shape == (size,),
        f"vector has {tuple(tensor.shape)} numbers and {path} takes {size}; give as many.",
    )
    return tensor
