"""A picture as a list of marks, written as SVG or painted as PNG: the same words and colours in
both."""

from __future__ import annotations

import base64
import io
import struct
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import UserError

Array: TypeAlias = npt.NDArray[Any]
INK, FAINT = "#1b1b1b", "#8a8a8a"
SIZE = 12  # of words, in dots


@dataclass(frozen=True)
class Box:
    """A filled rectangle; ``told`` is what a pointer that rests on it is told."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    told: str = ""

    def svg(self) -> str:
        """As an element."""
        place = (
            f'x="{self.x:g}" y="{self.y:g}" width="{self.width:g}" height="{self.height:g}" '
            f'fill="{self.fill}"'
        )
        return (
            f"<rect {place}><title>{written(self.told)}</title></rect>"
            if self.told
            else f"<rect {place}/>"
        )


@dataclass(frozen=True)
class Words:
    """A text that begins, ends or has its middle at x; ``turned`` reads upwards. y is its foot."""

    x: float
    y: float
    text: str
    anchor: str = "start"  # start, middle, end
    turned: bool = False
    fill: str = INK

    def svg(self) -> str:
        """As an element."""
        turn = f' transform="rotate(-90 {self.x:g} {self.y:g})"' if self.turned else ""
        anchor = "" if self.anchor == "start" else f' text-anchor="{self.anchor}"'
        return (
            f'<text x="{self.x:g}" y="{self.y:g}" '
            f'fill="{self.fill}"{anchor}{turn}>{written(self.text)}</text>'
        )


@dataclass(frozen=True)
class Line:
    """A line through points."""

    points: Sequence[tuple[float, float]]
    stroke: str
    width: float = 1.2

    def svg(self) -> str:
        """As an element."""
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in self.points)
        return (
            f'<polyline points="{points}" fill="none" stroke="{self.stroke}" '
            f'stroke-width="{self.width}"/>'
        )


@dataclass(frozen=True)
class Raster:
    """A picture of (rows, columns, 3) bytes, stretched without smoothing."""

    x: float
    y: float
    width: float
    height: float
    pixels: Array

    def svg(self) -> str:
        """As an element."""
        place = f'x="{self.x:g}" y="{self.y:g}" width="{self.width:g}" height="{self.height:g}"'
        data = base64.b64encode(png(self.pixels)).decode()
        return (
            f'<image {place} preserveAspectRatio="none" style="image-rendering:pixelated" '
            f'href="data:image/png;base64,{data}"/>'
        )


Mark: TypeAlias = Box | Words | Line | Raster


@dataclass(frozen=True)
class Drawing:
    """Marks on paper of a size in dots; ``title`` is what it is called where it cannot be seen."""

    width: float
    height: float
    title: str = ""
    marks: list[Mark] = field(default_factory=list)

    def svg(self) -> str:
        """One SVG document: no script, nothing from elsewhere."""
        size = (
            f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} '
            f'{self.height:g}"'
        )
        look = f'font-family="DejaVu Sans, Verdana, sans-serif" font-size="{SIZE}"'
        inside = "".join(mark.svg() for mark in self.marks)
        paper = '<rect width="100%" height="100%" fill="#ffffff"/>'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} {look}>'
        return f"{head}<title>{written(self.title)}</title>{paper}{inside}</svg>\n"

    def img(self) -> str:
        """As an ``<img>`` that holds it: what is in it can do nothing to the page around it."""
        data = base64.b64encode(self.svg().encode()).decode()
        size = f'width="{self.width:g}" height="{self.height:g}"'
        return f'<img alt="{written(self.title)}" {size} src="data:image/svg+xml;base64,{data}">'

    def png(self, scale: int = 2) -> bytes:
        """Painted by Pillow in matplotlib's own letters; UserError where they are not installed."""
        try:
            from matplotlib import get_data_path
            from PIL import Image, ImageDraw, ImageFont
        except ImportError:
            raise UserError(
                "A PNG needs matplotlib; pip install matplotlib, or save as .svg."
            ) from None
        font = ImageFont.truetype(
            str(Path(get_data_path(), "fonts/ttf/DejaVuSans.ttf")), SIZE * scale
        )
        paper = Image.new("RGB", (round(self.width * scale), round(self.height * scale)), "#ffffff")
        brush = ImageDraw.Draw(paper)
        for mark in self.marks:
            if isinstance(mark, Box):
                right, foot = (mark.x + mark.width) * scale, (mark.y + mark.height) * scale
                brush.rectangle(
                    (mark.x * scale, mark.y * scale, right - 1, foot - 1), fill=mark.fill
                )
            elif isinstance(mark, Line):
                points = [(x * scale, y * scale) for x, y in mark.points]
                brush.line(points, fill=mark.stroke, width=round(mark.width * scale))
            elif isinstance(mark, Raster):
                size = round(mark.width * scale), round(mark.height * scale)
                image = Image.fromarray(mark.pixels).resize(size, Image.Resampling.NEAREST)
                paper.paste(image, (round(mark.x * scale), round(mark.y * scale)))
            else:
                at = (round(mark.x * scale), round(mark.y * scale))
                _paint(paper, brush, mark, at, font)
        held = io.BytesIO()
        paper.save(held, "PNG", optimize=True)
        return held.getvalue()

    def moved(self, x: float, y: float) -> list[Mark]:
        """Its marks, as they stand in a larger drawing that it begins at (x, y) of."""
        return [
            replace(mark, points=[(a + x, b + y) for a, b in mark.points])
            if isinstance(mark, Line)
            else replace(mark, x=mark.x + x, y=mark.y + y)
            for mark in self.marks
        ]


def _paint(paper: Any, brush: Any, words: Words, at: tuple[int, int], font: Any) -> None:
    """One text; what is turned is painted beside and turned then."""
    anchor = {"start": "ls", "middle": "ms", "end": "rs"}[words.anchor]
    text = plain(words.text)
    if not words.turned:
        brush.text(at, text, fill=words.fill, font=font, anchor=anchor)
        return
    from PIL import Image, ImageDraw

    left, top, right, foot = (round(side) for side in font.getbbox(text or " ", anchor="ls"))
    beside = Image.new("L", (max(1, right - left), max(1, foot - top)), 0)
    ImageDraw.Draw(beside).text((-left, -top), text, fill=255, font=font, anchor="ls")
    turned = beside.transpose(Image.Transpose.ROTATE_90)
    long = turned.height
    begin = at[1] - {"start": long, "middle": long // 2, "end": 0}[words.anchor]
    paper.paste(Image.new("RGB", turned.size, words.fill), (at[0] + top, begin), turned)


def together(drawings: Sequence[Drawing], columns: int = 1, gap: int = 14) -> Drawing:
    """Several as one, ``columns`` side by side."""
    rows = [drawings[at : at + columns] for at in range(0, len(drawings), columns)]
    marks: list[Mark] = []
    y = width = 0.0
    for row in rows:
        x = 0.0
        for one in row:
            marks += one.moved(x, y)
            x += one.width + gap
        y, width = y + max(one.height for one in row) + gap, max(width, x - gap)
    return Drawing(width, max(y - gap, 1), drawings[0].title if drawings else "", marks)


def plain(text: str) -> str:
    """A text without what has no shape: controls, marks that turn the direction, halves of
    characters."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text)


def written(text: str) -> str:
    """A text as HTML and XML hold it, in quotes or between tags."""
    return escape(plain(text))


def wide(text: str) -> float:
    """About how many dots a text takes; Chinese, Japanese and Korean are twice as wide."""
    return sum(SIZE if unicodedata.east_asian_width(one) in "WF" else 0.62 * SIZE for one in text)


def png(pixels: Array) -> bytes:
    """(rows, columns, 3) bytes as a PNG."""
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(pixels, dtype=np.uint8))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    size = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", size)
        + chunk(b"IDAT", zlib.compress(rows, 9))
        + chunk(b"IEND", b"")
    )
