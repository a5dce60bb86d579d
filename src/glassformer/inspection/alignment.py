"""Attention as a picture: a row for each word that looks, a column for each word that is looked at.

B batch, H heads, T queries, S keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..errors import UserError, need
from ..nn import Model
from ..nn.editing import ModelEdit
from ..tokenizer import labels
from .looking import look, read_tokens

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer

SHADES = " ░▒▓█", " .:*#"
CELL = 18  # dots a side of a cell in a drawing


@dataclass(frozen=True)
class Alignment:
    """The weights (T, S) of one attention, of a head or the mean of all, with the words of rows and
    columns."""

    path: str
    rows: list[str]
    columns: list[str]
    weights: Tensor

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "rows": self.rows,
            "columns": self.columns,
            "weights": self.weights.tolist(),
        }

    def text(self, plain: bool = False) -> str:
        """For a terminal, the words of the columns from top to bottom; ``plain`` in ASCII."""
        shades, wide, high = SHADES[plain], max(map(len, self.rows)), max(map(len, self.columns))
        standing = [word.rjust(high) for word in self.columns]
        lines = [
            " " * (wide + 1) + "".join(word[at] + " " for word in standing) for at in range(high)
        ]
        for word, row in zip(self.rows, self.weights.tolist(), strict=True):
            cells = (shades[min(round(weight * len(shades)), len(shades) - 1)] for weight in row)
            lines.append(word.rjust(wide) + " " + "".join(2 * cell for cell in cells))
        return "\n".join(line.rstrip() for line in lines)

    def svg(self, y: int = 0) -> str:
        """An SVG drawing that begins ``y`` dots down: the darker, the more."""
        x0, top, width, height = self._size()
        elements = [f'<rect width="{width}" height="{height}" fill="#ffffff"/>']
        for x, word in enumerate(self.columns):
            place = f"{x0 + CELL * x + 13},{top - 5}"
            elements.append(
                f'<text transform="translate({place}) rotate(-90)">{escape(word)}</text>'
            )
        for y, (word, row) in enumerate(zip(self.rows, self.weights.tolist(), strict=True)):
            at = top + CELL * y
            elements.append(
                f'<text x="{x0 - 5}" y="{at + 13}" text-anchor="end">{escape(word)}</text>'
            )
            for x, weight in enumerate(row):
                square = f'x="{x0 + CELL * x}" y="{at}" width="{CELL}" height="{CELL}"'
                elements.append(f'<rect {square} fill="#1f5f9e" fill-opacity="{weight:.3f}"/>')
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" y="{y}"'
        style = 'font-family="monospace" font-size="13"'
        return "\n".join(
            [f"{head} {style}>", f"<title>{escape(self.path)}</title>", *elements, "</svg>", ""]
        )

    def _size(self) -> tuple[int, int, int, int]:
        """Cells in pixels: left, top, width, height."""
        x0, top = (10 + 8 * max(map(len, words)) for words in (self.rows, self.columns))
        return x0, top, x0 + CELL * len(self.columns), top + CELL * len(self.rows)


def svg(drawn: Sequence[Alignment]) -> str:
    """All of them as one drawing, one below the other."""
    sizes = [picture._size()[2:] for picture in drawn]
    begins = list(itertools.accumulate((height + CELL for _, height in sizes), initial=0))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(w for w, _ in sizes)}" '
        f'height="{begins[-1] - CELL}">'
    )
    return "\n".join(
        [head, *(picture.svg(y) for picture, y in zip(drawn, begins, strict=False)), "</svg>", ""]
    )


def alignments(
    model: Model,
    tokenizer: Tokenizer,
    text: str,
    *patterns: str,
    source: str | None = None,
    head: int | None = None,
    edits: Sequence[ModelEdit | str] = (),
) -> list[Alignment]:
    """The attentions that match ``patterns`` while the model reads ``text``; of a pair, by default,
    those across.

    ``head`` is the one that is drawn, counted from 0; None draws the mean of all. ``edits`` change
    the run.

    A row across is named by the word that comes of it, the one after the word that is read. Raises
    UserError where nothing that matches is an attention.
    """
    names = patterns or ("*.cross.pattern" if source is not None else "*.pattern",)
    recorded = look(model, tokenizer, text, *names, source=source, edits=edits)
    pictures = {
        path: value
        for path, value in recorded.items()
        if path.endswith(".pattern") and value.ndim == 4
    }
    if not pictures:
        raise UserError(
            'None of these values is an attention; give a name that ends in "pattern", as '
            '"*.attn.pattern".'
        )
    least = min(value.shape[1] for value in pictures.values())
    need(
        head is None or 0 <= head < least,
        f"head is {head}; these attentions have heads 0 to {least - 1}.",
    )
    chosen = {
        path: value[0].float().mean(0) if head is None else value[0, head]
        for path, value in pictures.items()
    }
    return list(_named(chosen, tokenizer, read_tokens(model, tokenizer, text, source, edits)))


def _named(
    pictures: Mapping[str, Tensor], tokenizer: Tokenizer, metadata: Mapping[str, Any]
) -> Iterator[Alignment]:
    query_words = [_word(tokenizer, number) for number in metadata["ids"]]
    written = [*query_words[1:], "" if tokenizer.eos is None else tokenizer.token(tokenizer.eos)]
    key_words = (
        [_word(tokenizer.for_source, number) for number in metadata["source"]["ids"]]
        if "source" in metadata
        else query_words
    )
    for path, value in pictures.items():
        rows, columns = (
            (written, key_words)
            if ".cross." in path
            else 2 * (key_words if path.startswith("encoder.") else query_words,)
        )
        yield Alignment(path, rows, columns, value)


def _word(tokenizer: Tokenizer, number: int) -> str:
    """A token as every table shows it."""
    return labels.shown(tokenizer, [number])[0]
