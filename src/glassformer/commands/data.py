"""``glassformer data``: a corpus: what it holds and where it lies."""

from __future__ import annotations

import argparse
from pathlib import Path

from .common import counted, emit, note, rows, unescaped

HELP = "A corpus: what it holds and where it lies."
EXAMPLES = (
    "glassformer data",
    "glassformer data python-docs",
)


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
    one.add_argument("name", nargs="?", metavar="NAME", help="a named corpus, a file or a folder; none lists the names")
    one.add_argument("--field", default="text", metavar="NAME", help="the text field of JSONL (text)")
    one.add_argument(
        "--separator", type=unescaped, metavar="TEXT", help="what parts a plain file's documents (nothing)"
    )
    one.add_argument("--json", action="store_true", help="as JSON")


def run(given: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    from .. import text
    from ..text import named

    if given.name is None:
        corpora = named.corpora()
        if given.json:
            emit([{"name": c.name, "what": c.what, "origin": c.origin, "licence": c.licence} for c in corpora])
        else:
            rows(*((c.name, f"{c.what} ({c.licence}, {c.origin})") for c in corpora))
        return
    source = text.find(given.name, given.field, given.separator)
    for line in source.notes:
        note(line)
    found = source.summary()
    if given.json:
        emit({name: str(v) if isinstance(v, Path) else v for name, v in vars(found).items()})
    else:
        pieces = f"{counted(found.documents, 'document')}, {counted(found.files, 'file')}"
        counts = f"{found.bytes:,} bytes of text in {pieces}"
        rows(("corpus", found.name), ("holds", counts), ("lies at", str(found.path)), ("from", found.origin))
        rows(("licence", found.licence))
