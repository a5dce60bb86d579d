"""``glassformer eval``: loss, perplexity and bits per byte of a text; every token is counted once."""

from __future__ import annotations

import argparse

from .common import MODEL, counting, emit, note, reader, rows, unescaped

HELP = "Loss, perplexity and bits per byte of a text; every token is counted once."


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument("--data", required=True, metavar="FILE", help="a file, a folder or a named corpus")
    one.add_argument("--field", default="text", metavar="NAME", help="the text field of JSONL (text)")
    one.add_argument(
        "--separator", type=unescaped, metavar="TEXT", help="what parts a plain file's documents (nothing)"
    )
    one.add_argument("--context", type=int, metavar="N", help="tokens a window holds (the model's context)")
    one.add_argument("--stride", type=int, metavar="N", help="how far windows move on (half of the context)")
    one.add_argument("--batch", type=int, default=8, metavar="N", help="windows at once (8)")
    one.add_argument("--json", action="store_true", help="the figures as JSON")


def run(given: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    from .. import evaluation, text

    source = text.find(given.data, given.field, given.separator)
    for line in source.notes:
        note(line)
    model, tokenizer = reader(given.model)
    score = evaluation.score(
        model, tokenizer, source, context=given.context, stride=given.stride, batch=given.batch, progress=counting()
    )
    if given.json:
        emit(score.to_dict())
    else:
        rows(
            ("loss", f"{score.loss:.4f} nats per token"),
            ("perplexity", f"{score.perplexity:.4f}"),
            ("bits per byte", f"{score.bits_per_byte:.4f}"),
            ("tokens", f"{score.tokens:,}"),
            ("bytes", f"{score.bytes:,}"),
        )
