"""``glassformer look``: any named value inside the model while it reads a text."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from ..errors import UserError, need
from .common import (
    MODEL,
    ascii_only,
    computing,
    editing,
    edits_of,
    emit,
    loaded,
    model_and_tokenizer,
    picture,
    texts,
    untrained,
)

EXAMPLES = (
    'glassformer look out/mine "The cat sat"',
    'glassformer look out/mine "The cat sat" "*.attn.pattern" --draw --out attention.svg',
    """glassformer look out/mine "The cat sat" --next 5 --edit 'head_off("decoder.blocks.3.attn", 4)'""",
)


def options(one: argparse.ArgumentParser) -> None:
    add = one.add_argument
    add("model", metavar="MODEL", help=MODEL)
    add("text", metavar="TEXT", help="what the model reads; - is standard input")
    add(
        "pattern", nargs="*", metavar="PATTERN", help='names, as "*.pattern"; none lists every name'
    )
    add("--source", metavar="TEXT", help="what an encoder-decoder's encoder reads")
    add("--next", type=int, metavar="N", help="the N likeliest tokens after the text")
    add("--logprobs", type=int, metavar="N", help="after each token of the text the N likeliest")
    add("--draw", action="store_true", help="attention as a picture, the mean of its heads")
    add("--head", type=int, metavar="N", help="with --draw: one head alone, counted from 0")
    add(
        "--out",
        type=Path,
        metavar="FILE.svg",
        help="with --draw: write the pictures; - is standard output",
    )
    editing(one)
    computing(one)
    add("--json", action="store_true", help="every number as JSON")


def run(given: argparse.Namespace) -> None:
    from .. import inspection

    said = "--out is for a picture of attention; give --draw as well, and a name that ends in .svg."
    need(given.draw or given.out is None, said)
    need(given.draw or given.head is None, "--head is for a picture; give --draw as well.")
    given.prompts, given.edit = None, edits_of(given)
    (given.text,) = texts(given, [given.text])
    if given.draw:
        draw(given)
    elif given.next is not None or given.logprobs is not None:
        predictions(given)
    elif not given.pattern:
        need(not given.edit, "--edit changes values; say which to show, or give --next.")
        print("\n".join(inspection.paths(loaded(given)[0])))
        untrained(given.model)
    else:
        model, tokenizer = model_and_tokenizer(given)
        seen = inspection.look(
            model, tokenizer, given.text, *given.pattern, source=given.source, edits=given.edit
        )
        if given.json:
            tokens = inspection.read_tokens(model, tokenizer, given.text, given.source, given.edit)
            emit({**inspection.to_dict(seen), "tokens": tokens})
        else:
            print("\n".join(inspection.describe(seen)))


def predictions(given: argparse.Namespace) -> None:
    """What the model takes for likely after the text, or after each token of it."""
    from .. import inspection

    count = given.next if given.logprobs is None else given.logprobs
    told = inspection.predictions(
        *model_and_tokenizer(given), given.text, count, source=given.source, edits=given.edit
    )
    if given.json:
        emit(told if given.logprobs is not None else told[-1]["next"])
        return
    for one in told if given.logprobs is not None else told[-1:]:
        indent = ""
        if given.logprobs is not None:
            own, indent = (
                "" if one["logprob"] is None else f"{math.exp(one['logprob']):.4f}",
                "    ",
            )
            print(f"{own:>8}  {one['piece']}")
        print(
            "\n".join(f"{indent}{math.exp(n['logprob']):8.4f}  {n['piece']}" for n in one["next"])
        )


def draw(given: argparse.Namespace) -> None:
    """Attention, word by word."""
    from .. import inspection

    if given.out is not None and given.out.suffix.lower() != ".svg" and str(given.out) != "-":
        raise UserError(f"--out {given.out} is no .svg; give a name that ends in it.")
    how = {"source": given.source, "head": given.head, "edits": given.edit}
    drawn = inspection.alignments(*model_and_tokenizer(given), given.text, *given.pattern, **how)
    if given.out is not None:
        picture(given.out, inspection.svg(drawn))
    elif given.json:
        emit([one.to_dict() for one in drawn])
    else:
        print("\n\n".join(f"{one.path}\n{one.text(ascii_only())}" for one in drawn))
