"""``glassformer saliency``: what an answer owes to each token of the text."""

from __future__ import annotations

import argparse

from ..errors import note
from .common import (
    MODEL,
    computing,
    editing,
    edits_of,
    emit,
    model_and_tokenizer,
    texts,
    with_edits,
)

EXAMPLES = (
    'glassformer saliency out/mine "The cat sat on the"',
    'glassformer saliency out/labels "a dull film" --of label --label 0 --baseline pad',
)


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument("text", metavar="TEXT", help="what the model reads; - is standard input")
    one.add_argument("--source", metavar="TEXT", help="what an encoder-decoder's encoder reads")
    one.add_argument("--token", metavar="WORD", help="whose logit: one token (the likeliest)")
    one.add_argument(
        "--position", type=int, metavar="N", help="where it is read (a blank ___, else the last)"
    )
    one.add_argument(
        "--of",
        choices=["logit", "logprob", "label"],
        help="which answer (logit; a classifier's label)",
    )
    one.add_argument(
        "--label", type=int, metavar="N", help="with --of label: which one (the likeliest)"
    )
    one.add_argument(
        "--baseline",
        choices=["mean", "zero", "pad"],
        default="mean",
        help="where integrated gradients begin (mean)",
    )
    one.add_argument(
        "--steps", type=int, default=50, metavar="N", help="points between there and the text (50)"
    )
    computing(one)
    editing(one)
    one.add_argument("--json", action="store_true", help="every number as JSON")


def run(given: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    from .. import inspection

    given.prompts, edits = None, edits_of(given)
    (text,) = texts(given, [given.text])
    names = ("source", "token", "position", "of", "label", "baseline", "steps")
    how = {name: getattr(given, name) for name in names}
    found = inspection.saliency(*model_and_tokenizer(given), text, **how, edits=edits)
    if given.json:
        emit(found.to_dict())
        return
    note(
        f"Integrated gradients begin at {found.baseline} and go through {found.steps} points of "
        "Gauss and Legendre."
    )
    place = "" if found.position is None else f" at position {found.position}"
    asked = f"{found.of} of {found.piece.shown}{place}{with_edits(edits)}"
    print(f"The {asked}: {found.value:.4f}, at the baseline {found.at_baseline:.4f}\n")
    print("\n".join(found.table()))
    change = abs(found.value - found.at_baseline)
    share = f", {abs(found.gap) / change:.2%} of the change" if change else ""
    print(f"\nsum of the integrated gradients {found.sum:.4f}, gap {found.gap:+.2e}{share}")
