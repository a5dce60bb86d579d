"""Rows of cells as lines of plain text, laid out by rich."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Sequence


def lines(
    rows: Iterable[Sequence[str]], heading: Sequence[str] = (), left_columns: Collection[int] = (0,)
) -> list[str]:
    """A line for each row, after one for the heading if there is one; columns are two spaces apart
    and never cut.

    The columns numbered in ``left`` begin at the left, the others, which hold numbers, end at the
    right.
    """
    from rich.console import Console  # only where a table is shown: it takes a while to import
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(heading))
    for number in range(max(map(len, cells), default=len(heading))):
        name = heading[number] if heading else ""
        table.add_column(
            Text(name), justify="left" if number in left_columns else "right", no_wrap=True
        )
    for row in cells:
        table.add_row(*map(Text, row))
    page = io.StringIO()
    Console(file=page, width=1 << 20, color_system=None).print(table)
    return [line.rstrip() for line in page.getvalue().splitlines()]
