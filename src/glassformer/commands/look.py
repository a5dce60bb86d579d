"""``glassformer look``: any named value inside the model while it reads a text."""

from __future__ import annotations

import argparse

from .common import MODEL, emit, reader

HELP = "Any named value inside the model while it reads a text."


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument("text", metavar="TEXT", help="what the model reads")
    one.add_argument("pattern", nargs="*", metavar="PATTERN", help='names, as "*.pattern"; none lists every name')
    one.add_argument("--json", action="store_true", help="every number as JSON")


def run(given: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    from .. import inspection, store

    if not given.pattern:
        print("\n".join(inspection.paths(store.load(given.model)[0])))
        return
    seen = inspection.look(*reader(given.model), given.text, *given.pattern)
    if given.json:
        emit(inspection.to_dict(seen))
    else:
        print("\n".join(inspection.describe(seen)))
