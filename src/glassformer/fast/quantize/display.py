"""A report as people read it: columns with what they mean, and a picture."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch

from ...core.errors import UserError
from .quantization_report import Effect, MatrixReport, QuantizationReport

Lines = list[tuple[str, ...]]
"""The heads of some columns, then a line for each row."""
LEGEND = {
    "weight error": "of the numbers of the matrix, relative: 0.01 is 1 % (Frobenius norm)",
    "output error": "of its products with what it meets in the text, relative",
    "KL": "nats a token between what the model says before and after, 0 where nothing moved",
    "vector error": "of the vectors that the model gives, relative",
    "same top-1": "tokens of the text after which the likeliest one is the same as before",
    "perplexity": "e to the loss of a token; its change is relative to before: +1 % is 1.01 times",
}
"""The meaning of a column, by its head."""


def matrices(report: QuantizationReport, most: int | None = None) -> Lines:
    """A line for each matrix, the most harmful first; columns that the report has nothing for are
    left out."""
    heading = (
        "matrix",
        "bits",
        "KiB before",
        "KiB after",
        "weight error",
        "output error",
        *_heads(report),
    )
    lines = [
        (
            row.name,
            str(row.bits),
            f"{row.before / 1024:,.1f}",
            f"{row.after / 1024:,.1f}",
            f"{row.weight:.4f}",
            _shown(row.output, ".4f"),
            *_effect(row.effect),
        )
        for row in report.rows[:most]
    ]
    return _without_empty([(*heading, "perplexity change"), *lines])


def wholes(report: QuantizationReport) -> Lines:
    """A line for the model before, and for each way to round all of it."""
    heading = ("rounded", "weight error", "output error", *_heads(report), "change", "perplexity")
    lines = [
        (
            variant.rounding,
            f"{variant.weight:.4f}",
            _shown(variant.output, ".4f"),
            *_effect(variant.effect),
            _shown(None if variant.effect is None else variant.effect.perplexity, ",.3f"),
        )
        for variant in report.wholes
    ]
    before = ("before", *["-"] * 5, _shown(report.perplexity, ",.3f"))
    return _without_empty([heading, *[before] * (report.perplexity is not None), *lines])


def legend(report: QuantizationReport) -> list[tuple[str, str]]:
    """The columns of both tables and what they mean, those alone that are there."""
    heads = {*matrices(report)[0], *wholes(report)[0]}
    return [(head, meaning) for head, meaning in LEGEND.items() if head in heads]


def _heads(report: QuantizationReport) -> tuple[str, str]:
    harms = (row.effect.kl for row in report.rows if row.effect is not None)
    return "vector error" if next(harms, 0.0) is None else "KL", "same top-1"


def _without_empty(lines: Lines) -> Lines:
    """The columns in which a line says something."""
    columns = [
        number for number in range(len(lines[0])) if any(line[number] != "-" for line in lines[1:])
    ]
    return [tuple(line[number] for number in columns) for line in lines]


def _effect(effect: Effect | None) -> tuple[str, str, str]:
    if effect is None:
        return "-", "-", "-"
    return f"{effect.harm:.2e}", _shown(effect.agreement, ".2%"), _shown(effect.change, "+.2%")


def _shown(value: float | None, format_spec: str) -> str:
    return "-" if value is None else format(value, format_spec)


def picture(report: QuantizationReport) -> Any:
    """A figure: the harm of each matrix, layers across, kinds down; UserError without
    matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("Pictures need matplotlib; pip install matplotlib.") from None
    kinds, grid = _grid(report.rows)
    layers = grid.shape[1]
    figure = Figure(figsize=(3.5 + 0.35 * layers, 1.5 + 0.3 * len(kinds)), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(grid.numpy(), aspect="auto", cmap="viridis")
    axes.set_yticks(range(len(kinds)), kinds)
    axes.set_xticks(range(layers))
    axes.set_xlabel("layer")
    figure.colorbar(image, label=f"log10 of the {_harm(report.rows)} of one matrix alone")
    axes.set_title(f"{report.model}: {report.bits} bits, groups of {report.group}")
    return figure


def _harm(rows: Sequence[MatrixReport]) -> str:
    """Axis label: the measure of harm."""
    if rows[0].effect is not None:
        return "KL (nats a token)" if rows[0].effect.kl is not None else "vectors' relative error"
    return "weights' relative error"


def _grid(rows: Sequence[MatrixReport]) -> tuple[list[str], torch.Tensor]:
    """Kinds of matrices, and log10 of their harm (kinds, layers), NaN where a layer has none."""
    cells: dict[str, dict[int, float]] = {}
    for row in rows:
        match = re.fullmatch(r"(.*)\.blocks\.(\d+)\.(.*)", row.name)
        kind, layer = (f"{match[1]} {match[3]}", int(match[2])) if match else (row.name, 0)
        harm = row.effect.harm if row.effect else row.weight
        cells.setdefault(kind.removesuffix(".weight"), {})[layer] = math.log10(max(harm, 1e-12))
    kinds = sorted(cells)
    grid = torch.full((len(kinds), max(max(line) for line in cells.values()) + 1), math.nan)
    for y, kind in enumerate(kinds):
        for x, value in cells[kind].items():
            grid[y, x] = value
    return kinds, grid
