"""A heat map, curves and a table, each as HTML that needs no script and as a drawing.

The colours are the page's (web/src/kernel/palettes.ts): cividis from paper to dark, and blue to
orange with grey at 0.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .. import text_table
from .drawing import (
    FAINT,
    FONT_SIZE,
    INK,
    Array,
    Box,
    Drawing,
    Label,
    Mark,
    Polyline,
    Raster,
    text_width,
    together,
    written,
)

PAPER = "faf9f5 f0e5bd dccb7c c3b36b a89e75 8c8878 757775 61656f 4b546c 32436d 0f336f 00224e"
DIVERGING = "2166ac 4a84bd 7aa5cf aac5df d3dde6 e2e2e2 ead9c8 e5bd93 d99c5d c87a2c b35806"
CATEGORIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
GREY, GRID = "#555555", "#e4e4e4"
NONE = (221, 221, 221)  # the colour of what is not a number, or masked
CELLS = 800  # of a heat map that is a table in HTML; larger ones are a picture
LABELLED = 64  # rows or columns with their names
CELL = 18  # pixels of a side of a cell
WIDTH = 640  # pixels of a side without names
CURVES_SIZE = (620, 220)


def colours(values: Array, low: float, high: float, signed: bool) -> Array:
    """Numbers (..) as bytes (.., 3): from ``low`` to ``high`` through one of the two palettes."""
    palette = bytes.fromhex(DIVERGING if signed else PAPER)
    stops = np.frombuffer(palette, np.uint8).reshape(-1, 3)
    places = np.linspace(low, high if high > low else low + 1, len(stops))
    finite = np.isfinite(values)
    channels = [np.interp(np.where(finite, values, low), places, stop) for stop in stops.T]
    mixed = np.rint(np.stack(channels, -1))
    return np.asarray(np.where(finite[..., None], mixed, NONE), dtype=np.uint8)


def ink_on(colour: Sequence[int]) -> str:
    """Black or white, whichever has more contrast on a colour: 4.58 to 1 at least (WCAG 2.2,
    relative luminance)."""
    shares = [channel / 255 for channel in colour]
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#ffffff"


def number(value: float) -> str:
    """A number to four digits."""
    return "–" if not math.isfinite(value) else f"{value:.4g}"


def widest(texts: Sequence[str]) -> float:
    """The width of the widest text; 0 without any."""
    return max(map(text_width, texts), default=0.0)


@dataclass(frozen=True)
class Heat:
    """Numbers (R, C) as colours, with the names of ``rows`` and ``columns`` and, optionally,
    ``words`` in the cells.

    ``span`` is the least and greatest number of the scale (None: those of the values); ``signed``
    has zero in the middle.
    """

    title: str
    values: Array
    rows: Sequence[str]
    columns: Sequence[str]
    words: Sequence[Sequence[str]] | None = None
    signed: bool = False
    span: tuple[float, float] | None = None

    def _scale(self) -> tuple[float, float]:
        finite = self.values[np.isfinite(self.values)]
        low, high = self.span or ((finite.min(), finite.max()) if finite.size else (0.0, 1.0))
        most = max(abs(low), abs(high))
        if self.signed:
            return (-float(most), float(most))
        return (float(low), float(high))

    def _colours(self) -> Array:
        return colours(self.values, *self._scale(), self.signed)

    def text(self, corner: str, width: int | None = None, left: bool = False) -> str:
        """For a terminal: the words, as many columns side by side as fit in ``width``, which is the
        terminal's where it is None; ``left`` aligns them there."""
        width = width or shutil.get_terminal_size((100, 24)).columns
        words = self.words or ()
        columns = zip(self.columns, *words, strict=True)
        sizes = [max(map(len, column)) + 2 for column in columns]
        first = max(map(len, self.rows)) + 2
        blocks = []
        low = 0
        while low < len(self.columns):
            high = low + 1
            while high < len(self.columns) and first + sum(sizes[low : high + 1]) <= width:
                high += 1
            rows = [(name, *cells[low:high]) for name, cells in zip(self.rows, words, strict=True)]
            left_columns = range(high - low + 1) if left else (0,)
            heading = (corner, *self.columns[low:high])
            blocks.append("\n".join(text_table.lines(rows, heading, left_columns)))
            low = high
        return "\n\n".join(blocks)

    def html(self) -> str:
        """Words in cells as a table, each number where a pointer rests; without words, or of many
        cells, a picture."""
        if self.words is None or self.values.size > CELLS:
            return self.drawing().img()
        lines = [[html_cell("th", name, "text-align:center") for name in ("", *self.columns)]]
        for name, cells in zip(self.rows, self._cells(), strict=True):
            line = [html_cell("th", name)]
            for column, (word, fill, ink, value) in zip(self.columns, cells, strict=True):
                style = f"background:{fill};color:{ink}"
                line.append(html_cell("td", word, style, f"{name}, {column}: {value}"))
            lines.append(line)
        return html_table(self.title, lines) + self._legend().img()

    def _cells(self) -> Iterator[list[tuple[str, str, str, str]]]:
        """(word, colour, ink, number) of each cell, by rows."""
        rows = zip(self.words or (), self._colours().tolist(), self.values.tolist(), strict=True)
        for words, painted, values in rows if self.words else ():
            fills = [f"#{bytes(rgb).hex()}" for rgb in painted]
            yield [*zip(words, fills, map(ink_on, painted), map(number, values), strict=True)]

    def _legend(self) -> Drawing:
        low, high = self._scale()
        names = number(low), number(high)
        left_edge = text_width(names[0]) + 6
        steps = colours(np.linspace(low, high, 64)[None], low, high, self.signed)
        marks: list[Mark] = [
            Label(0, 12, names[0], fill=FAINT),
            Raster(left_edge, 3, 120, 10, steps),
            Label(left_edge + 126, 12, names[1], fill=FAINT),
        ]
        width = left_edge + 132 + text_width(names[1])
        return Drawing(width, 17, f"scale from {names[0]} to {names[1]}", marks)

    def drawing(self) -> Drawing:
        """The grid with its scale, and with names on each side short enough to be read."""
        sides = self.values.shape
        rows, columns = (
            names if side <= LABELLED else ()
            for side, names in zip(sides, (self.rows, self.columns), strict=True)
        )
        height, width = (CELL if side <= LABELLED else max(1.0, WIDTH / side) for side in sides)
        if self.words is not None:
            width = max(width, 12 + widest([word for row in self.words for word in row]))
        left_edge = 10 + widest(rows) if rows else 0.0
        turned = widest(columns) > width - 4
        top = 30.0 + (widest(columns) if turned else FONT_SIZE) if columns else 22.0
        marks: list[Mark] = [Label(0, 13, self.title)]
        for at, name in enumerate(columns):
            middle = left_edge + width * (at + 0.5)
            anchor = "start" if turned else "middle"
            marks.append(Label(middle + 4 * turned, top - 5, name, anchor, turned))
        for at, name in enumerate(rows):
            marks.append(Label(left_edge - 5, top + height * (at + 0.5) + 4, name, "end"))
        right = left_edge + width * sides[1]
        foot = top + height * sides[0]
        if self.words is None:
            marks.append(Raster(left_edge, top, right - left_edge, foot - top, self._colours()))
        for row, cells in enumerate(self._cells()):
            y = top + height * row
            for column, (word, fill, ink, value) in enumerate(cells):
                x = left_edge + width * column
                marks.append(Box(x, y, width, height, fill, value))
                marks.append(Label(x + width / 2, y + height / 2 + 4, word, "middle", fill=ink))
        legend = self._legend()
        marks += legend.moved(left_edge, foot + 6)
        width = max(right, text_width(self.title), left_edge + legend.width)
        return Drawing(width, foot + 6 + legend.height, self.title, marks)


@dataclass(frozen=True)
class TableFigure:
    """Cells of text, numbers to four places; the columns numbered in ``left`` begin at the left, the
    others end at the right."""

    title: str
    heading: Sequence[str]
    rows: Iterable[Sequence[Any]]
    left: Sequence[int] = (0,)
    form: str = ".4f"

    @classmethod
    def of_sum(
        cls,
        heading: Sequence[str],
        terms: Iterable[Sequence[Any]],
        most: int,
        *totals: Any,
        form: str = "+.4f",
    ) -> TableFigure:
        """The ``most`` largest terms of a sum, which are the last cells of their rows, all others in
        one row, and the ``totals`` below them."""
        ordered = sorted(terms, key=lambda row: -abs(row[-1]))
        rows = ordered[:most]
        if smaller := [row[-1] for row in ordered[most:]]:
            rows.append((f"{len(smaller):,} more", "", math.fsum(smaller)))
        return cls("", heading, [*rows, *totals], (0, 1), form)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", [list(map(self._cell, row)) for row in self.rows])

    def _cell(self, x: Any) -> str:
        if isinstance(x, float):
            return f"{x:{self.form}}"
        if x is None:
            return ""
        return str(x)

    def lines(self) -> list[str]:
        """For a terminal."""
        return text_table.lines(self.rows, self.heading, self.left)

    def html(self) -> str:
        lines = []
        for tag, row in (("th", self.heading), *(("td", row) for row in self.rows)):
            sides = ["left" if column in self.left else "right" for column in range(len(row))]
            styles = [f"text-align:{side};white-space:pre-wrap" for side in sides]
            lines.append([html_cell(tag, *pair) for pair in zip(row, styles, strict=True)])
        return html_table(self.title, lines)


@dataclass(frozen=True)
class Curves:
    """Lines over one axis: name -> (x, y), of which ``dots`` are drawn with a dot at each point."""

    title: str
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    x: str = "step"
    dots: Sequence[str] = ()

    @classmethod
    def by_depth(cls, title: str, lines: Mapping[str, Sequence[float]]) -> Curves:
        """Lines with a number and a dot for each depth of a model."""
        points = {name: (range(len(line)), line) for name, line in lines.items()}
        return cls(title, points, "depth", tuple(lines))

    def html(self) -> str:
        return self.drawing().img()

    def drawing(self) -> Drawing:
        """The curves with both axes; many points are thinned to the least and greatest of each
        stretch, so that spikes stay."""
        lines = {name: thinned(*line) for name, line in self.lines.items() if len(line[0])}
        points = [point for line in lines.values() for point in line]
        width, height = CURVES_SIZE
        marks: list[Mark] = [Label(0, 13, self.title)]
        if not points:
            marks.append(Label(0, 34, "nothing yet", fill=FAINT))
            return Drawing(width, 40, self.title, marks)
        (x0, x1), (y0, y1) = ((min(axis), max(axis)) for axis in zip(*points, strict=True))
        x1 = x1 if x1 > x0 else x0 + 1
        y1 = y1 if y1 > y0 else y0 + (abs(y0) or 1)
        left_edge = 64.0
        top = 24.0
        right = width - 16.0
        foot = height - 40.0

        def place(x: float, y: float) -> tuple[float, float]:
            share = (x - x0) / (x1 - x0), (y - y0) / (y1 - y0)
            return left_edge + share[0] * (right - left_edge), foot - share[1] * (foot - top)

        for tick in ticks(y0, y1):
            _, y = place(x0, tick)
            marks.append(Polyline(left_edge, y, [(0, 0), (right - left_edge, 0)], GRID))
            marks.append(Label(left_edge - 6, y + 4, number(tick), "end", fill=FAINT))
        for tick in ticks(x0, x1):
            x, _ = place(tick, y0)
            marks.append(Label(x, foot + 16, f"{tick:,.6g}", "middle", fill=FAINT))
        marks.append(Label((left_edge + right) / 2, foot + 33, self.x, "middle", fill=FAINT))
        beside = right
        for at, (name, line) in enumerate(lines.items()):
            colour = CATEGORIES[at % len(CATEGORIES)]
            placed = [place(*point) for point in line]
            marks.append(Polyline(0, 0, placed if len(placed) > 1 else placed * 2, colour))
            if name in self.dots:
                marks += [Box(x - 2.5, y - 2.5, 5, 5, colour) for x, y in placed]
            beside -= text_width(name) + 22
            marks += [Box(beside, 5, 10, 10, colour), Label(beside + 14, 14, name)]
        return Drawing(width, height, self.title, marks)


@dataclass(frozen=True)
class Prose:
    """Sentences."""

    lines: Sequence[str]
    title: str = ""

    def html(self) -> str:
        style = f"margin:4px 0;color:{GREY}"
        return "".join(f'<p style="{style}">{written(line)}</p>' for line in self.lines)


@dataclass(frozen=True)
class Folded:
    """Charts that are opened by a click on their title; in a drawing they stand side by side."""

    title: str
    charts: Sequence[Heat | TableFigure | Curves]

    def html(self) -> str:
        """Closed."""
        inside = "".join(f'<div style="{BESIDE}">{chart.html()}</div>' for chart in self.charts)
        summary = f'<summary style="cursor:pointer">{written(self.title)}</summary>'
        return f"<details>{summary}{inside}</details>"

    def drawing(self) -> Drawing:
        """All of them."""
        return together(drawings(self.charts), math.ceil(math.sqrt(len(self.charts))))


Chart: TypeAlias = Heat | TableFigure | Curves | Prose | Folded


def drawings(charts: Iterable[Chart]) -> list[Drawing]:
    """The charts that are pictures; tables and sentences are on the page alone."""
    return [chart.drawing() for chart in charts if not isinstance(chart, TableFigure | Prose)]


BESIDE = "display:inline-block;vertical-align:top;margin:6px 14px 0 0"
TABLE = "border-collapse:collapse;margin:2px 0 6px 0;font-size:12px;border:none"
ROW = "background:#ffffff;border:none"
CELL_STYLES = {
    "th": f"padding:1px 6px;font-weight:600;color:{GREY};{ROW};text-align:right;white-space:nowrap",
    "td": f"padding:1px 6px;color:{INK};border:none;text-align:center;min-width:10px;max-width:640px",
}


def html_cell(tag: str, text: str, style: str = "", tooltip: str = "") -> str:
    """A cell of a table, lines of its text below each other."""
    title = f' title="{written(tooltip)}"' if tooltip else ""
    content = "<br>".join(map(written, text.splitlines()))
    return f'<{tag}{title} style="{CELL_STYLES[tag]};{style}">{content}</{tag}>'


def html_table(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as a table below its title."""
    heading = f"<div>{written(title)}</div>" if title else ""
    lines = "".join(f'<tr style="{ROW}">{"".join(cells)}</tr>' for cells in rows)
    return f'{heading}<table style="{TABLE}">{lines}</table>'


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``, at most so many."""
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [multiple * step for multiple in range(first, last + 1)]


def thinned(x: Sequence[float], y: Sequence[float], most: int = 300) -> list[tuple[float, float]]:
    """The points of a line; of more than ``most`` the least and the greatest of each stretch, in
    their order."""
    points = [(float(a), float(b)) for a, b in zip(x, y, strict=True) if math.isfinite(b)]
    if len(points) <= most:
        return points
    size = len(points) / (most // 2)
    extremes: list[tuple[float, float]] = []
    for at in range(most // 2):
        stretch = sorted(points[int(at * size) : int((at + 1) * size)], key=lambda point: point[1])
        extremes += sorted({stretch[0], stretch[-1]})
    return extremes
