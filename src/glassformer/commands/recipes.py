"""``glassformer recipes``: the families and their sizes."""

from __future__ import annotations

from .common import text_table
from .parsing import CommandOutput, Words

EXAMPLES = ("glassformer recipes --types", "glassformer recipes --json")


def run(*, types: bool = False, use: Words = ()) -> CommandOutput:
    """Lists the families and their sizes.

    types: the model types of config.json that open, their architectures and a small checkpoint
    """
    from .. import families as book
    from ..scale import cost as costs

    if types:
        listed = [
            (page.model_type, page.checkpoint or page.tokenizer.split()[0], page.architectures)
            for page in book.all()
            if page.read_config is not None
        ]
        keys = ("model_type", "checkpoint", "architectures")
        lines = text_table.lines(
            [(kind, name, " ".join(heads)) for kind, name, heads in listed], left_columns=(0, 1, 2)
        )
        return CommandOutput([dict(zip(keys, row, strict=True)) for row in listed], lines)
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
        lines += [f"{page.name}: {page.paper}", *text_table.lines(rows)]
    return CommandOutput(records, lines)
