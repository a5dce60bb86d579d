"""``glassformer contexts``: one word in two texts, layer by layer."""

from __future__ import annotations

import argparse

from ..errors import need, note
from .common import MODEL, computing, emit, model_and_tokenizer

EXAMPLES = (
    'glassformer contexts out/mine bank "We sat on the river bank." "He took it to the bank."',
)


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument("word", metavar="WORD", help="a word that both texts have")
    one.add_argument("text", nargs="*", metavar="TEXT", help="the two texts")
    computing(one)
    one.add_argument("--json", action="store_true", help="the cosines as JSON")


def run(given: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    need(len(given.text) == 2, f"There are {len(given.text)} texts; give two that have the word.")
    from .. import inspection

    found = inspection.word_in_contexts(*model_and_tokenizer(given), given.word, *given.text)
    if given.json:
        emit(found.to_dict())
        return
    for line in found.notes:
        note(line)
    for text, places, pieces in zip(found.texts, found.positions, found.pieces, strict=True):
        print(
            "  ".join(
                f"{place}:{piece.shown}" for place, piece in zip(places, pieces, strict=True)
            ),
            f"  in: {text}",
        )
    print("\ncosine of the word's two vectors, and of the word with the other text's other words\n")
    print("\n".join(found.table()))
