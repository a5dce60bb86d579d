"""``glassformer why``: one number of a forward pass, and the numbers that it was computed from."""

from __future__ import annotations

import argparse

from ..errors import need
from .common import MODEL, computing, editing, edits_of, emit, model_and_tokenizer, texts

EXAMPLES = (
    'glassformer why out/mine "The cat sat" "logits[2,5]"',
    'glassformer why out/mine "The cat sat" "decoder.blocks.3.attn.scores[0,2,1]" --up 3',
)


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument("text", metavar="TEXT", help="what the model reads; - is standard input")
    said = (
        'an address such as "logits[2,5]"; without its index: the shape; none lists the plan '
        "of the pass"
    )
    one.add_argument("address", nargs="?", metavar="ADDRESS", help=said)
    one.add_argument("--source", metavar="TEXT", help="what an encoder-decoder's encoder reads")
    one.add_argument(
        "--up",
        type=int,
        default=0,
        metavar="N",
        help="then N steps back along the largest term (0)",
    )
    one.add_argument(
        "--terms", type=int, default=8, metavar="N", help="the N largest terms of each (8)"
    )
    computing(one)
    editing(one)
    one.add_argument("--json", action="store_true", help="every number as JSON")


def run(given: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    need(given.up >= 0, f"--up is {given.up}; give 0 or more steps.")
    need(given.terms >= 0, f"--terms is {given.terms}; give 0 or more.")
    given.prompts = None
    (given.text,) = texts(given, [given.text])
    edits = edits_of(given)
    model, tokenizer = model_and_tokenizer(given)
    from ..inspection.tracing import trace

    seen = trace(model, tokenizer, given.text, given.source, edits)
    if given.address is None:
        if given.json:
            emit(seen.to_dict())
        else:
            print("\n".join(seen.lines()))
        return
    name, index = seen.parse(given.address)
    if index is None:
        shape, axes = seen.shape(name)
        sides = " x ".join(f"{axis} {size}" for axis, size in zip(axes, shape, strict=True))
        emit({"address": name, "axes": list(axes), "shape": list(shape)}) if given.json else print(
            f"{name}: {sides}"
        )
        return
    steps = list(seen.why(given.address, given.up))
    if given.json:
        told = [one.to_dict(given.terms) for one in steps]
        emit(told if given.up else told[0])
    else:
        print("\n\n".join("\n".join(one.lines(given.terms)) for one in steps))
