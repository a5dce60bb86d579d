"""``glassformer masks``: who may look at whom, drawn and counted."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from ..errors import UserError
from .common import ascii_only, colours, emit, picture, result, using

EXAMPLES = (
    'glassformer masks "window(4) | every(8)" --length 32',
    "glassformer masks strided --out strided.svg",
    "glassformer masks full --ring 4",
)
EPILOG = 'Rules combine: glassformer masks "window(4) | every(8)" --length 32'


def options(one: argparse.ArgumentParser) -> None:
    add = one.add_argument
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
    using(one)


def run(given: argparse.Namespace) -> None:
    from ..inspection import masks

    if given.name is None:
        known = masks.names()
        result(
            given.json, [{"name": name, "what": what} for name, what in known], known, left=(0, 1)
        )
        return
    kind = given.out.suffix.lower() if given.out is not None else None
    kind = ".svg" if str(given.out) == "-" else kind
    if kind not in (None, ".svg", ".png"):
        raise UserError(
            f"--out {given.out} is neither .svg nor .png; give a name that ends in one of them."
        )
    width = shutil.get_terminal_size().columns // 2
    drawn = masks.picture(
        given.name, given.length, most=1024 if kind else max(8, min(width, 64)), ring=given.ring
    )
    if kind:
        picture(given.out, drawn.svg() if kind == ".svg" else drawn.png())
    if given.json:
        emit(drawn.to_dict())
        return
    if str(given.out) == "-":
        return
    if not kind:
        print(drawn.text(colours(), plain=ascii_only()))
    print(f"{drawn.name}, {drawn.length:,} tokens: a row for each query, a column for each key")
    print("\n".join(drawn.legend(plain=ascii_only())))
