"""``glassformer fill``: what an encoder puts in the blanks of a text."""

from __future__ import annotations

import argparse

from ..errors import need
from .common import (
    add_device_options,
    add_text_options,
    load_model_and_tokenizer,
    print_json,
    texts,
)

EXAMPLES = ('glassformer fill out/encoder "The capital of France is ___."',)


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_text_options(
        parser, 'such as "The capital of France is ___."; - is standard input', batch=False
    )
    add("--top", type=int, default=5, metavar="N", help="the N likeliest (5)")
    add(
        "--order",
        choices=["apart", "left", "sure"],
        default="apart",
        help="several blanks: each by itself, or together, from the left or the surest first "
        "(apart)",
    )
    add_device_options(parser)
    add("--json", action="store_true", help="tokens and probabilities as JSON")


def run(args: argparse.Namespace) -> None:
    from .. import generation

    inputs = texts(args, args.text)
    need(bool(inputs), "There is no text; give at least one.")
    need(args.top >= 1, f"top is {args.top}; give 1 or more.")
    model, tokenizer = load_model_and_tokenizer(args)
    for number, text in enumerate(inputs):
        predictions = generation.fill(model, tokenizer, text, top=args.top, order=args.order)
        if args.json:
            print_json([[filled.to_dict() for filled in blank] for blank in predictions])
            continue
        if len(inputs) > 1:
            print(f"{chr(10) if number else ''}{text}")
        for place, blank in enumerate(predictions):
            if len(predictions) > 1:
                print(f"blank {place + 1}")
            for filled in blank:
                print(f"{filled.probability:8.4f}  {' '.join(filled.words):16} {filled.text}")
