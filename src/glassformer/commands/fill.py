"""``glassformer fill``: what an encoder puts in the blanks of a text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ..core.errors import need
from .options import ModelOptions, Texts
from .parsing import CommandOutput, Count
from .sources import Prompts

EXAMPLES = ('glassformer fill tiny-encoder "There was a little ___ named Lily."',)


def run(
    options: ModelOptions,
    text: Texts = (),
    *,
    prompts: Prompts = (),
    top: Count = 5,
    order: Literal["apart", "left", "sure"] = "apart",
) -> Iterator[CommandOutput]:
    """Fills the blanks of each text.

    text TEXT: such as "The capital of France is ___."; - is standard input
    top N: the N likeliest tokens
    order: several blanks: each alone (apart), or together from the left or the surest first (apart)
    json: tokens and probabilities as JSON
    """
    from ..tasks import predictions

    texts = [*text, *prompts]
    need(bool(texts), "There is no text; give at least one.")
    model, tokenizer = options.load_with_tokenizer()
    for number, sentence in enumerate(texts):
        blanks = predictions.fill(model, tokenizer, sentence, top=top, order=order)
        lines = [f"{chr(10) if number else ''}{sentence}"] if len(texts) > 1 else []
        for place, candidates in enumerate(blanks, 1):
            if len(blanks) > 1:
                lines.append(f"blank {place}")
            for filled in candidates:
                words = " ".join(filled.words)
                lines.append(f"{filled.probability:8.4f}  {words:16} {filled.text}")
        yield CommandOutput([[filled.to_dict() for filled in blank] for blank in blanks], lines)
