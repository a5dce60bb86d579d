"""``glassformer fill``: what an encoder puts in the blanks of a text."""

from __future__ import annotations

import argparse

from ..errors import need
from .common import computing, emit, model_and_tokenizer, reading, texts

EXAMPLES = ('glassformer fill out/encoder "The capital of France is ___."',)


def options(one: argparse.ArgumentParser) -> None:
    add = one.add_argument
    reading(one, 'such as "The capital of France is ___."; - is standard input', batch=False)
    add("--top", type=int, default=5, metavar="N", help="the N likeliest (5)")
    add(
        "--order",
        choices=["apart", "left", "sure"],
        default="apart",
        help="several blanks: each by itself, or together, from the left or the surest first "
        "(apart)",
    )
    computing(one)
    add("--json", action="store_true", help="tokens and probabilities as JSON")


def run(given: argparse.Namespace) -> None:
    from .. import generation

    read = texts(given, given.text)
    need(bool(read), "There is no text; give at least one.")
    need(given.top >= 1, f"top is {given.top}; give 1 or more.")
    model, tokenizer = model_and_tokenizer(given)
    for number, text in enumerate(read):
        told = generation.fill(model, tokenizer, text, top=given.top, order=given.order)
        if given.json:
            emit([[filled.to_dict() for filled in blank] for blank in told])
            continue
        if len(read) > 1:
            print(f"{chr(10) if number else ''}{text}")
        for place, blank in enumerate(told):
            if len(told) > 1:
                print(f"blank {place + 1}")
            for filled in blank:
                print(f"{filled.probability:8.4f}  {' '.join(filled.words):16} {filled.text}")
