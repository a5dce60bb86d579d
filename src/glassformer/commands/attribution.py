"""``glassformer attribution``: what each part of a model added to a logit."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from ..errors import need, note
from .common import (
    MODEL_HELP,
    add_device_options,
    add_edit_option,
    edits_suffix,
    load_model_and_tokenizer,
    parse_edits,
    print_json,
    print_table,
    texts,
)

EXAMPLES = (
    'glassformer attribution out/mine "The cat sat on the"',
    'glassformer attribution out/mine "The cat sat on the" --token " mat" --against " hat"',
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("text", metavar="TEXT", help="what the model reads; - is standard input")
    parser.add_argument("--source", metavar="TEXT", help="what an encoder-decoder's encoder reads")
    parser.add_argument(
        "--token",
        metavar="WORD",
        help="whose logit: a token, or a label by name or number (the likeliest)",
    )
    parser.add_argument("--against", metavar="WORD", help="less the logit of this one")
    parser.add_argument(
        "--position", type=int, metavar="N", help="where it is read (a blank ___, else the last)"
    )
    parser.add_argument(
        "--of",
        choices=["logit", "label"],
        help="of a token or of a classifier's label (what there is)",
    )
    parser.add_argument(
        "--top", type=int, default=20, metavar="N", help="the N parts that added or took most (20)"
    )
    add_device_options(parser)
    add_edit_option(parser)
    parser.add_argument("--json", action="store_true", help="every part as JSON")


def run(args: argparse.Namespace) -> None:
    from .. import inspection
    from ..checkpoints import Checkpoint
    from ..inspection.attribution import answer_kind

    need(args.top >= 1, f"top is {args.top}; give 1 or more.")
    args.prompts, edits = None, parse_edits(args)
    (text,) = texts(args, [args.text])
    options = {
        name: getattr(args, name) for name in ("source", "token", "against", "position", "of")
    }
    model, tokenizer = load_model_and_tokenizer(args)
    names = (
        list(Checkpoint.open(args.model).labels) if answer_kind(model, args.of) == "label" else []
    )
    for side in ("token", "against"):
        options[side] = names.index(options[side]) if options[side] in names else options[side]
    attribution = inspection.attribute(model, tokenizer, text, **options, edits=edits)
    if names:
        attribution = replace(
            attribution,
            piece=_label(names, attribution.token),
            against_piece=_label(names, attribution.against),
        )
    if args.json:
        print_json(attribution.to_dict())
        return
    for line in attribution.notes:
        note(line)
    against = (
        ""
        if attribution.against_piece is None
        else f" less that of {attribution.against_piece.shown}"
    )
    capped = "" if attribution.capped is None else f" ({attribution.capped:.4f} after the cap)"
    place = "" if attribution.position is None else f" at position {attribution.position}"
    print(
        f"The logit of {attribution.piece.shown}{against}{place}{edits_suffix(edits)}: "
        f"{attribution.logit:.4f}{capped}\n"
    )
    print("\n".join(attribution.table(args.top)) + "\n")
    blocks = attribution.by_block()
    kinds = list(dict.fromkeys(kind for _, sums in blocks for kind in sums))
    lines = [
        (name, *(f"{sums[kind]:+.4f}" if kind in sums else "" for kind in kinds))
        for name, sums in blocks
    ]
    print_table(lines, ("", *kinds))


def _label(names: list[str], number: int | None) -> Any:
    """A label by its name."""
    from ..tokenizer.labels import Piece

    return (
        None if number is None else Piece(f"label {number}", f'label {number} ("{names[number]}")')
    )
