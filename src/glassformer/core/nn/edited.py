"""Edits of a run. A room registers what makes a tape of edits; who runs a model asks for it here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from .. import registry
from .hooks import Place, Tape


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
