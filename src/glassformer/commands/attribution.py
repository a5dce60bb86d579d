"""``glassformer attribution``: what each part of a model added to a logit."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from ..errors import need, note
from .common import (
    MODEL,
    computing,
    editing,
    edits_of,
    emit,
    model_and_tokenizer,
    table,
    texts,
    with_edits,
)

EXAMPLES = (
    'glassformer attribution out/mine "The cat sat on the"',
    'glassformer attribution out/mine "The cat sat on the" --token " mat" --against " hat"',
)


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument("text", metavar="TEXT", help="what the model reads; - is standard input")
    one.add_argument("--source", metavar="TEXT", help="what an encoder-decoder's encoder reads")
    one.add_argument(
        "--token",
        metavar="WORD",
        help="whose logit: a token, or a label by name or number (the likeliest)",
    )
    one.add_argument("--against", metavar="WORD", help="less the logit of this one")
    one.add_argument(
        "--position", type=int, metavar="N", help="where it is read (a blank ___, else the last)"
    )
    one.add_argument(
        "--of",
        choices=["logit", "label"],
        help="of a token or of a classifier's label (what there is)",
    )
    one.add_argument(
        "--top", type=int, default=20, metavar="N", help="the N parts that added or took most (20)"
    )
    computing(one)
    editing(one)
    one.add_argument("--json", action="store_true", help="every part as JSON")


def run(given: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    from .. import inspection
    from ..checkpoints import Checkpoint
    from ..inspection.attribution import answer_kind

    need(given.top >= 1, f"top is {given.top}; give 1 or more.")
    given.prompts, edits = None, edits_of(given)
    (text,) = texts(given, [given.text])
    asked = {
        name: getattr(given, name) for name in ("source", "token", "against", "position", "of")
    }
    model, tokenizer = model_and_tokenizer(given)
    names = (
        list(Checkpoint.open(given.model).labels) if answer_kind(model, given.of) == "label" else []
    )
    for side in ("token", "against"):
        asked[side] = names.index(asked[side]) if asked[side] in names else asked[side]
    found = inspection.attribute(model, tokenizer, text, **asked, edits=edits)
    if names:
        found = replace(
            found, piece=_label(names, found.token), against_piece=_label(names, found.against)
        )
    if given.json:
        emit(found.to_dict())
        return
    for line in found.notes:
        note(line)
    against = "" if found.against_piece is None else f" less that of {found.against_piece.shown}"
    capped = "" if found.capped is None else f" ({found.capped:.4f} after the cap)"
    place = "" if found.position is None else f" at position {found.position}"
    print(
        f"The logit of {found.piece.shown}{against}{place}{with_edits(edits)}: "
        f"{found.logit:.4f}{capped}\n"
    )
    print("\n".join(found.table(given.top)) + "\n")
    blocks = found.by_block()
    kinds = list(dict.fromkeys(kind for _, sums in blocks for kind in sums))
    shown = [
        (name, *(f"{sums[kind]:+.4f}" if kind in sums else "" for kind in kinds))
        for name, sums in blocks
    ]
    table(shown, ("", *kinds))


def _label(names: list[str], number: int | None) -> Any:
    """A label by its name."""
    from ..tokenizer.labels import Piece

    return (
        None if number is None else Piece(f"label {number}", f'label {number} ("{names[number]}")')
    )
