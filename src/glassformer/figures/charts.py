"""A heat map, curves and a table, each as HTML that needs no script and as a drawing.

The colours are the page's (web/src/kernel/palettes.ts): cividis from paper to dark, and blue to
orange with grey at 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from .drawing import (
    FAINT,
    INK,
    SIZE,
    Array,
    Box,
    Drawing,
    Line,
    Mark,
    Raster,
    Words,
    together,
    wide,
    written,
)

PAPER = (
    "faf9f5",
    "f0e5bd",
    "dccb7c",
    "c3b36b",
    "a89e75",
    "8c8878",
    "757775",
    "61656f",
    "4b546c",
    "32436d",
    "0f336f",
    "00224e",
)
DIVERGING = (
    "2166ac",
    "4a84bd",
    "7aa5cf",
    "aac5df",
    "d3dde6",
    "e2e2e2",
    "ead9c8",
    "e5bd93",
    "d99c5d",
    "c87a2c",
    "b35806",
)
CATEGORIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
NONE = (221, 221, 221)  # what is not a number, or masked
CELLS = 800  # of a heat map that is a table in HTML; larger ones are a picture
LABELLED = 64  # rows or columns with their words
CELL = 18  # dots a side of a cell
LONGEST = 120  # characters of a table's cell in a drawing
WIDTH = 640  # dots of a side without words


def colours(values: Array, low: float, high: float, signed: bool) -> Array:
    """Numbers (..) as bytes (.., 3): from ``low`` to ``high``, where ``signed`` with zero in the
    middle."""
    stops = np.array(
        [
            [int(one[at : at + 2], 16) for at in (0, 2, 4)]
            for one in (DIVERGING if signed else PAPER)
        ]
    )
    finite = np.isfinite(values)
    if signed:
        high = max(abs(low), abs(high))
        low = -high
    share = (
        (np.where(finite, values, low) - low) / (high - low)
        if high > low
        else np.zeros(values.shape)
    )
    at = np.clip(share, 0, 1) * (len(stops) - 1)
    begin = np.minimum(at.astype(int), len(stops) - 2)
    part = (at - begin)[..., None]
    mixed = stops[begin] * (1 - part) + stops[begin + 1] * part
    found: Array = np.where(finite[..., None], np.rint(mixed), NONE).astype(np.uint8)
    return found


def ink_on(colour: Sequence[int]) -> str:
    """Black or white, whichever has more contrast on a colour: 4.58 to 1 at least (WCAG 2.2,
    relative luminance)."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (one / 255 for one in colour)
    ]
    return (
        "#000000"
        if 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179
        else "#ffffff"
    )


def number(value: float) -> str:
    """A number to four digits."""
    return "–" if not math.isfinite(value) else f"{value:.4g}"


@dataclass(frozen=True)
class Heat:
    """Numbers (R, C) as colours, with the names of ``rows`` and ``columns`` and, it may be,
    ``words`` in the cells.

    ``span`` is the least and greatest number of the scale (None: those there are); ``signed`` has
    zero in the middle.
    """

    title: str
    values: Array
    rows: Sequence[str]
    columns: Sequence[str]
    words: Sequence[Sequence[str]] | None = None
    signed: bool = False
    span: tuple[float, float] | None = None

    def _scale(self) -> tuple[float, float]:
        if self.span is not None:
            return self.span
        some = self.values[np.isfinite(self.values)]
        low, high = (float(some.min()), float(some.max())) if some.size else (0.0, 1.0)
        return (-max(abs(low), abs(high)), max(abs(low), abs(high))) if self.signed else (low, high)

    def html(self) -> str:
        """Words in cells as a table, each number where a pointer rests; without words, or of many
        cells, a picture."""
        if self.words is None or self.values.size > CELLS:
            return self.drawing().img()
        painted = colours(self.values, *self._scale(), self.signed)
        centred = f"{TH};text-align:center"
        head = "".join(
            f'<th style="{centred}">{written(name)}</th>' for name in ("", *self.columns)
        )
        lines = [f'<tr style="{TR}">{head}</tr>']
        for at, name in enumerate(self.rows):
            cells = []
            for column in range(len(self.columns)):
                rgb, value = painted[at, column].tolist(), float(self.values[at, column])
                word = written(self.words[at][column])
                style = f"{TD};background:#{bytes(rgb).hex()};color:{ink_on(rgb)}"
                told = written(f"{name}, {self.columns[column]}: {number(value)}")
                cells.append(f'<td title="{told}" style="{style}">{word}</td>')
            lines.append(
                f'<tr style="{TR}"><th style="{TH}">{written(name)}</th>{"".join(cells)}</tr>'
            )
        table = f'<table style="{TABLE}">{"".join(lines)}</table>'
        return f"{headed(self.title)}{table}{self._legend().img()}"

    def _legend(self) -> Drawing:
        low, high = self._scale()
        steps = np.linspace(low, high, 64)[None]
        left = wide(number(low)) + 6
        marks: list[Mark] = [
            Words(0, 12, number(low), fill=FAINT),
            Raster(left, 3, 120, 10, colours(steps, low, high, self.signed)),
            Words(left + 126, 12, number(high), fill=FAINT),
        ]
        return Drawing(
            left + 132 + wide(number(high)),
            17,
            f"scale from {number(low)} to {number(high)}",
            marks,
        )

    def drawing(self) -> Drawing:
        """As a drawing with its names, where a side has no more than can be read, and its scale."""
        R, C = self.values.shape
        box, size = (CELL if side <= LABELLED else max(1.0, WIDTH / side) for side in (C, R))
        if self.words is not None:
            box = max(box, 12 + max((wide(word) for row in self.words for word in row), default=0))
        named = [side <= LABELLED for side in (R, C)]
        left = 10 + max((wide(name) for name in self.rows), default=0) if named[0] else 0.0
        turned = max((wide(name) for name in self.columns), default=0) > box - 4
        top = 22.0 + (
            (max((wide(n) for n in self.columns), default=0) if turned else SIZE) + 8
            if named[1]
            else 0
        )
        pixels = colours(self.values, *self._scale(), self.signed)
        marks: list[Mark] = [Words(0, 13, self.title)]
        if named[1]:
            for at, name in enumerate(self.columns):
                marks.append(
                    Words(left + box * at + box / 2 + 4, top - 5, name, turned=True)
                    if turned
                    else Words(left + box * at + box / 2, top - 5, name, "middle")
                )
        marks += [
            Words(left - 5, top + size * at + size / 2 + 4, n, "end")
            for at, n in enumerate(self.rows)
            if named[0]
        ]
        if self.words is None:
            marks.append(Raster(left, top, box * C, size * R, pixels))
        for at, row in enumerate(self.words or ()):
            for column, word in enumerate(row):
                rgb = pixels[at, column].tolist()
                told = number(float(self.values[at, column]))
                marks.append(
                    Box(
                        left + box * column,
                        top + size * at,
                        box,
                        size,
                        f"#{bytes(rgb).hex()}",
                        told,
                    )
                )
                middle = left + box * column + box / 2
                marks.append(
                    Words(middle, top + size * at + size / 2 + 4, word, "middle", fill=ink_on(rgb))
                )
        width, height = max(left + box * C, wide(self.title)), top + size * R
        legend = self._legend()
        marks += legend.moved(left, height + 6)
        width, height = max(width, left + legend.width), height + 6 + legend.height
        return Drawing(width, height, self.title, marks)


@dataclass(frozen=True)
class Table:
    """Cells of text; the columns numbered in ``left`` begin at the left, the others end at the
    right."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[int] = (0,)

    def html(self) -> str:
        """As a table."""

        def cell(kind: str, at: int, text: str) -> str:
            side = "left" if at in self.left else "right"
            style = f"{TH if kind == 'th' else TD};text-align:{side};white-space:pre-wrap"
            return (
                f'<{kind} style="{style}">{"<br>".join(map(written, text.splitlines()))}</{kind}>'
            )

        head = "".join(cell("th", at, text) for at, text in enumerate(self.heading))
        rows = [
            f'<tr style="{TR}">{"".join(cell("td", at, t) for at, t in enumerate(row))}</tr>'
            for row in self.rows
        ]
        return (
            f'{headed(self.title)}<table style="{TABLE}"><tr '
            f'style="{TR}">{head}</tr>{"".join(rows)}</table>'
        )

    def drawing(self) -> Drawing:
        """As a drawing."""
        lines = [
            [" ".join(text.split())[:LONGEST] for text in row] for row in (self.heading, *self.rows)
        ]
        sizes = [
            max(wide(row[at]) for row in lines if at < len(row)) + 16
            for at in range(len(self.heading))
        ]
        marks: list[Mark] = [Words(0, 13, self.title)]
        for y, row in enumerate(lines):
            x = 0.0
            for at, text in enumerate(row):
                anchor, place = ("start", x) if at in self.left else ("end", x + sizes[at] - 16)
                marks.append(Words(place, 36 + 18 * y, text, anchor, fill=FAINT if y == 0 else INK))
                x += sizes[at]
        return Drawing(max(sum(sizes), wide(self.title)), 28 + 18 * len(lines), self.title, marks)


@dataclass(frozen=True)
class Curves:
    """Lines over one axis: name -> (x, y), of which ``dots`` are drawn with a dot at each point."""

    title: str
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    x: str = "step"
    dots: Sequence[str] = ()
    size: tuple[int, int] = field(default=(620, 220))

    def html(self) -> str:
        """As a picture."""
        return self.drawing().img()

    def drawing(self) -> Drawing:
        """As a drawing with both axes; of many points the least and greatest of each stretch, so
        that spikes stay."""
        drawn = {name: thinned(*line) for name, line in self.lines.items() if len(line[0])}
        every = [point for line in drawn.values() for point in line]
        width, height = self.size
        marks: list[Mark] = [Words(0, 13, self.title)]
        if not every:
            return Drawing(width, 40, self.title, [*marks, Words(0, 34, "nothing yet", fill=FAINT)])
        (x0, x1), (y0, y1) = ((min(some), max(some)) for some in zip(*every, strict=True))
        x1, y1 = x1 if x1 > x0 else x0 + 1, y1 if y1 > y0 else y0 + (abs(y0) or 1)
        left, top, right, foot = 64.0, 24.0, width - 16.0, height - 40.0

        def place(point: tuple[float, float]) -> tuple[float, float]:
            share = (point[0] - x0) / (x1 - x0), (point[1] - y0) / (y1 - y0)
            return left + share[0] * (right - left), foot - share[1] * (foot - top)

        for y in ticks(y0, y1):
            marks.append(Line([(left, place((x0, y))[1]), (right, place((x0, y))[1])], "#e4e4e4"))
            marks.append(Words(left - 6, place((x0, y))[1] + 4, number(y), "end", fill=FAINT))
        for x in ticks(x0, x1):
            marks.append(Words(place((x, y0))[0], foot + 16, f"{x:,.6g}", "middle", fill=FAINT))
        marks.append(Words((left + right) / 2, foot + 33, self.x, "middle", fill=FAINT))
        beside = right
        for at, (name, line) in enumerate(drawn.items()):
            colour = CATEGORIES[at % len(CATEGORIES)]
            points = [place(point) for point in line]
            marks.append(Line(points if len(points) > 1 else points * 2, colour))
            if name in self.dots:
                marks += [Box(x - 2.5, y - 2.5, 5, 5, colour) for x, y in points]
            beside -= wide(name) + 22
            marks += [Box(beside, 5, 10, 10, colour), Words(beside + 14, 14, name)]
        return Drawing(width, height, self.title, marks)


@dataclass(frozen=True)
class Prose:
    """Sentences."""

    lines: Sequence[str]
    title: str = ""

    def html(self) -> str:
        """As paragraphs."""
        return "".join(
            f'<p style="margin:4px 0;color:#555">{written(line)}</p>' for line in self.lines
        )

    def drawing(self) -> Drawing:
        """As a drawing, a line each."""
        marks: list[Mark] = [
            Words(0, 14 + 18 * at, line, fill="#555555") for at, line in enumerate(self.lines)
        ]
        return Drawing(max(map(wide, self.lines), default=1), 18 * len(self.lines) or 1, "", marks)


@dataclass(frozen=True)
class Folded:
    """Charts that are opened by a click on their title; in a drawing they stand side by side."""

    title: str
    charts: Sequence[Heat | Table | Curves | Prose]

    def html(self) -> str:
        """Closed."""
        inside = "".join(f'<div style="{BESIDE}">{chart.html()}</div>' for chart in self.charts)
        return (
            "<details><summary "
            f'style="cursor:pointer">{written(self.title)}</summary>{inside}</details>'
        )

    def drawing(self) -> Drawing:
        """All of them."""
        return together(
            [chart.drawing() for chart in self.charts],
            columns=math.ceil(math.sqrt(len(self.charts))),
        )


Chart: TypeAlias = Heat | Table | Curves | Prose | Folded
BESIDE = "display:inline-block;vertical-align:top;margin:6px 14px 0 0"


def headed(title: str) -> str:
    """A title above what follows."""
    return f"<div>{written(title)}</div>" if title else ""


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from ``low`` to ``high``, at most so many."""
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    begin, end = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(begin, end + 1)]


TABLE = "border-collapse:collapse;margin:2px 0 6px 0;font-size:12px;border:none"
TR = "background:#ffffff;border:none"
TH = (
    "padding:1px "
    "6px;font-weight:600;color:#555;background:#ffffff;text-align:right;white-space:nowrap;border:none"
)
TD = "text-align:center;padding:1px 6px;color:#1b1b1b;border:none;min-width:10px;max-width:640px"


def thinned(x: Sequence[float], y: Sequence[float], most: int = 300) -> list[tuple[float, float]]:
    """The points of a line; of more than ``most`` the least and the greatest of each stretch, in
    their order."""
    points = [(float(a), float(b)) for a, b in zip(x, y, strict=True) if math.isfinite(b)]
    if len(points) <= most:
        return points
    found: list[tuple[float, float]] = []
    for at in range(most // 2):
        some = points[at * len(points) // (most // 2) : (at + 1) * len(points) // (most // 2)]
        found += sorted(
            {min(some, key=lambda point: point[1]), max(some, key=lambda point: point[1])}
        )
    return found
