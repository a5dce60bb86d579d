"""``glassformer translate``: from a source text to a target text by beam search."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..errors import UserError, need, note
from ..tokenizer.labels import pieces
from .common import (
    computing,
    counting,
    editing,
    edits_of,
    emit,
    model_and_tokenizer,
    objective_of,
    reading,
    texts,
)

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer

EXAMPLES = (
    'glassformer translate out/pair "two dogs run on the beach ."',
    "glassformer translate out/pair --prompts source.txt --beams 8 --json",
)


def options(one: argparse.ArgumentParser) -> None:
    add = one.add_argument
    reading(one)
    add(
        "--beams",
        type=int,
        default=5,
        metavar="K",
        help="continuations followed at once; 1: greedy (5)",
    )
    add("--best", type=int, default=1, metavar="N", help="show the N best of each (1)")
    add(
        "--length-penalty",
        type=float,
        default=1.0,
        metavar="A",
        help="0 favours short texts, 2 long ones (1)",
    )
    add("--start", metavar="TOKENS", help='what a target begins with, ids or pieces: "</s> de_DE"')
    add("--max-new", type=int, default=200, metavar="N", help="at most N tokens (200)")
    add(
        "--cut",
        default="no",
        metavar="SIDE",
        help="what a source too long loses: end, start (refused)",
    )
    editing(one)
    computing(one)
    add(
        "--json",
        action="store_true",
        help="tokens, log-probabilities and scores as JSON, a text a line",
    )


def run(given: argparse.Namespace) -> None:
    from .. import config, generation

    sources = texts(given, given.text)
    need(all(text.strip() for text in sources), "A text is empty; give one on each line.")
    need(bool(sources), "There is no text; give at least one.")
    generation.check_beams(given.beams, given.best, given.length_penalty, given.max_new)
    need(given.batch >= 1, f"batch is {given.batch}; give 1 or more.")
    edits = edits_of(given)
    model, tokenizer = model_and_tokenizer(given)
    silent = (
        f"{given.model} is an encoder and writes no text; use `glassformer fill`, `embed` "
        "or `classify`."
    )
    need(not isinstance(model.config, config.Encoder), silent)
    objective = objective_of(given.model)
    if isinstance(model.config, config.Decoder) and objective not in ("Seq2Seq", None):
        raise UserError(
            f"{given.model} was trained with the objective {objective}, not on pairs of texts; "
            "use `glassformer "
            "generate`, or train it with the objective Seq2Seq."
        )
    told = generation.search(
        model,
        tokenizer,
        sources,
        batch=given.batch,
        progress=counting(f"of {len(sources):,} texts") if len(sources) > given.batch else None,
        beams=given.beams,
        best=given.best,
        length_penalty=given.length_penalty,
        max_new=given.max_new,
        cut=given.cut,
        edits=edits,
        start=None if given.start is None else tokens_of(given.start, tokenizer),
    )
    for text, found in zip(sources, told, strict=True):
        if given.json:
            best = [{**one.to_dict(), "pieces": pieces(tokenizer, one.tokens)} for one in found]
            emit({"source": text, "best": best})
        elif given.best == 1:
            print(found[0].text)
        else:
            print(text)
            for hypothesis in found:
                print(f"  {hypothesis.score:8.4f}  {hypothesis.text}")
    unended = sum(found[0].finish == "length" for found in told)
    if unended:
        note(
            f"{unended} of {len(sources)} did not come to an end within --max-new "
            f"{given.max_new} tokens."
        )


def tokens_of(words: str, tokenizer: Tokenizer) -> list[int]:
    """The ids that words name: numbers are ids, all else pieces of the vocabulary; UserError for
    what is neither."""
    found = [int(word) if word.isdecimal() else tokenizer.id(word) for word in words.split()]
    for word, one in zip(words.split(), found, strict=True):
        need(
            one is not None,
            f'--start: there is no token "{word}"; give an id, or a piece of the vocabulary.',
        )
    return [one for one in found if one is not None]
