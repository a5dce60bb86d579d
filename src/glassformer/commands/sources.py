"""The corpora and examples that commands read."""

from __future__ import annotations

from typing import Any

from .common import note_all


def find_corpus(name: str, field: str = "text", separator: str | None = None) -> Any:
    """Returns the corpus of this name; notes what its files may mean otherwise."""
    from ..formats.data import find

    corpus = find(name, field, separator)
    note_all(corpus.notes)
    return corpus


def read_examples(
    data: Any, target: str | None, objective: Any, columns: dict[str, str] | None, **options: Any
) -> Any:
    """Returns the examples of a file, or of one of sources and one of targets; notes what the files
    may mean otherwise."""
    from ..tasks import examples

    place = data if target is None else {"source": data, "target": target}
    table = examples.read_examples(place, objective, columns=columns or {}, **options)
    note_all(table.notes)
    return table
