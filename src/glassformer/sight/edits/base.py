"""What every edit is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...core.nn.editing import Hook, Reading
from ...core.nn.hooks import Place
from . import places
from .places import Choose

Change = Callable[[Choose, str, Tensor, Place], Tensor]


class Edit:
    """A change of a run; its ``repr`` is the line that makes it again, tensors apart."""

    def __post_init__(self) -> None:
        if hasattr(self, "positions"):
            object.__setattr__(self, "positions", places.plain(self.positions))

    def read(self, reading: Reading) -> None:
        """Change the tokens that are read."""

    def hooks(self, reading: Reading) -> Mapping[str, Hook]:
        """Hooks by path; UserError for what does not exist."""
        return {}

    def __repr__(self) -> str:
        args = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            must = field.default is dataclasses.MISSING
            if must or value is not field.default:
                args.append(_shown(value) if must else f"{field.name}={_shown(value)}")
        return f"{type(self).__name__}({', '.join(args)})"


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Tensor):
        return f"<{'x'.join(map(str, value.shape))} values>"
    if isinstance(value, Sequence) and len(value) <= 12:
        inside = ", ".join(map(_shown, value))
        return f"({inside}{',' * (len(value) == 1)})" if isinstance(value, tuple) else f"[{inside}]"
    if isinstance(value, Mapping) and all(isinstance(key, int) for key in value):
        return f"{{{', '.join(f'{key}: {_shown(item)}' for key, item in value.items())}}}"
    return (
        repr(value)
        if isinstance(value, int | float) or value is None
        else f"<{type(value).__name__}>"
    )


def several(index: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """An index or several as a tuple; None stays."""
    return index if index is None else (index,) if isinstance(index, int) else tuple(index)


def setting(value: float | Tensor) -> Change:
    """A change to ``value``, a number or what broadcasts."""

    def change(choose: Choose, path: str, x: Tensor, place: Place) -> Tensor:
        return places.put(x, torch.as_tensor(value, device=x.device), choose(path, x, place))

    return change


def hook_each(
    reading: Reading,
    paths: Sequence[str],
    change: Change,
    positions: Any = None,
    head: int | None = None,
    index: tuple[int, ...] | None = None,
) -> dict[str, Hook]:
    """``change`` for each path, told which cells are meant; nothing where none are."""
    chosen = {path: places.chooser(reading, path, positions, head, index) for path in paths}
    return {path: partial(change, choose) for path, choose in chosen.items() if choose is not None}
