"""Values inside the model that requests ask for, as an engine's steps record them piece by piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ...core.nn import Tape
from ...sight.axes import HEADED, joined


class RecordedValues(NamedTuple):
    """Values of the tokens from place ``start`` on by path: (1, T, ...), (1, H, T, ...), of
    patterns (1, H, T, S)."""

    start: int
    values: dict[str, Tensor]


def token_axis(path: str) -> int:
    """Axis of a recorded value along which its tokens lie."""
    return 2 if path.rpartition(".")[2] in HEADED else 1


def concatenate(pieces: Sequence[RecordedValues]) -> RecordedValues:
    """Joins consecutive pieces; later tokens of a pattern have more keys."""
    values = {}
    for path in pieces[0].values if len(pieces) > 1 else ():
        values_by_piece = [piece.values[path] for piece in pieces]
        values[path] = joined(path, values_by_piece, token_axis(path))
    if len(pieces) > 1:
        return RecordedValues(pieces[0].start, values)
    return pieces[0]


class Look:
    """Tape of one continuation with the values that nobody took yet; ``next`` is the first place to
    be recorded."""

    def __init__(self, patterns: Sequence[str], edits: Mapping[str, Any], since: int = 0) -> None:
        self.tape = Tape(*patterns, edits=edits)
        self.next = since
        self.pieces: list[RecordedValues] = []
        self.error: Exception | None = None  # of an edit

    def keep(self, start: int, length: int) -> None:
        """Keeps the values of a chunk of ``length`` tokens from place ``start`` on, without those
        recorded before."""
        recorded = max(0, self.next - start)
        self.next = max(self.next, start + length)
        if self.tape.records and recorded < length:
            cut = {
                path: x.narrow(token_axis(path), recorded, length - recorded).clone()
                for path, x in self.tape.records.items()
            }
            self.pieces.append(RecordedValues(start + recorded, cut))
        self.tape.records.clear()
