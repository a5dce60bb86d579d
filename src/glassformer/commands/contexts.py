"""``glassformer contexts``: one word in two texts, layer by layer."""

from __future__ import annotations

from ..core.errors import need
from .options import ModelOptions
from .parsing import CommandOutput, Words

EXAMPLES = (
    'glassformer contexts tiny-encoder bank "We sat on the river bank." "He took it to the bank."',
)


def run(options: ModelOptions, word: str, text: Words = ()) -> CommandOutput:
    """Compares one word's vectors in two texts.

    word WORD: a word in both texts
    text TEXT: the two texts
    json: the cosines as JSON
    """
    need(len(text) == 2, f"There are {len(text)} texts; give two texts with the word.")
    from .. import sight as inspection

    results = inspection.word_in_contexts(*options.load_with_tokenizer(), word, *text)
    lines = []
    for sentence, places, pieces in zip(
        results.texts, results.positions, results.pieces, strict=True
    ):
        tokens = [f"{place}:{piece.display}" for place, piece in zip(places, pieces, strict=True)]
        lines.append(f"{'  '.join(tokens)}   in: {sentence}")
    heading = "cosine of the word's two vectors, and of the word with the other text's other words"
    return CommandOutput(
        results.to_dict, [*lines, "", heading, "", *results.table()], results.notes
    )
