"""``glassformer heads``: what each attention head does, as numbers beside a baseline."""

from __future__ import annotations

import argparse

from ..errors import need
from .common import MODEL, computing, emit, loaded, note, untrained

EXAMPLES = (
    "glassformer heads out/mine",
    "glassformer heads out/mine --sort induction --top 5",
)


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument(
        "--sort",
        metavar="SCORE",
        help="the highest first: previous, induction, duplicate, first, norm ..",
    )
    one.add_argument("--top", type=int, metavar="N", help="only the first N")
    one.add_argument(
        "--draws", type=int, default=8, metavar="N", help="random texts to measure on (8)"
    )
    one.add_argument(
        "--length", type=int, default=32, metavar="L", help="tokens that come twice in each (32)"
    )
    one.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (0)")
    computing(one)
    one.add_argument(
        "--json", action="store_true", help="every number, with its baseline and deviation, as JSON"
    )


def run(given: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    from .. import inspection

    need(given.top is None or given.top > 0, f"--top is {given.top}; give 1 or more.")
    model, tokenizer = loaded(given)
    untrained(given.model)
    found = inspection.head_scores(
        model, tokenizer, draws=given.draws, length=given.length, seed=given.seed
    )
    found = found.sorted(given.sort) if given.sort else found
    if given.top is not None:
        found = found.first(given.top)
    if given.json:
        emit(found.to_dict())
        return
    print("\n".join(found.table()))
    note(
        f"{found.length} random tokens twice, {found.draws} draws; the weight on the first token "
        "is taken away first. "
        "A label is a score more than 3 deviations above its baseline: not what the head is for."
    )
