"""``glassformer masks``: who may look at whom, drawn and counted."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..core.errors import UserError
from .common import ascii_only, supports_colour, text_table, write_picture
from .parsing import CommandOutput, Words

EXAMPLES = (
    'glassformer masks "window(4) | every(8)" --length 32',
    "glassformer masks strided --out strided.svg",
    "glassformer masks full --ring 4",
)
EPILOG = 'Rules combine: glassformer masks "window(4) | every(8)" --length 32'


def run(
    name: str | None = None,
    *,
    length: int = 24,
    ring: int | None = None,
    out: Path | None = None,
    use: Words = (),
) -> CommandOutput | None:
    """Draws an attention mask, and counts the pairs of tokens that it allows.

    name NAME: a rule, or rules combined with & and |; none lists the names
    length N: tokens in the row
    ring N: show the share of each of N processes on the context axis of a training
    out FILE: write the picture to a .svg or .png file; - is standard output (svg)
    json: the counts as JSON
    """
    from .. import families  # noqa: F401  # some have rules of their own
    from ..sight import masks

    if name is None:
        rules = masks.names()
        records = [{"name": rule, "what": meaning} for rule, meaning in rules]
        return CommandOutput(records, text_table.lines(rules, left_columns=(0, 1)))
    kind = out.suffix.lower() if out is not None else None
    kind = ".svg" if str(out) == "-" else kind
    if kind not in (None, ".svg", ".png"):
        raise UserError(
            f"--out {out} is neither .svg nor .png; give a name that ends in one of them."
        )
    width = shutil.get_terminal_size().columns // 2
    drawn = masks.picture(name, length, most=1024 if kind else max(8, min(width, 64)), ring=ring)
    if out is not None:
        write_picture(out, drawn.svg() if kind == ".svg" else drawn.png())
    title = f"{drawn.name}, {drawn.length:,} tokens: a row for each query, a column for each key"
    lines = [title, *drawn.legend(plain=ascii_only())]
    if not kind:
        lines.insert(0, drawn.text(supports_colour(), plain=ascii_only()))
    return CommandOutput(drawn.to_dict, [] if str(out) == "-" else lines)
