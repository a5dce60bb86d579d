"""``glassformer patch``: where what tells two texts apart passes through a model."""

from __future__ import annotations

import argparse

from ..errors import UserError, need
from .common import (
    MODEL_HELP,
    add_device_options,
    load_model_and_tokenizer,
    note,
    note_untrained,
    print_json,
)

EXAMPLES = (
    'glassformer patch out/mine "The dog is" "The dogs are" --answer " here" --wrong " there"',
    'glassformer patch out/mine "The dog is" "The cat is" --answer " barking" --parts z '
    "--positions all --top 20",
)


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help=MODEL_HELP)
    add("clean", metavar="CLEAN", help="the text whose values are put in")
    add("corrupted", metavar="CORRUPTED", help="the text they are put into, of as many tokens")
    add("--answer", required=True, metavar="WORD", help="the token whose logit is measured")
    add("--wrong", metavar="WORD", help="the token whose logit is taken from it")
    add(
        "--parts",
        default="resid,attn.write,ffn.write",
        metavar="P,...",
        help="values of a block; z: head by head",
    )
    add("--positions", default="each", metavar="N,...", help="each, all at once, or numbers (each)")
    add(
        "--at",
        type=int,
        metavar="N",
        help="where the answer is read (the last token; an encoder's mask)",
    )
    add(
        "--source",
        action="append",
        default=[],
        metavar="TEXT",
        help="an encoder's text; twice: clean and corrupted",
    )
    add(
        "--top",
        type=int,
        default=10,
        metavar="N",
        help="the N largest effects, below the grid (10)",
    )
    add_device_options(parser)
    add("--json", action="store_true", help="every number as JSON")


def run(args: argparse.Namespace) -> None:
    from ..inspection import patch_grid

    need(
        len(args.source) < 3,
        f"--source is given {len(args.source)} times; give it once, or for each text.",
    )
    need(args.top >= 0, f"--top is {args.top}; give 0 or more.")
    model, tokenizer = load_model_and_tokenizer(args)
    grid = patch_grid(
        model,
        tokenizer,
        args.clean,
        args.corrupted,
        answer=args.answer,
        wrong=args.wrong,
        parts=[name.strip() for name in args.parts.split(",")],
        positions=parse_positions(args.positions),
        at=args.at,
        source=tuple(args.source)
        if len(args.source) == 2
        else args.source[0]
        if args.source
        else None,
    )
    note_untrained(args.model)
    if args.json:
        print_json(grid.to_dict())
        return
    metric = f"{grid.metric} of {grid.answer}" + (
        f" less {grid.wrong}" if grid.wrong is not None else ""
    )
    note(
        f"{metric} at {grid.at}: {grid.clean_value:.4f} clean, {grid.corrupted_value:.4f} "
        "corrupted; 0 to 1 between."
    )
    print(grid.text())
    if args.top:
        print("\n" + "\n".join(grid.table(args.top)))


def parse_positions(text: str) -> str | list[int]:
    """``each``, ``all``, or ``2,3``."""
    if text in ("each", "all"):
        return text
    try:
        return [int(index) for index in text.split(",")]
    except ValueError:
        raise UserError(
            f'--positions is "{text}"; give each, all, or numbers such as 2,3.'
        ) from None
