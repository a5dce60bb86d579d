"""``glassformer heads``: what each attention head does, as numbers beside a baseline."""

from __future__ import annotations

import argparse

from ..errors import need
from .common import MODEL_HELP, add_device_options, load_model, note, note_untrained, print_json

EXAMPLES = (
    "glassformer heads out/mine",
    "glassformer heads out/mine --sort induction --top 5",
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "--sort",
        metavar="SCORE",
        help="the highest first: previous, induction, duplicate, first, norm ..",
    )
    parser.add_argument("--top", type=int, metavar="N", help="only the first N")
    parser.add_argument(
        "--draws", type=int, default=8, metavar="N", help="random texts to measure on (8)"
    )
    parser.add_argument(
        "--length", type=int, default=32, metavar="L", help="tokens that come twice in each (32)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (0)")
    add_device_options(parser)
    parser.add_argument(
        "--json", action="store_true", help="every number, with its baseline and deviation, as JSON"
    )


def run(args: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    from .. import inspection

    need(args.top is None or args.top > 0, f"--top is {args.top}; give 1 or more.")
    model, tokenizer = load_model(args)
    note_untrained(args.model)
    scores = inspection.head_scores(
        model, tokenizer, draws=args.draws, length=args.length, seed=args.seed
    )
    scores = scores.sorted(args.sort) if args.sort else scores
    if args.top is not None:
        scores = scores.first(args.top)
    if args.json:
        print_json(scores.to_dict())
        return
    print("\n".join(scores.table()))
    note(
        f"{scores.length} random tokens twice, {scores.draws} draws; the weight on the first token "
        "is taken away first. "
        "A label is a score more than 3 deviations above its baseline: not what the head is for."
    )
