"""``glassformer translate``: from a source text to a target text by beam search."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..errors import UserError, need, note
from ..tokenizer.labels import pieces
from .common import (
    add_device_options,
    add_edit_option,
    add_text_options,
    load_model_and_tokenizer,
    parse_edits,
    print_json,
    progress_counter,
    run_objective,
    texts,
)

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer

EXAMPLES = (
    'glassformer translate out/pair "two dogs run on the beach ."',
    "glassformer translate out/pair --prompts source.txt --beams 8 --json",
)


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_text_options(parser)
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
    add_edit_option(parser)
    add_device_options(parser)
    add(
        "--json",
        action="store_true",
        help="tokens, log-probabilities and scores as JSON, a text a line",
    )


def run(args: argparse.Namespace) -> None:
    from .. import config, generation

    sources = texts(args, args.text)
    need(all(text.strip() for text in sources), "A text is empty; give one on each line.")
    need(bool(sources), "There is no text; give at least one.")
    generation.check_beams(args.beams, args.best, args.length_penalty, args.max_new)
    need(args.batch >= 1, f"batch is {args.batch}; give 1 or more.")
    edits = parse_edits(args)
    model, tokenizer = load_model_and_tokenizer(args)
    silent = (
        f"{args.model} is an encoder and writes no text; use `glassformer fill`, `embed` "
        "or `classify`."
    )
    need(not isinstance(model.config, config.Encoder), silent)
    objective = run_objective(args.model)
    if isinstance(model.config, config.Decoder) and objective not in ("Seq2Seq", None):
        raise UserError(
            f"{args.model} was trained with the objective {objective}, not on pairs of texts; "
            "use `glassformer "
            "generate`, or train it with the objective Seq2Seq."
        )
    outputs = generation.search(
        model,
        tokenizer,
        sources,
        batch=args.batch,
        progress=progress_counter(f"of {len(sources):,} texts")
        if len(sources) > args.batch
        else None,
        beams=args.beams,
        best=args.best,
        length_penalty=args.length_penalty,
        max_new=args.max_new,
        cut=args.cut,
        edits=edits,
        start=None if args.start is None else parse_tokens(args.start, tokenizer),
    )
    for text, beams in zip(sources, outputs, strict=True):
        if args.json:
            best = [
                {**hypothesis.to_dict(), "pieces": pieces(tokenizer, hypothesis.tokens)}
                for hypothesis in beams
            ]
            print_json({"source": text, "best": best})
        elif args.best == 1:
            print(beams[0].text)
        else:
            print(text)
            for hypothesis in beams:
                print(f"  {hypothesis.score:8.4f}  {hypothesis.text}")
    unended = sum(beams[0].finish == "length" for beams in outputs)
    if unended:
        note(
            f"{unended} of {len(sources)} did not come to an end within --max-new "
            f"{args.max_new} tokens."
        )


def parse_tokens(words: str, tokenizer: Tokenizer) -> list[int]:
    """The ids that words name: numbers are ids, all else pieces of the vocabulary; UserError for
    what is neither."""
    ids = [int(word) if word.isdecimal() else tokenizer.id(word) for word in words.split()]
    for word, id in zip(words.split(), ids, strict=True):
        need(
            id is not None,
            f'--start: there is no token "{word}"; give an id, or a piece of the vocabulary.',
        )
    return [id for id in ids if id is not None]
