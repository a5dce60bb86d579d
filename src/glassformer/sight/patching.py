"""Activation patching: where does what tells two texts apart pass through? (Vig et al. 2020, Meng
et al. 2022)

    clean      The Eiffel Tower is in   -> Paris
    corrupted  The Colosseum is in      -> Rome, with one value of the clean run in it: how much of Paris comes back?

How the runs are made fast: patched_runs.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import need
from ..core.nn import Model
from ..core.nn.model import inference
from . import streams
from .figures.charts import Chart, Heat, Prose, TableFigure
from .figures.drawing import Array
from .figures.progress import Progress, Report
from .figures.shown import Records, Shown
from .looking import Text
from .patched_runs import Job, RunPair

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer

PARTS = ("resid", "attn.write", "ffn.write")
OF_HEADS = ("q", "k", "v", "z", "scores", "pattern")
"""Values of an attention, which are patched head by head."""


@dataclass(frozen=True)
class PatchedPart:
    """One part in every layer: a row for each of ``paths`` (and head), a column for each position.

    ``value`` is what the answer's logit (or its difference to the wrong one's) becomes, ``effect``
    that on the way from the corrupted run, 0, to the clean one, 1. ``heads`` is empty where a part
    has none.
    """

    name: str
    paths: list[str]
    layers: list[int]
    heads: list[int]
    value: list[list[float]]
    effect: list[list[float]]

    def rows(self) -> list[str]:
        """Row names: L3, or L3.h4 of a head."""
        heads = [f".h{head}" for head in self.heads] or [""] * len(self.layers)
        return [f"L{layer}{head}" for layer, head in zip(self.layers, heads, strict=True)]


@dataclass(frozen=True, repr=False)
class PatchGrid(Shown):
    """Effects of patching each value of the clean run into the corrupted run.

    ``clean_value`` and ``corrupted_value`` are the logit of ``answer``, less that of ``wrong``
    where there is one, at position ``at`` of the two runs. ``positions`` are the columns; empty
    where each patch is of all positions.
    """

    answer: str
    wrong: str | None
    at: int
    clean: list[str]
    corrupted: list[str]
    positions: list[int]
    clean_value: float
    corrupted_value: float
    parts: list[PatchedPart]

    def __getitem__(self, name: str) -> PatchedPart:
        grids = {grid.name: grid for grid in self.parts}
        need(name in grids, f'There is no part "{name}" in this grid; it has {", ".join(grids)}.')
        return grids[name]

    @property
    def title(self) -> str:
        return f"Activation patching: the {self.measured}"

    @property
    def measured(self) -> str:
        less = "" if self.wrong is None else f" less {self.wrong}"
        return f"{self.metric} of {self.answer}{less} at {self.at}"

    @property
    def scale(self) -> str:
        """The values that an effect of 1 and one of 0 stand for."""
        return f"{self.clean_value:.4f} clean, {self.corrupted_value:.4f} corrupted; 0 to 1 between"

    def charts(self) -> Iterator[Chart]:
        """The effects of each part as a map, the last layer first, zero in the middle of the
        colours."""
        texts = (f"clean: {' '.join(self.clean)}", f"corrupted: {' '.join(self.corrupted)}")
        yield Prose([*texts, f"{self.metric} {self.scale}"])
        yield from map(self._map, self.parts)

    def _map(self, grid: PatchedPart) -> Heat:
        cells = np.array(grid.effect)[::-1]
        words = [[f"{effect:z.2f}" for effect in row] for row in cells.tolist()]
        span = (-1.0, 1.0)
        rows = grid.rows()[::-1]
        columns = [f"{position}:{token}" for position, token in self._places()] or ["all"]
        return Heat(grid.name, cells, rows, columns, words, signed=True, span=span)

    def records(self) -> Records:
        """A row for each patch."""
        names = "part path layer head position token value effect"
        return names.split(), self._rows()

    def _rows(self) -> Iterator[Sequence[Any]]:
        places = self._places() or [("all", "")]
        for grid in self.parts:
            for row, path in enumerate(grid.paths):
                head = grid.heads[row] if grid.heads else ""
                for place, *facts in zip(places, grid.value[row], grid.effect[row], strict=True):
                    yield (grid.name, path, grid.layers[row], head, *place, *facts)

    def tensors(self) -> dict[str, Array]:
        """``PART.value`` and ``PART.effect`` (rows, positions)."""
        named = [(f"{grid.name}.value", grid.value) for grid in self.parts]
        named += [(f"{grid.name}.effect", grid.effect) for grid in self.parts]
        return {name: np.array(numbers) for name, numbers in named}

    def _table(self, most: int = 10) -> TableFigure:
        """The largest effects, a line each."""
        best = sorted(self._rows(), key=lambda row: -abs(row[-1]))[:most]
        rows = []
        for _, path, _, head, position, token, value, effect in best:
            name = path if head == "" else f"{path}[{head}]"
            column = f"{position}:{token}" if self.positions else "all"
            rows.append((f"{effect:.3f}", value, name, column))
        heading = ("effect", self.metric, "patched", "at")
        return TableFigure.of("", heading, rows, (2, 3))

    def text(self, width: int | None = None) -> str:
        """For a terminal: effects to two decimals, the last layer first, as many columns side by
        side as fit."""
        return "\n\n".join(self._map(grid).text(grid.name, width) for grid in self.parts)

    @property
    def metric(self) -> str:
        return "logit" if self.wrong is None else "logit difference"

    def _places(self) -> list[tuple[int | str, str]]:
        """The columns' positions, with the corrupted text's token, and the clean one's where they
        differ."""
        places: list[tuple[int | str, str]] = []
        for at in self.positions:
            clean, corrupted = self.clean[at], self.corrupted[at]
            places.append((at, clean if clean == corrupted else f"{corrupted}<{clean}"))
        return places


def patch_grid(
    model: Model,
    tokenizer: Tokenizer | None,
    clean: Text,
    corrupted: Text,
    *,
    answer: str | int,
    wrong: str | int | None = None,
    parts: str | Sequence[str] = PARTS,
    positions: str | Sequence[int] = "each",
    at: int | None = None,
    source: Text | tuple[Text, Text] | None = None,
    progress: Report = True,
) -> PatchGrid:
    """Each part of each block patched from the clean run into the corrupted one, at each position
    by itself.

    Measured is the logit of ``answer`` (less that of ``wrong``) at position ``at`` (None: the last;
    an encoder's mask). ``parts`` are names within a block, such as "resid", "mid", "attn.write",
    "ffn.write"; "z" and other values of heads ("attn.q") are patched head by head. ``positions``
    are "each", numbers, or "all" at once. An encoder-decoder's blocks are the decoder's, with
    ``source`` beside both texts; where source is a pair (clean, corrupted) they are the encoder's.
    ``progress`` is a bar on a terminal, or is told (done, of all). Raises UserError for texts of
    unequal numbers of tokens, for texts that do not differ in the answer, for a part that no block
    has, and for a recurrent model.
    """
    run = RunPair.of(model, tokenizer, clean, corrupted, source, at)
    ids = [streams.word_id(model, tokenizer, word) for word in (answer, wrong) if word is not None]
    names = [parts] if isinstance(parts, str) else list(parts)
    names = [f"attn.{name}" if name in OF_HEADS else name for name in names]
    jobs = run.jobs(names, positions)
    values_by_job: dict[Job, float] = {}
    with inference(model), Progress("patching", progress) as report:
        values = run.run(ids, sorted({run.path(job.component, job.layer) for job in jobs}))
        need(
            values[0] != values[1],
            f"Both texts give {values[0]:.4f}: nothing tells them apart in this answer.",
        )
        for batch in run.batches(jobs):
            values_by_job.update(zip(batch, run.patched(batch, ids), strict=True))
            report(len(values_by_job), len(jobs))
        report(len(jobs), len(jobs))
    columns = run.columns(positions)
    reads = tokenizer and (tokenizer.for_source if isinstance(source, tuple) else tokenizer)
    clean_words, corrupted_words = (
        streams.display_texts(reads, row.tolist()) for row in run.tokens
    )
    answer_words = streams.display_texts(tokenizer, ids)
    positions_shown = [column for column in columns if column is not None]
    grids = [_part(run, name, jobs, columns, values_by_job, values) for name in names]
    return PatchGrid(
        answer_words[0],
        answer_words[1] if answer_words[1:] else None,
        run.at,
        clean_words,
        corrupted_words,
        positions_shown,
        *values,
        grids,
    )


def _part(
    run: RunPair,
    name: str,
    jobs: Sequence[Job],
    columns: Sequence[int | None],
    values_by_job: Mapping[Job, float],
    values: tuple[float, float],
) -> PatchedPart:
    """The cells of one part as rows and columns."""
    clean, corrupted = values
    order = list(dict.fromkeys((job.layer, job.head) for job in jobs if job.component == name))
    table = [
        [values_by_job.get(Job(name, layer, head, column), corrupted) for column in columns]
        for layer, head in order
    ]
    effect = [[(value - corrupted) / (clean - corrupted) for value in row] for row in table]
    layers = [layer for layer, _ in order]
    heads = [head for _, head in order if head is not None]
    return PatchedPart(
        name, [run.path(name, layer) for layer in layers], layers, heads, table, effect
    )
