"""``glassformer why``: one number of a forward pass, and the numbers that it was computed from."""

from __future__ import annotations

import argparse

from ..errors import need
from .common import (
    MODEL_HELP,
    add_device_options,
    add_edit_option,
    load_model_and_tokenizer,
    parse_edits,
    print_json,
    texts,
)

EXAMPLES = (
    'glassformer why out/mine "The cat sat" "logits[2,5]"',
    'glassformer why out/mine "The cat sat" "decoder.blocks.3.attn.scores[0,2,1]" --up 3',
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("text", metavar="TEXT", help="what the model reads; - is standard input")
    help = (
        'an address such as "logits[2,5]"; without its index: the shape; none lists the plan '
        "of the pass"
    )
    parser.add_argument("address", nargs="?", metavar="ADDRESS", help=help)
    parser.add_argument("--source", metavar="TEXT", help="what an encoder-decoder's encoder reads")
    parser.add_argument(
        "--up",
        type=int,
        default=0,
        metavar="N",
        help="then N steps back along the largest term (0)",
    )
    parser.add_argument(
        "--terms", type=int, default=8, metavar="N", help="the N largest terms of each (8)"
    )
    add_device_options(parser)
    add_edit_option(parser)
    parser.add_argument("--json", action="store_true", help="every number as JSON")


def run(args: argparse.Namespace) -> None:
    need(args.up >= 0, f"--up is {args.up}; give 0 or more steps.")
    need(args.terms >= 0, f"--terms is {args.terms}; give 0 or more.")
    args.prompts = None
    (args.text,) = texts(args, [args.text])
    edits = parse_edits(args)
    model, tokenizer = load_model_and_tokenizer(args)
    from ..inspection.tracing import trace

    tape = trace(model, tokenizer, args.text, args.source, edits)
    if args.address is None:
        if args.json:
            print_json(tape.to_dict())
        else:
            print("\n".join(tape.lines()))
        return
    name, index = tape.parse(args.address)
    if index is None:
        shape, axes = tape.shape(name)
        sides = " x ".join(f"{axis} {size}" for axis, size in zip(axes, shape, strict=True))
        print_json(
            {"address": name, "axes": list(axes), "shape": list(shape)}
        ) if args.json else print(f"{name}: {sides}")
        return
    steps = list(tape.why(args.address, args.up))
    if args.json:
        records = [step.to_dict(args.terms) for step in steps]
        print_json(records if args.up else records[0])
    else:
        print("\n\n".join("\n".join(step.lines(args.terms)) for step in steps))
