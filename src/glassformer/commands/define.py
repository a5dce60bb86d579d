"""``glassformer define``: a term of the field in a sentence, its formula, its line of code, a
number of a model."""

from __future__ import annotations

import argparse

from .common import note, print_json, print_table

EXAMPLES = (
    'glassformer define "causal mask"',
    "glassformer define MQA --json",
    "glassformer define",
)


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "term",
        nargs="*",
        metavar="TERM",
        help="a term, or another of its names; none lists them all",
    )
    add(
        "--no-number",
        action="store_true",
        help="without the number that is computed, so without loading a model",
    )
    add("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> None:
    from ..learn import glossary

    if not args.term:
        if args.json:
            print_json([term.to_dict() for term in glossary.terms()])
        else:
            print_table(
                [(term.name, term.page, term.sentence) for term in glossary.terms()],
                left_aligned=(0, 1, 2),
            )
        return
    term = glossary.find(" ".join(args.term))
    number = None if args.no_number else glossary.live(term)
    if args.json:
        print_json(term.to_dict() | ({} if number is None else {"live": number}))
        return
    also = f" (also {', '.join(term.also)})" if term.also else ""
    print(f"{term.name}{also}\n  {term.sentence}\n")
    lines = [
        ("formula", term.formula),
        ("code", f"{term.code.path}, line {term.code.line}: {term.code.text}"),
    ]
    lines += [("now", number)] if number else []
    lines += [("road", f"{term.road} {term.page}")]
    lines += [("see", ", ".join(term.related))] if term.related else []
    print_table(lines, left_aligned=(0, 1))
    if term.exercise:
        note(f"Write it yourself: glassformer learn start {term.exercise}")
