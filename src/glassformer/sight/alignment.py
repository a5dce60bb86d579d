"""Attention as a picture: a row for each word that looks, a column for each word that is looked at.

B batch, H heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from ..core.errors import need
from ..core.files import JsonObject
from ..core.nn import Model
from .figures.charts import Heat
from .figures.drawing import together
from .looking import look
from .reading import Edits
from .seen import Seen

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer

SHADES = " ░▒▓█", " .:*#"


@dataclass(frozen=True)
class Alignment:
    """The weights (T, S) of one attention, of a head or the mean of all, with the words of rows and
    columns."""

    path: str
    rows: list[str]
    columns: list[str]
    weights: Tensor

    def to_dict(self) -> JsonObject:
        return {**vars(self), "weights": self.weights.tolist()}

    def text(self, plain: bool = False) -> str:
        """For a terminal, the words of the columns from top to bottom; ``plain`` in ASCII."""
        shades = SHADES[plain]
        wide = max(map(len, self.rows))
        high = max(map(len, self.columns))
        standing = [word.rjust(high) for word in self.columns]
        lines = [
            " " * (wide + 1) + "".join(word[at] + " " for word in standing) for at in range(high)
        ]
        for word, row in zip(self.rows, self.weights.tolist(), strict=True):
            cells = (shades[min(round(weight * len(shades)), len(shades) - 1)] for weight in row)
            lines.append(word.rjust(wide) + " " + "".join(2 * cell for cell in cells))
        return "\n".join(line.rstrip() for line in lines)


def svg(pictures: Sequence[Alignment]) -> str:
    """All of them as one drawing, one below the other."""
    heats = [
        Heat(picture.path, picture.weights.numpy(), picture.rows, picture.columns, span=(0.0, 1.0))
        for picture in pictures
    ]
    return together([heat.drawing() for heat in heats]).svg()


def alignments(
    model: Model,
    tokenizer: Tokenizer,
    text: str,
    *patterns: str,
    source: str | None = None,
    head: int | None = None,
    edits: Edits = (),
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
    need(
        bool(pictures),
        'None of these values is an attention pattern; give a name that ends in "pattern", as '
        '"*.attn.pattern".',
    )
    if head is not None:
        Seen(pictures).head(head)  # refuses one that is not there
    # a row across is named by the word that comes of it
    written = [*recorded.words[1:], "" if tokenizer.eos is None else tokenizer.token(tokenizer.eos)]
    drawn = []
    for path, value in pictures.items():
        across, (_, words) = ".cross." in path, recorded.sides(path)
        weights = value[0].float()
        weights = weights.mean(0) if head is None else weights[head]
        drawn.append(Alignment(path, written if across else words, words, weights))
    return drawn
