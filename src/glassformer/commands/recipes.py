"""``glassformer recipes``: the families and their sizes."""

from __future__ import annotations

import argparse

from .common import emit, table, using

EXAMPLES = ("glassformer recipes --json",)


def options(one: argparse.ArgumentParser) -> None:
    one.add_argument("--json", action="store_true", help="as JSON")
    using(one)


def run(given: argparse.Namespace) -> None:
    from .. import cost as costs
    from .. import recipes as book

    pages = [
        (page, {size: costs.cost(config) for size, config in page.sizes.items()})
        for page in book.all()
    ]
    if given.json:
        every = [
            (page, f"{page.name}/{size}", price)
            for page, sizes in pages
            for size, price in sizes.items()
        ]
        emit(
            [
                {"name": n, "parameters": p.total, "dim": p.model.dim, "paper": page.paper}
                for page, n, p in every
            ]
        )
        return
    for page, sizes in pages:
        print(f"{page.name}: {page.paper}")
        table(
            (
                f"  {page.name}/{size}",
                f"{price.total:,} parameters",
                f"{price.model.dim:,} wide",
                f"{price.model.context:,} tokens of context",
            )
            for size, price in sizes.items()
        )
