"""``glassformer look``: any named value inside the model while it reads a text."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import UserError, need
from .common import MODEL, ascii_only, emit, reader

HELP = "Any named value inside the model while it reads a text."
EXAMPLES = (
    'glassformer look out/mine "The cat sat"',
    'glassformer look out/mine "The cat sat" "*.attn.pattern" --draw --out attention.svg',
)


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument("text", metavar="TEXT", help="what the model reads")
    one.add_argument("pattern", nargs="*", metavar="PATTERN", help='names, as "*.pattern"; none lists every name')
    one.add_argument("--source", metavar="TEXT", help="what an encoder-decoder's encoder reads")
    one.add_argument("--draw", action="store_true", help="attention as a picture, the mean of its heads")
    one.add_argument("--out", type=Path, metavar="FILE.svg", help="with --draw: write the first picture")
    one.add_argument("--json", action="store_true", help="every number as JSON")


def run(given: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    from .. import inspection, store

    need(given.draw or given.out is None, "--out is for a picture; give --draw as well.")
    if given.draw:
        draw(given)
        return
    if not given.pattern:
        print("\n".join(inspection.paths(store.load(given.model)[0])))
        return
    seen = inspection.look(*reader(given.model), given.text, *given.pattern, source=given.source)
    if given.json:
        emit(inspection.to_dict(seen))
    else:
        print("\n".join(inspection.describe(seen)))


def draw(given: argparse.Namespace) -> None:
    """Attention, word by word."""
    from .. import files, inspection

    if given.out is not None and given.out.suffix.lower() != ".svg":
        raise UserError(f"--out {given.out} is no .svg; give a name that ends in it.")
    drawn = inspection.alignments(*reader(given.model), given.text, *given.pattern, source=given.source)
    if given.out is not None:
        files.write(given.out, drawn[0].svg())
        print(given.out)
    elif given.json:
        emit([one.to_dict() for one in drawn])
    else:
        print("\n\n".join(f"{one.path}\n{one.text(ascii_only())}" for one in drawn))
