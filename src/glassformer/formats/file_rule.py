"""A rule of weight names for files whose rows lie otherwise than published ones. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..families.names import NameRule


@dataclass(frozen=True)
class FileRule(NameRule):
    """A rule whose tensors hold the rows of a weight in another order, or shared out.

    ``order``: which row of the file's tensor is each row of ours. ``first_rows``: ``file_name`` holds
    two names with a space between, and each of the ``heads`` deals its rows out to their tensors,
    to the first so many, whose matrices lie transposed there, to the second the others.
    """

    order: tuple[int, ...] = ()
    first_rows: int = 0

    def join(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """The tensor of our rows, made of the file's."""
        if self.first_rows:
            first, second = tensors
            rows = second.new_empty(len(second), self.first_rows + second.shape[1], second.shape[2])
            rows[:, : self.first_rows] = first.transpose(1, 2)
            rows[:, self.first_rows :] = second
            return [rows.flatten(0, 1)]
        return [tensors[0][list(self.order)]] if self.order else tensors

    def deal(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """The file's tensors, made of that of our rows."""
        (rows,) = tensors
        if self.first_rows:
            heads = rows.reshape(self.heads, -1, rows.shape[-1])
            return [heads[:, : self.first_rows].transpose(1, 2), heads[:, self.first_rows :]]
        if self.order and not rows.is_meta:
            return [rows[sorted(range(len(rows)), key=self.order.__getitem__)]]
        return tensors
