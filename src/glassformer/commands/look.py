"""``glassformer look``: any named value inside the model while it reads a text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError, need
from ..sight.labels import display_texts
from .common import ascii_only, write_picture
from .options import Edits, ModelOptions, Text
from .parsing import CommandOutput, Words

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer

EXAMPLES = (
    'glassformer look tiny "The cat sat"',
    'glassformer look tiny "The cat sat" "*.attn.pattern" --draw --out attention.svg',
    """glassformer look tiny "The cat sat" --next 5 --edit 'head_off("decoder.blocks.3.attn", 1)'""",
)


def run(
    options: ModelOptions,
    text: Text,
    pattern: Words = (),
    *,
    source: str | None = None,
    next: int | None = None,
    logprobs: int | None = None,
    draw: bool = False,
    head: int | None = None,
    out: Path | None = None,
    edit: Edits = (),
) -> CommandOutput | None:
    """Shows named values of a forward pass, its predictions, or its attention as a picture.

    pattern PATTERN: names of values, such as "*.pattern"; none lists every name
    next N: the N likeliest tokens after the text
    logprobs N: the N likeliest tokens after each token of the text
    draw: draw attention, averaged over heads
    head N: with --draw: draw only this head, counted from 0
    out FILE.svg: with --draw: write the pictures; - is standard output
    json: every number as JSON
    """
    from .. import sight as inspection

    need(
        draw or out is None,
        "--out is for a picture of attention; give --draw as well, and a name that ends in .svg.",
    )
    need(draw or head is None, "--head is for a picture; give --draw as well.")
    if draw:
        if out is not None and out.suffix.lower() != ".svg" and str(out) != "-":
            raise UserError(f"--out {out} is no .svg; give a name that ends in it.")
        drawn = inspection.alignments(
            *options.load_with_tokenizer(), text, *pattern, source=source, head=head, edits=edit
        )
        if out is not None:
            write_picture(out, inspection.svg(drawn))
            return None
        pictures = (f"{alignment.path}\n{alignment.text(ascii_only())}" for alignment in drawn)
        return CommandOutput([alignment.to_dict() for alignment in drawn], ["\n\n".join(pictures)])
    if logprobs is not None or next is not None:
        count = (next or 0) if logprobs is None else logprobs
        model, tokenizer = options.load_with_tokenizer()
        tokens = inspection.predictions(model, tokenizer, text, count, source=source, edits=edit)
        if logprobs is not None:
            return CommandOutput(tokens, prediction_lines(tokens, tokenizer))
        return CommandOutput(tokens[-1]["next"], likely_lines(tokens[-1], tokenizer))
    if not pattern:
        need(not edit, "--edit changes values; name the values to show, or give --next.")
        paths = inspection.paths(options.load()[0])
        options.note_untrained()
        return CommandOutput(paths, paths)
    model, tokenizer = options.load_with_tokenizer()
    values = inspection.look(model, tokenizer, text, *pattern, source=source, edits=edit)

    def value() -> dict[str, Any]:
        tokens = inspection.read_tokens(model, tokenizer, text, source, edit)
        return {**inspection.to_dict(values), "tokens": tokens}

    return CommandOutput(value, inspection.describe(values))


def prediction_lines(tokens: list[dict[str, Any]], tokenizer: Tokenizer) -> Iterator[str]:
    """Yields each token with its probability, and the likeliest after it."""
    for token in tokens:
        probability = "" if token["logprob"] is None else f"{math.exp(token['logprob']):.4f}"
        yield f"{probability:>8}  {display_texts(tokenizer, [token['token']])[0]}"
        for line in likely_lines(token, tokenizer):
            yield f"    {line}"


def likely_lines(token: dict[str, Any], tokenizer: Tokenizer) -> Iterator[str]:
    words = display_texts(tokenizer, [likely["token"] for likely in token["next"]])
    for likely, word in zip(token["next"], words, strict=True):
        yield f"{math.exp(likely['logprob']):8.4f}  {word}"
