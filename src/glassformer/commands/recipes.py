"""``glassformer recipes``: the families and their sizes."""

from __future__ import annotations

from .common import CommandOutput, tables
from .signature import Words

EXAMPLES = ("glassformer recipes --json",)


def run(*, use: Words = ()) -> CommandOutput:
    """Lists the families and their sizes."""
    from .. import families as book
    from ..scale import cost as costs

    records, lines = [], []
    for page in book.all():
        rows = []
        for size, config in page.sizes.items():
            total = costs.cost(config).total
            name = f"{page.name}/{size}"
            records.append(
                {"name": name, "parameters": total, "dim": config.dim, "paper": page.paper}
            )
            width, context = f"{config.dim:,} wide", f"{config.context:,} tokens of context"
            rows.append((f"  {name}", f"{total:,} parameters", width, context))
        lines += [f"{page.name}: {page.paper}", *tables.lines(rows)]
    return CommandOutput(records, lines)
