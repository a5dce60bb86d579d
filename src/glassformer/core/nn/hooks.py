"""The tape: named values of a forward pass, recorded or edited on the way (hook points).

A room registers what makes a tape of edits; who runs a model asks for it here (``edited``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from .. import registry


@dataclass
class Place:
    """Positions and batch rows of the values in a forward pass.

    With a cache a pass sees the new tokens alone, at their positions in the whole text.
    """

    pos: Tensor  # (B or 1, T), -1 at padding
    document_ids: Tensor | None = None  # (B, T), where several documents share a row
    # (B,) the row that each was in the first batch; None: every row is where it was
    rows: Tensor | None = None
    source_pos: Tensor | None = None  # (B or 1, S) of the encoder's output that a decoder looks at
    keys: Tensor | None = None  # (B or 1, S) of the keys of the attention under way
    visible: Callable[[], Tensor] | None = None  # its dense mask (B or 1, 1, T, S)


class PlacedEdit:
    """An edit that is told where the values stand; a plain function is not."""

    def __call__(self, path: str, x: Tensor, place: Place) -> Tensor:
        raise NotImplementedError


Edit: TypeAlias = Callable[[str, Tensor], Tensor] | PlacedEdit


class Tape:
    """Records what matches ``patterns`` and applies ``edits`` on the way.

    Patterns are shell wildcards over paths such as ``decoder.blocks.3.attn.pattern``; an edit is a
    function (path, value) -> value for every path its pattern matches. ``graph=True`` keeps the
    records attached to autograd. Recording changes no bit of what the model computes. ``place`` is
    that of the pass under way, ``rows`` what it says of rows.
    """

    def __init__(
        self, *patterns: str, edits: Mapping[str, Edit] | None = None, graph: bool = False
    ) -> None:
        self.patterns = patterns
        self.edits = dict(edits or {})
        self.graph = graph
        self.records: dict[str, Tensor] = {}
        self.place: Place | None = None
        self.rows: Tensor | None = None
        self._watched: dict[str, bool] = {}

    def __getitem__(self, path: str) -> Tensor:
        return self.records[path]

    def start_pass(self, pos: Tensor, document_ids: Tensor | None) -> None:
        """A pass over tokens at these positions (B or 1, T) begins."""
        self.place = Place(pos, document_ids, self.rows)

    def select(self, rows: Tensor) -> None:
        """Row i of the batch is from now on what row ``rows[i]`` was."""
        self.rows = rows if self.rows is None else self.rows[rows]

    def watches(self, path: str) -> bool:
        if path not in self._watched:
            self._watched[path] = any(
                fnmatchcase(path, pattern) for pattern in (*self.patterns, *self.edits)
            )
        return self._watched[path]

    def changes(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self.edits)

    def pass_through(self, path: str, x: Tensor) -> Tensor:
        """``x``, edited and recorded as asked; the very same tensor where no edit matches."""
        if not self.watches(path):
            return x
        x = self.edit(path, x)
        self.record(path, x)
        return x

    def edit(self, path: str, x: Tensor, place: Place | None = None) -> Tensor:
        """``x`` after each edit that matches ``path``; ``place`` if not the whole pass's."""
        for pattern, edit in self.edits.items():
            if not fnmatchcase(path, pattern):
                continue
            if isinstance(edit, PlacedEdit):
                current_place = place or self.place
                assert current_place is not None, "a PlacedEdit needs a pass that the model began"
                x = edit(path, x, current_place)
            else:
                x = edit(path, x)
        return x

    def record(self, path: str, x: Tensor) -> None:
        if any(fnmatchcase(path, pattern) for pattern in self.patterns):
            self.records[path] = x if self.graph else x.detach()


class ModelEdit(Protocol):
    """A change of a run: of the tokens that are read, of values on the way, or of both."""

    def read(self, reading: Any) -> None:
        """Change ``reading.rows`` and ``reading.sources``."""

    def hooks(self, reading: Any) -> Mapping[str, Callable[[str, Tensor, Place], Tensor]]:
        """A function of path, value and place for each path that changes; UserError for others."""


Ids: TypeAlias = list[list[int]] | None


def edited(
    edits: Sequence[ModelEdit | str],
    model: Any,
    rows: Ids = None,
    sources: Ids = None,
    tokenizer: Any = None,
) -> tuple[Tape | None, Ids, Ids]:
    """A tape that applies ``edits``, and the rows and sources that the model then reads.

    Without edits there is no tape, and the model runs as if nobody looked. ``rows`` are None where
    many texts are read that nobody knows yet.
    """
    if not edits:
        return None, rows, sources
    result: tuple[Tape, Ids, Ids] = registry.load("edits")[0].tape_of(
        edits, model, rows, sources, tokenizer
    )
    return result
