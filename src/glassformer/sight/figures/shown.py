"""A result that shows itself: HTML without scripts in a notebook, and a page, picture, table or
tensors on disk.

Nothing here needs a kernel, a network or a script, so that a saved notebook still shows it next
week, in an editor that does not trust it, and as a file on a stick. Every text passes
``drawing.written`` on its way.
"""

from __future__ import annotations

import csv
import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from ...core import files
from ...core.checkpoints.tensors import open_file
from ...core.errors import UserError, need
from ...core.files import JsonObject
from ..wire import packed
from .charts import BESIDE, Chart, Heat, TableFigure, drawings
from .drawing import Array, Drawing, together

MOST = 2_000_000  # bytes of a page, and of what a notebook shows
KINDS = (".html", ".svg", ".png", ".csv", ".safetensors")
AREA = 60_000_000  # pixels of a PNG
BOX = (
    "background:#ffffff;color:#1b1b1b;font:13px/1.4 system-ui,sans-serif;padding:10px;"
    "border-radius:6px;overflow-x:auto"
)
Records: TypeAlias = tuple[Sequence[str], Iterable[Sequence[Any]]]
"""Names of columns, and rows of them."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


class Shown(ABC):
    """The base of results that show themselves."""

    @property
    @abstractmethod
    def title(self) -> str:
        """A title in some words."""

    @abstractmethod
    def charts(self) -> Iterator[Chart]:
        """Charts in order, each made when it is asked for."""

    @abstractmethod
    def records(self) -> Records:
        """Every number as rows, with the names of their columns."""

    def tensors(self) -> dict[str, Array]:
        """Every number by its name: the columns of the rows that hold numbers."""
        return {name: np.array(column) for name, column in self._columns(float)}

    def facts(self) -> Mapping[str, Any]:
        """Metadata of a file of tensors, as JSON holds it: the other columns of the rows."""
        return {"title": self.title, **dict(self._columns(str, int))}

    def _columns(self, *kinds: type) -> Iterator[tuple[str, Sequence[Any]]]:
        names, rows = self.records()
        for name, column in zip(names, zip(*rows, strict=True), strict=True):
            if all(isinstance(x, kinds) for x in column if x is not None):
                yield name, column

    def _table(self, *_: Any) -> TableFigure:
        """The numbers for a terminal, rounded; what a result is asked for may choose among them."""
        return TableFigure("", *self.records())

    def table(self, *choice: int) -> list[str]:
        """The numbers as lines for a terminal."""
        return self._table(*choice).lines()

    def to_dict(self) -> JsonObject:
        """Every field, as JSON holds it."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    def _repr_html_(self) -> str:
        return fragment(self)

    def __repr__(self) -> str:
        """In short: a notebook keeps it beside the picture, and a dataclass's own has every
        number."""
        return f"<{type(self).__name__}: {self.title}>"

    def save(self, path: str | Path, most: int = MOST) -> Path:
        """Write it as .html (``most`` bytes at most), .svg, .png, .csv or .safetensors, by what the
        name ends in."""
        target = Path(path).expanduser()
        kind = target.suffix.lower()
        data: str | bytes
        if kind in (".html", ".htm"):
            data = document(self.title, fragment(self, most - 2000))
        elif kind == ".svg":
            data = drawing_of(self).svg()
        elif kind == ".png":
            drawing = drawing_of(self)
            data = drawing.png(1 if drawing.width * drawing.height * 4 > AREA else 2)
        elif kind == ".csv":
            data = as_csv(*self.records())
        elif kind == ".safetensors":
            facts = {
                name: json.dumps(fact, ensure_ascii=False) for name, fact in self.facts().items()
            }
            data = packed(self.tensors(), facts)
        else:
            raise UserError(
                f"{target} has an unknown file type; end the name in {', '.join(KINDS)}."
            )
        files.write(target, data)
        return target


class Saved(Shown):
    """A result that its file of tensors holds whole: ``load`` is ``save`` backwards."""

    noun: ClassVar[str]  # what it is called, and by which command it is made
    command: ClassVar[str]
    not_json: ClassVar[tuple[str, ...]]  # fields: tensors, and the name of the file

    def to_dict(self) -> JsonObject:
        """All but the tensors, as JSON holds it."""
        return {name: x for name, x in vars(self).items() if name not in self.not_json}

    def facts(self) -> Mapping[str, Any]:
        """Metadata that ``load`` reads."""
        return {"format": f"glassformer {self.noun} 1", **self.to_dict()}

    @classmethod
    @abstractmethod
    def _of(cls, path: str | Path, file: Any, facts: dict[str, Any]) -> Self:
        """The result of a file of tensors and of these facts."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The one in a file; UserError where it holds none."""
        from safetensors import safe_open

        file = open_file(Path(path))
        with safe_open(str(path), "pt") as opened:
            metadata = opened.metadata() or {}
        need(
            metadata.pop("format", None) == json.dumps(f"glassformer {cls.noun} 1"),
            f"{path} is no {cls.noun}; make one: glassformer {cls.command}.",
        )
        try:
            facts = {name: json.loads(value) for name, value in metadata.items()}
            return cls._of(path, file, facts)
        except (LookupError, ValueError, TypeError) as error:
            message = f"{path} is damaged ({error}); make the {cls.noun} again."
            raise UserError(message) from None


def fragment(result: Shown, most: int = MOST - 100_000) -> str:
    """The charts as HTML of at most ``most`` bytes; what no longer fits is left out from the end,
    and that is said."""
    content = f'<div tabindex="0" style="{BOX}"><b>{escape(result.title)}</b>'
    size = len(content.encode()) + 300
    left_out = 0
    for chart in result.charts():
        html = chart.html()
        html = f'<div style="{BESIDE}">{html}</div>' if isinstance(chart, Heat) else html
        if size + len(html.encode()) > most:
            left_out += 1
            continue
        content += html
        size += len(html.encode())
    if left_out:
        content += (
            f"<p>{left_out} of the pictures did not fit in {most / 1e6:.1f} MB; .csv and "
            ".safetensors hold every number.</p>"
        )
    return f"{content}</div>"


def drawing_of(result: Shown) -> Drawing:
    """All pictures as one drawing, one below the other."""
    return together(drawings(result.charts()))


def document(title: str, body: str, policy: str = POLICY, head: str = "") -> str:
    """One HTML document that may load nothing and, by this ``policy``, run nothing."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"{head}</head><body>{body}</body></html>\n"
    )


def as_csv(heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV, numbers with all their digits; what is not finite is empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(heading)
    for row in rows:
        writer.writerow([None if isinstance(x, float) and not math.isfinite(x) else x for x in row])
    return file.getvalue()
