"""``glassformer masks``: who may look at whom, drawn and counted."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from ..errors import UserError
from .common import (
    add_use_option,
    ascii_only,
    print_json,
    print_result,
    supports_colour,
    write_picture,
)

EXAMPLES = (
    'glassformer masks "window(4) | every(8)" --length 32',
    "glassformer masks strided --out strided.svg",
    "glassformer masks full --ring 4",
)
EPILOG = 'Rules combine: glassformer masks "window(4) | every(8)" --length 32'


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "name",
        nargs="?",
        metavar="NAME",
        help="a rule, or rules with & and |; none lists the names",
    )
    add("--length", type=int, default=24, metavar="N", help="tokens in the row (24)")
    add(
        "--ring",
        type=int,
        metavar="N",
        help="which of N processes computes what, on the context axis of a training",
    )
    add(
        "--out",
        type=Path,
        metavar="FILE",
        help="write the picture to a .svg or .png file; - is standard output (svg)",
    )
    add("--json", action="store_true", help="the counts as JSON")
    add_use_option(parser)


def run(args: argparse.Namespace) -> None:
    from ..inspection import masks

    if args.name is None:
        rules = masks.names()
        print_result(
            args.json,
            [{"name": name, "what": meaning} for name, meaning in rules],
            rules,
            left_aligned=(0, 1),
        )
        return
    kind = args.out.suffix.lower() if args.out is not None else None
    kind = ".svg" if str(args.out) == "-" else kind
    if kind not in (None, ".svg", ".png"):
        raise UserError(
            f"--out {args.out} is neither .svg nor .png; give a name that ends in one of them."
        )
    width = shutil.get_terminal_size().columns // 2
    drawn = masks.picture(
        args.name, args.length, most=1024 if kind else max(8, min(width, 64)), ring=args.ring
    )
    if kind:
        write_picture(args.out, drawn.svg() if kind == ".svg" else drawn.png())
    if args.json:
        print_json(drawn.to_dict())
        return
    if str(args.out) == "-":
        return
    if not kind:
        print(drawn.text(supports_colour(), plain=ascii_only()))
    print(f"{drawn.name}, {drawn.length:,} tokens: a row for each query, a column for each key")
    print("\n".join(drawn.legend(plain=ascii_only())))
