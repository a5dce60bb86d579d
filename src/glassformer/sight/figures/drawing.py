"""A picture as a list of marks, written as SVG, or drawn by matplotlib as PNG."""

from __future__ import annotations

import base64
import io
import struct
import unicodedata
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...core.errors import UserError

Array: TypeAlias = npt.NDArray[Any]
INK, FAINT = "#1b1b1b", "#8a8a8a"
FONT_SIZE = 12  # in pixels
LINE_WIDTH = 1.2
ALIGNMENTS = {"start": "left", "middle": "center", "end": "right"}  # SVG's names: matplotlib's
LARGEST_SIDE = 1 << 16  # pixels of a side from which on matplotlib draws nothing


def element(name: str, content: str = "", **attributes: Any) -> str:
    """An SVG element around its content; in the names of attributes _ stands for -."""
    pairs = "".join(
        f' {key.replace("_", "-")}="{f"{value:g}" if isinstance(value, float) else value}"'
        for key, value in attributes.items()
    )
    if content:
        return f"<{name}{pairs}>{content}</{name}>"
    return f"<{name}{pairs}/>"


@dataclass(frozen=True)
class Box:
    """A filled rectangle; ``tooltip`` is shown where a pointer rests on it."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    tooltip: str = ""

    def svg(self) -> str:
        return element(
            "rect",
            element("title", written(self.tooltip)) if self.tooltip else "",
            x=self.x,
            y=self.y,
            width=self.width,
            height=self.height,
            fill=self.fill,
        )

    def paint(self, axes: Any) -> None:
        x = (self.x, self.x + self.width)
        axes.fill_between(x, self.y, self.y + self.height, color=self.fill, linewidth=0)


@dataclass(frozen=True)
class Label:
    """A text that begins, ends or has its middle at x; ``turned`` reads upwards. y is its foot."""

    x: float
    y: float
    text: str
    anchor: str = "start"  # start, middle, end
    turned: bool = False
    fill: str = INK

    def svg(self) -> str:
        turn = {"transform": f"rotate(-90 {self.x:g} {self.y:g})"} if self.turned else {}
        place = {"x": self.x, "y": self.y, "fill": self.fill, "text_anchor": self.anchor}
        return element("text", written(self.text), **place, **turn)

    def paint(self, axes: Any) -> None:
        axes.text(
            self.x,
            self.y,
            plain(self.text),
            color=self.fill,
            fontsize=FONT_SIZE,
            ha=ALIGNMENTS[self.anchor],
            va="baseline",
            rotation=90 * self.turned,
            rotation_mode="anchor",
            parse_math=False,
        )


@dataclass(frozen=True)
class Polyline:
    """A line through points, which count from (x, y)."""

    x: float
    y: float
    points: Sequence[tuple[float, float]]
    stroke: str

    def svg(self) -> str:
        points = " ".join(f"{x + self.x:.1f},{y + self.y:.1f}" for x, y in self.points)
        return element(
            "polyline", points=points, fill="none", stroke=self.stroke, stroke_width=LINE_WIDTH
        )

    def paint(self, axes: Any) -> None:
        x, y = np.transpose(self.points)
        axes.plot(x + self.x, y + self.y, color=self.stroke, linewidth=LINE_WIDTH)


@dataclass(frozen=True)
class Raster:
    """A picture of (rows, columns, 3) bytes, stretched without smoothing."""

    x: float
    y: float
    width: float
    height: float
    pixels: Array

    def svg(self) -> str:
        data = base64.b64encode(png(self.pixels)).decode()
        return element(
            "image",
            x=self.x,
            y=self.y,
            width=self.width,
            height=self.height,
            preserveAspectRatio="none",
            style="image-rendering:pixelated",
            href=f"data:image/png;base64,{data}",
        )

    def paint(self, axes: Any) -> None:
        extent = (self.x, self.x + self.width, self.y + self.height, self.y)
        axes.imshow(self.pixels, extent=extent, aspect="auto", interpolation="nearest")


Mark: TypeAlias = Box | Label | Polyline | Raster


@dataclass(frozen=True)
class Drawing:
    """Marks on white paper of a size in pixels; ``title`` names it where it cannot be seen."""

    width: float
    height: float
    title: str = ""
    marks: list[Mark] = field(default_factory=list)

    def svg(self) -> str:
        """One SVG document: no script, nothing from elsewhere."""
        marks = "".join(mark.svg() for mark in self.marks)
        paper = element("rect", width="100%", height="100%", fill="#ffffff")
        return element(
            "svg",
            element("title", written(self.title)) + paper + marks,
            xmlns="http://www.w3.org/2000/svg",
            role="img",
            width=self.width,
            height=self.height,
            viewBox=f"0 0 {self.width:g} {self.height:g}",
            font_family="DejaVu Sans, Verdana, sans-serif",
            font_size=FONT_SIZE,
        )

    def img(self) -> str:
        """An ``<img>`` that holds it, so that nothing in it can act on the page around it."""
        data = base64.b64encode(self.svg().encode()).decode()
        size = f'width="{self.width:g}" height="{self.height:g}"'
        return f'<img alt="{written(self.title)}" {size} src="data:image/svg+xml;base64,{data}">'

    def png(self, scale: int = 2) -> bytes:
        """Drawn by matplotlib; UserError where that is not installed, and for what is too large."""
        try:
            from matplotlib import figure
        except ImportError:
            raise UserError(
                "A PNG needs matplotlib; pip install matplotlib, or save as .svg."
            ) from None
        size = round(self.width * scale), round(self.height * scale)
        if max(size) >= LARGEST_SIDE:
            raise UserError(f"A PNG of {size[0]:,} x {size[1]:,} is too large; save as .svg.")
        dpi = 72 * scale
        paper = figure.Figure(figsize=(size[0] / dpi, size[1] / dpi), dpi=dpi)
        axes = paper.add_axes((0, 0, 1, 1))
        for mark in self.marks:
            mark.paint(axes)
        axes.set(xlim=(0, self.width), ylim=(self.height, 0))
        axes.axis("off")
        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # letters that the font lacks are drawn as boxes
            paper.savefig(file, format="png")
        return file.getvalue()

    def moved(self, x: float, y: float) -> list[Mark]:
        """Its marks in a larger drawing, in which it begins at (x, y)."""
        return [replace(mark, x=mark.x + x, y=mark.y + y) for mark in self.marks]


def together(drawings: Sequence[Drawing], columns: int = 1, gap: int = 14) -> Drawing:
    """Several drawings as one, ``columns`` side by side."""
    marks: list[Mark] = []
    y = width = 0.0
    for first in range(0, len(drawings), columns):
        row = drawings[first : first + columns]
        x = 0.0
        for drawing in row:
            marks += drawing.moved(x, y)
            width = max(width, x + drawing.width)
            x += drawing.width + gap
        y += max(drawing.height for drawing in row) + gap
    return Drawing(width, max(y - gap, 1), drawings[0].title if drawings else "", marks)


def plain(text: str) -> str:
    """A text without what has no shape: controls, marks that turn the direction, halves of
    characters."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def written(text: str) -> str:
    """A text as HTML and XML hold it, in quotes or between tags."""
    return escape(plain(text))


def text_width(text: str) -> float:
    """About how many pixels a text takes; Chinese, Japanese and Korean are twice as wide."""
    return FONT_SIZE * sum(1 if unicodedata.east_asian_width(c) in "WF" else 0.62 for c in text)


def png(pixels: Array) -> bytes:
    """(rows, columns, 3) bytes as a PNG."""
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels, dtype=np.uint8))
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2, 0, 0, 0)
    chunks = (b"IHDR" + header, b"IDAT" + zlib.compress(rows, 9), b"IEND")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in chunks
    )
