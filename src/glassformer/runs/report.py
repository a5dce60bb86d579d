"""The report of a run, in lines on standard error, and its picture. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..core import files
from ..core.errors import UserError
from ..sight.figures.charts import Chart, drawings
from ..sight.figures.drawing import together


def duration(seconds: float) -> str:
    """A time span in the unit a person would say."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def draw(charts: Iterable[Chart], picture: Path) -> str:
    """Draw the charts into a PNG, one below the other; a sentence on what became of it."""
    try:
        files.write(picture, together(drawings(charts)).png())
    except UserError as error:
        return f"No picture of the curves: {error}"
    return f"The curves are in {picture}."
