"""Pictures of who may look at whom: a row for each query, a column for each key; and of
which process computes what."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from ..core import config
from ..core.config.mask import PAIRS_AT_ONCE, MaskRule, TokenInfo, dense_mask, ring_pieces
from ..core.config.mask_expressions import parse_rule, rules
from ..core.errors import need
from .figures.drawing import Array, Box, Drawing, Mark, png

EXAMPLES = {
    "prefix": "prefix(6)",
    "window": "window(5)",
    "every": "every(4)",
    "chunk": "chunk(6)",
    "tail": "tail(6, 2)",
    "strided": "strided(5)",
    "fixed": "fixed(6, 2)",
}
"""The rules that a name alone draws, where the rule needs numbers."""
SCENES = {
    "documents": "Three documents packed in one row: each token sees its own.",
    "padding": "The last third of the row is padding: nobody sees it.",
    "cross": "A decoder looks at an encoder's output, the end of which is padding.",
}
"""Masks that no rule makes but the data."""
LONGEST = 1 << 15
"""Tokens: a count of all their pairs takes seconds."""
NEVER, LATER, SEEN = 0, 1, 2
"""A pair that is not visited; only where nothing is causal, the key being later than the
query; always."""
SIDE = 8  # pixels of a cell in a drawing
COLORS = ("#f2f2f0", "#9ec5e8", "#1f5f9e")
GLYPHS = (" ·", "░░", "██"), (" .", "--", "##")
PAINT = ("\x1b[2m", "\x1b[36m", "\x1b[34m")
PROCESSES = (
    "#1f5f9e",
    "#d1722b",
    "#3f8f55",
    "#8a5aa8",
    "#b03a48",
    "#7a6a4f",
    "#c2679b",
    "#5b6470",
    "#a8a032",
)
"""The colour of each process of a ring; they repeat."""


@dataclass(frozen=True)
class Picture:
    """One rule in a row of ``length`` tokens, ``cells`` of NEVER, LATER, SEEN, each for ``scale`` x
    ``scale`` pairs.

    In a ring of processes SEEN + r is a pair that a decoder visits on process r, and ``pairs`` (r,
    s) counts those of process r's queries after s steps, when the keys of process r - s have come
    round.
    """

    name: str
    length: int
    cells: Array
    scale: int
    encoder: int  # pairs visited where tokens see both ways
    decoder: int  # pairs visited where they see what came before
    pairs: Array | None = None

    def to_dict(self) -> dict[str, object]:
        """The counts."""
        every, causal = self.all_pairs
        return {
            "name": self.name,
            "length": self.length,
            "pairs": every,
            "causal_pairs": causal,
            "visited": {"encoder": self.encoder, "decoder": self.decoder},
            "share": {"encoder": self.encoder / every, "decoder": self.decoder / every},
            "share_of_causal": self.decoder / causal,
            **({"ring": ring} if (ring := self.processes()) else {}),
        }

    @property
    def all_pairs(self) -> tuple[int, int]:
        """Pairs of all queries with all keys, and with those that are not later."""
        return self.length**2, self.length * (self.length + 1) // 2

    def processes(self) -> list[dict[str, list[Any]]]:
        """The columns of each process of a ring, [first, last] of each piece, and the pairs of each
        step."""
        if self.pairs is None:
            return []
        end = self.length - 1
        held = zip(ring_pieces(self.length, len(self.pairs)), self.pairs.tolist(), strict=True)
        return [
            {
                "columns": [[piece[0], min(piece[-1], end)] for piece in pieces if piece[0] <= end],
                "steps": steps,
            }
            for pieces, steps in held
        ]

    def text(self, color: bool = False, plain: bool = False) -> str:
        """For a terminal; ``plain`` in ASCII."""
        signs = [
            f"{PAINT[cell]}{glyph}\x1b[0m" if color else glyph
            for cell, glyph in enumerate(GLYPHS[plain])
        ]
        if self.pairs is not None:
            labels = [f"{process:>2}" for process in range(len(self.pairs))]
            ansi = [f"\x1b[{31 + process % 6}m{sign}\x1b[0m" for process, sign in enumerate(labels)]
            signs = [*signs[:SEEN], *(ansi if color else labels)]
        return "\n".join("".join(signs[cell] for cell in row) for row in self.cells.tolist())

    def legend(self, plain: bool = False) -> list[str]:
        """Legend of the signs, and the counts."""
        never, later, visible = (glyph.strip() for glyph in GLYPHS[plain])
        every, causal = self.all_pairs
        scale = "" if self.scale == 1 else f"; a sign stands for {self.scale} x {self.scale} pairs"
        if self.pairs is not None:
            note = f"0, 1, ..: the process that computes it   {later} later   {never} never{scale}"
            lines = (self._process(number, **ring) for number, ring in enumerate(self.processes()))
            return [note, *lines]
        return [
            f"{visible} visited   {later} only where tokens see both ways (encoder)   {never} "
            f"never{scale}",
            f"encoder: {self.encoder:,} of {every:,} pairs ({self.encoder / every:.2%})",
            f"decoder: {self.decoder:,} of {every:,} pairs ({self.decoder / every:.2%}), "
            f"{self.decoder / causal:.2%} of {causal:,} causal ones",
        ]

    def _process(self, number: int, columns: list[list[int]], steps: list[int]) -> str:
        places = " and ".join(f"{first}-{last}" for first, last in columns)
        terms = " + ".join(f"{pairs:,}" for pairs in steps)
        share = sum(steps) / max(1, self.decoder)
        return (
            f"process {number}: columns {places}; {sum(steps):,} pairs ({share:.1%}), step "
            f"by step {terms}"
        )

    @property
    def colors(self) -> tuple[str, ...]:
        """Colors by kind of cell."""
        if self.pairs is None:
            return COLORS
        return *COLORS[:SEEN], *(
            PROCESSES[process % len(PROCESSES)] for process in range(len(self.pairs))
        )

    def svg(self) -> str:
        """An SVG drawing; equal neighbours in a row are one rectangle."""
        rows, columns = self.cells.shape
        width = SIDE * columns
        height = SIDE * rows
        marks: list[Mark] = [Box(0, 0, width, height, COLORS[NEVER])]
        for y, row in enumerate(self.cells.tolist()):
            x = 0
            for kind, cells in groupby(row):
                length = len(list(cells))
                if kind != NEVER:
                    marks.append(Box(SIDE * x, SIDE * y, SIDE * length, SIDE, self.colors[kind]))
                x += length
        return Drawing(width, height, self.name, marks).svg()

    def png(self) -> bytes:
        """A PNG image, at least 512 pixels wide."""
        size = max(1, 512 // self.cells.shape[1])
        palette = np.array([list(bytes.fromhex(color[1:])) for color in self.colors])
        return png(palette[self.cells].repeat(size, 0).repeat(size, 1))


def picture(name: str, length: int = 24, most: int = 64, ring: int | None = None) -> Picture:
    """Picture of ``name`` (a rule's name, an expression of rules, or a scene), in at most
    ``most`` cells a side; with a ``ring`` of so many processes, who computes what of a decoder's
    pairs.

    Raises UserError for a rule that there is not, for a length below 1 or past LONGEST, and a ring
    that is too long.
    """
    fits = ring is None or 2 <= ring <= min(length // 2, 99)
    need(
        fits, f"--ring is {ring}; give 2 or more processes, at most half as many as tokens and 99."
    )
    need(length > 0, f"--length is {length}; give 1 or more.")
    need(
        length <= LONGEST, f"--length is {length}; give at most {LONGEST:,}: every pair is counted."
    )
    scene = name.strip().lower()
    mask_rule: MaskRule = (
        config.Full() if scene in SCENES else parse_rule(EXAMPLES.get(scene, name))
    )
    q, k = _scene(scene, np.arange(length))
    scale = -(-length // most)
    rows = []
    totals = np.zeros(2, int)
    owner = np.zeros(length, int)
    pairs = None if ring is None else np.zeros((ring, ring), int)
    for process, pieces in enumerate(ring_pieces(length, ring or 1)):
        for piece in pieces:
            owner[piece.start : piece.stop] = process
    several = scale * max(1, PAIRS_AT_ONCE // (scale * length))  # whole rows of cells at a time
    for start in range(0, length, several):
        queries = TokenInfo(*(None if x is None else x[start : start + several] for x in q))
        visible, before = (
            dense_mask(mask_rule, queries, k, causal=causal) for causal in (False, scene != "cross")
        )
        totals += visible.sum(), before.sum()
        query_owner = owner[start : start + several, None]
        rows.append(
            _shrink(np.where(before, SEEN + query_owner, np.where(visible, LATER, NEVER)), scale)
        )
        if pairs is not None:
            at, keys = before.nonzero()
            np.add.at(
                pairs, (query_owner[at, 0], (query_owner[at, 0] - owner[keys]) % len(pairs)), 1
            )
    encoder, decoder = totals.tolist()
    return Picture(
        scene if scene in SCENES else str(mask_rule),
        length,
        np.concatenate(rows),
        scale,
        encoder,
        decoder,
        pairs,
    )


def _shrink(cells: Array, scale: int) -> Array:
    """One cell for every square of ``scale`` pairs a side: the most that any of them is."""
    T, S = (range(0, side, scale) for side in cells.shape)
    return np.asarray(np.maximum.reduceat(np.maximum.reduceat(cells, T, 0), S, 1))


def _scene(name: str, pos: Array) -> tuple[TokenInfo, TokenInfo]:
    """Queries and keys of a row: for a rule, their positions alone."""
    length = len(pos)
    if name == "documents":
        return TokenInfo(pos, pos * 3 // length), TokenInfo(pos, pos * 3 // length)
    return TokenInfo(pos), TokenInfo(
        pos if name not in SCENES else np.where(pos < length - length // 3, pos, -1)
    )


def names() -> list[tuple[str, str]]:
    """Every rule and scene with the sentence that says what it is."""
    kinds = {**rules(), "a & b": config.Both, "a | b": config.Either}
    descriptions = {
        name: (kind.__doc__ or "").splitlines()[0].replace("``", "") for name, kind in kinds.items()
    }
    return [*descriptions.items(), *SCENES.items()]
