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
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from .. import files
from ..errors import UserError
from .charts import BESIDE, Chart, Heat
from .drawing import Array, Drawing, together

MOST = 2_000_000  # bytes of a page, and of what a notebook shows
KINDS = (".html", ".svg", ".png", ".csv", ".safetensors")
AREA = 60_000_000  # dots of a PNG
BOX = (
    "background:#ffffff;color:#1b1b1b;font:13px/1.4 "
    "system-ui,sans-serif;padding:10px;border-radius:6px;overflow-x:auto"
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


class Shown(ABC):
    """What a result derives from; the members below say what there is to show."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is, in some words."""

    @abstractmethod
    def charts(self) -> Iterator[Chart]:
        """What is shown, in order, made when asked for."""

    @abstractmethod
    def records(self) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        """Every number as rows, with the names of their columns."""

    @abstractmethod
    def tensors(self) -> dict[str, Array]:
        """Every number by its name."""

    def facts(self) -> Mapping[str, Any]:
        """What a file of tensors says beside them, as JSON holds it."""
        return {"title": self.title}

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return fragment(self)

    def __repr__(self) -> str:
        """In short: a notebook keeps it beside the picture, and a dataclass would tell every
        number."""
        return f"<{type(self).__name__}: {self.title}>"

    def save(self, path: str | Path, most: int = MOST) -> Path:
        """Write it as .html (``most`` bytes at most), .svg, .png, .csv or .safetensors, by what the
        name ends in."""
        target = Path(path).expanduser()
        kind = target.suffix.lower()
        if kind in (".html", ".htm"):
            files.write(target, document(self.title, fragment(self, most - 2000)))
        elif kind == ".svg":
            files.write(target, drawn(self).svg())
        elif kind == ".png":
            whole = drawn(self)
            small = whole.width * whole.height * 4 > AREA
            files.write(target, whole.png(1 if small else 2))
        elif kind == ".csv":
            files.write(target, as_csv(*self.records()))
        elif kind == ".safetensors":
            files.write(target, as_safetensors(self.tensors(), self.facts()))
        else:
            raise UserError(
                f"{target} is not of a kind that is written here; end the name in "
                f"{', '.join(KINDS)}."
            )
        return target


def fragment(one: Shown, most: int = MOST - 100_000) -> str:
    """The charts as HTML of at most ``most`` bytes; what no longer fits is left out from the end,
    and that is said."""
    head, tail = f'<div tabindex="0" style="{BOX}"><b>{escape(one.title)}</b>', "</div>"
    parts, used, left_out = [head], len((head + tail).encode()) + 300, 0
    for chart in one.charts():
        made = (
            f'<div style="{BESIDE}">{chart.html()}</div>'
            if isinstance(chart, Heat)
            else chart.html()
        )
        size = len(made.encode())
        if used + size > most:
            left_out += 1
            continue
        parts.append(made)
        used += size
    if left_out:
        said = (
            f"{left_out} of the pictures did not fit in {most / 1e6:.1f} MB; .csv and "
            ".safetensors hold every number."
        )
        parts.append(f"<p>{said}</p>")
    return "".join([*parts, tail])


def drawn(one: Shown) -> Drawing:
    """All charts as one drawing, one below the other."""
    return together([chart.drawing() for chart in one.charts()])


def document(title: str, body: str, policy: str = POLICY, head: str = "") -> str:
    """One HTML document that may load nothing and, by this ``policy``, run nothing."""
    meta = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    meta += f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    start = (
        '<!doctype html><html lang="en"><head><meta '
        f'charset="utf-8"><title>{escape(title)}</title>{meta}{head}</head>'
    )
    return f"{start}<body>{body}</body></html>\n"


def as_csv(heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV, numbers with all their digits; what is not finite is empty."""
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(heading)
    for row in rows:
        writer.writerow(
            ["" if isinstance(one, float) and not math.isfinite(one) else one for one in row]
        )
    return page.getvalue()


def as_safetensors(tensors: Mapping[str, Array], facts: Mapping[str, Any]) -> bytes:
    """Tensors by name, each fact as JSON in the metadata."""
    from safetensors.numpy import save

    told = {name: json.dumps(fact, ensure_ascii=False) for name, fact in facts.items()}
    return save({name: np.ascontiguousarray(one) for name, one in tensors.items()}, metadata=told)
