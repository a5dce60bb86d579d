"""``glassformer recipes``: the families and their sizes."""

from __future__ import annotations

import argparse

from .common import add_use_option, print_json, print_table

EXAMPLES = ("glassformer recipes --json",)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_use_option(parser)


def run(args: argparse.Namespace) -> None:
    from .. import cost as costs
    from .. import recipes as book

    pages = [
        (page, {size: costs.cost(config) for size, config in page.sizes.items()})
        for page in book.all()
    ]
    if args.json:
        every = [
            (page, f"{page.name}/{size}", price)
            for page, sizes in pages
            for size, price in sizes.items()
        ]
        print_json(
            [
                {"name": n, "parameters": p.total, "dim": p.model.dim, "paper": page.paper}
                for page, n, p in every
            ]
        )
        return
    for page, sizes in pages:
        print(f"{page.name}: {page.paper}")
        print_table(
            (
                f"  {page.name}/{size}",
                f"{price.total:,} parameters",
                f"{price.model.dim:,} wide",
                f"{price.model.context:,} tokens of context",
            )
            for size, price in sizes.items()
        )
