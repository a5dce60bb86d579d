"""``glassformer contexts``: one word in two texts, layer by layer."""

from __future__ import annotations

import argparse

from ..errors import need, note
from .common import MODEL_HELP, add_device_options, load_model_and_tokenizer, print_json

EXAMPLES = (
    'glassformer contexts out/mine bank "We sat on the river bank." "He took it to the bank."',
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("word", metavar="WORD", help="a word that both texts have")
    parser.add_argument("text", nargs="*", metavar="TEXT", help="the two texts")
    add_device_options(parser)
    parser.add_argument("--json", action="store_true", help="the cosines as JSON")


def run(args: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    need(len(args.text) == 2, f"There are {len(args.text)} texts; give two that have the word.")
    from .. import inspection

    results = inspection.word_in_contexts(*load_model_and_tokenizer(args), args.word, *args.text)
    if args.json:
        print_json(results.to_dict())
        return
    for line in results.notes:
        note(line)
    for text, places, pieces in zip(results.texts, results.positions, results.pieces, strict=True):
        print(
            "  ".join(
                f"{place}:{piece.shown}" for place, piece in zip(places, pieces, strict=True)
            ),
            f"  in: {text}",
        )
    print("\ncosine of the word's two vectors, and of the word with the other text's other words\n")
    print("\n".join(results.table()))
