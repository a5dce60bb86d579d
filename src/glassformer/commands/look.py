"""``glassformer look``: any named value inside the model while it reads a text."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from ..errors import UserError, need
from .common import (
    MODEL_HELP,
    add_device_options,
    add_edit_option,
    ascii_only,
    load_model,
    load_model_and_tokenizer,
    note_untrained,
    parse_edits,
    print_json,
    texts,
    write_picture,
)

EXAMPLES = (
    'glassformer look out/mine "The cat sat"',
    'glassformer look out/mine "The cat sat" "*.attn.pattern" --draw --out attention.svg',
    """glassformer look out/mine "The cat sat" --next 5 --edit 'head_off("decoder.blocks.3.attn", 4)'""",
)


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help=MODEL_HELP)
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
    add_edit_option(parser)
    add_device_options(parser)
    add("--json", action="store_true", help="every number as JSON")


def run(args: argparse.Namespace) -> None:
    from .. import inspection

    message = (
        "--out is for a picture of attention; give --draw as well, and a name that ends in .svg."
    )
    need(args.draw or args.out is None, message)
    need(args.draw or args.head is None, "--head is for a picture; give --draw as well.")
    args.prompts, args.edit = None, parse_edits(args)
    (args.text,) = texts(args, [args.text])
    if args.draw:
        draw_attention(args)
    elif args.next is not None or args.logprobs is not None:
        print_predictions(args)
    elif not args.pattern:
        need(not args.edit, "--edit changes values; say which to show, or give --next.")
        print("\n".join(inspection.paths(load_model(args)[0])))
        note_untrained(args.model)
    else:
        model, tokenizer = load_model_and_tokenizer(args)
        values = inspection.look(
            model, tokenizer, args.text, *args.pattern, source=args.source, edits=args.edit
        )
        if args.json:
            tokens = inspection.read_tokens(model, tokenizer, args.text, args.source, args.edit)
            print_json({**inspection.to_dict(values), "tokens": tokens})
        else:
            print("\n".join(inspection.describe(values)))


def print_predictions(args: argparse.Namespace) -> None:
    """Prints the likeliest tokens after the text, or after each of its tokens."""
    from .. import inspection

    count = args.next if args.logprobs is None else args.logprobs
    tokens = inspection.predictions(
        *load_model_and_tokenizer(args), args.text, count, source=args.source, edits=args.edit
    )
    if args.json:
        print_json(tokens if args.logprobs is not None else tokens[-1]["next"])
        return
    for token in tokens if args.logprobs is not None else tokens[-1:]:
        indent = ""
        if args.logprobs is not None:
            probability, indent = (
                "" if token["logprob"] is None else f"{math.exp(token['logprob']):.4f}",
                "    ",
            )
            print(f"{probability:>8}  {token['piece']}")
        print(
            "\n".join(f"{indent}{math.exp(n['logprob']):8.4f}  {n['piece']}" for n in token["next"])
        )


def draw_attention(args: argparse.Namespace) -> None:
    """Attention, word by word."""
    from .. import inspection

    if args.out is not None and args.out.suffix.lower() != ".svg" and str(args.out) != "-":
        raise UserError(f"--out {args.out} is no .svg; give a name that ends in it.")
    options = {"source": args.source, "head": args.head, "edits": args.edit}
    drawn = inspection.alignments(
        *load_model_and_tokenizer(args), args.text, *args.pattern, **options
    )
    if args.out is not None:
        write_picture(args.out, inspection.svg(drawn))
    elif args.json:
        print_json([alignment.to_dict() for alignment in drawn])
    else:
        print(
            "\n\n".join(f"{alignment.path}\n{alignment.text(ascii_only())}" for alignment in drawn)
        )
