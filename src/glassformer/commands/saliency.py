"""``glassformer saliency``: what an answer owes to each token of the text."""

from __future__ import annotations

import argparse

from ..errors import note
from .common import (
    MODEL_HELP,
    add_device_options,
    add_edit_option,
    edits_suffix,
    load_model_and_tokenizer,
    parse_edits,
    print_json,
    texts,
)

EXAMPLES = (
    'glassformer saliency out/mine "The cat sat on the"',
    'glassformer saliency out/labels "a dull film" --of label --label 0 --baseline pad',
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("text", metavar="TEXT", help="what the model reads; - is standard input")
    parser.add_argument("--source", metavar="TEXT", help="what an encoder-decoder's encoder reads")
    parser.add_argument("--token", metavar="WORD", help="whose logit: one token (the likeliest)")
    parser.add_argument(
        "--position", type=int, metavar="N", help="where it is read (a blank ___, else the last)"
    )
    parser.add_argument(
        "--of",
        choices=["logit", "logprob", "label"],
        help="which answer (logit; a classifier's label)",
    )
    parser.add_argument(
        "--label", type=int, metavar="N", help="with --of label: which one (the likeliest)"
    )
    parser.add_argument(
        "--baseline",
        choices=["mean", "zero", "pad"],
        default="mean",
        help="where integrated gradients begin (mean)",
    )
    parser.add_argument(
        "--steps", type=int, default=50, metavar="N", help="points between there and the text (50)"
    )
    add_device_options(parser)
    add_edit_option(parser)
    parser.add_argument("--json", action="store_true", help="every number as JSON")


def run(args: argparse.Namespace) -> None:
    from .. import inspection

    args.prompts, edits = None, parse_edits(args)
    (text,) = texts(args, [args.text])
    names = ("source", "token", "position", "of", "label", "baseline", "steps")
    options = {name: getattr(args, name) for name in names}
    saliency = inspection.saliency(*load_model_and_tokenizer(args), text, **options, edits=edits)
    if args.json:
        print_json(saliency.to_dict())
        return
    note(
        f"Integrated gradients begin at {saliency.baseline} and go through {saliency.steps} points of "
        "Gauss and Legendre."
    )
    place = "" if saliency.position is None else f" at position {saliency.position}"
    quantity = f"{saliency.of} of {saliency.piece.shown}{place}{edits_suffix(edits)}"
    print(f"The {quantity}: {saliency.value:.4f}, at the baseline {saliency.at_baseline:.4f}\n")
    print("\n".join(saliency.table()))
    change = abs(saliency.value - saliency.at_baseline)
    share = f", {abs(saliency.gap) / change:.2%} of the change" if change else ""
    print(f"\nsum of the integrated gradients {saliency.sum:.4f}, gap {saliency.gap:+.2e}{share}")
