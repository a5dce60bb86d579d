"""Who looks at whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...core.errors import UserError, need
from ...core.nn.editing import Hook, Reading
from ...core.nn.hooks import Place
from . import places
from .base import Edit, hook_each
from .places import Choose, Positions, modules_with, put


@dataclass(frozen=True, repr=False, eq=False)
class set_attention(Edit):
    """Whom the tokens at ``query`` look at in an attention (``decoder.blocks.3.attn``, ``.cross``).

    ``weights`` is a weight for each key from position 0 on, the others then 0, or a table of
    position and weight, the others then as they were; ``renormalise`` divides a row by its sum
    afterwards. ``query`` and ``head`` None are all. What the mask hides stays hidden, and is
    refused where ``query`` names the token.
    """

    path: str
    head: int | None
    query: Positions
    weights: Mapping[int, float] | Sequence[float]
    renormalise: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "query", places.plain(self.query))

    def hooks(self, reading: Reading) -> Mapping[str, Hook]:
        weights = (
            dict(self.weights)
            if isinstance(self.weights, Mapping)
            else dict(enumerate(self.weights))
        )
        numbers = all(
            type(key) is int and isinstance(weight, int | float) and weight >= 0
            for key, weight in weights.items()
        )
        need(
            numbers and bool(weights),
            "weights are numbers of at least 0, one for each key from 0 on, or {position: "
            "weight}; give such.",
        )
        hooks: dict[str, Hook] = {}
        for module in modules_with(reading, self.path, "pattern", "attention"):
            source = reading.is_encoder_decoder and (
                module.startswith("encoder.") or module.endswith("cross")
            )
            table = {
                places.counted(reading, key, source): float(weight)
                for key, weight in weights.items()
            }
            path = f"{module}.pattern"
            hooks |= hook_each(reading, [path], partial(self._set, table), self.query, self.head)
        return hooks

    def _set(
        self, table: Mapping[int, float], choose: Choose, path: str, x: Tensor, place: Place
    ) -> Tensor:
        assert place.keys is not None
        chosen = choose(path, x, place)
        visible = place.keys[:, None, None] >= 0 if place.visible is None else place.visible()
        new = x.clone() if isinstance(self.weights, Mapping) else torch.zeros_like(x)
        for key, weight in table.items():
            cells = (place.keys == key)[:, None, None] & visible  # (B or 1, 1, T or 1, S)
            if isinstance(self.query, tuple):
                blind = (
                    chosen & ~cells.any(-1, keepdim=True)
                    if chosen is not None
                    else ~cells.any(-1, keepdim=True)
                )
                if weight and bool(blind.any()):
                    raise UserError(
                        f"A token at {self.query} may not look at position {key} in "
                        f"{path}: leave it out."
                    )
            new = torch.where(cells, torch.tensor(weight, dtype=x.dtype, device=x.device), new)
        if self.renormalise:
            new = new / new.sum(-1, keepdim=True)
        return put(x, new, chosen)
