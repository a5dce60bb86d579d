"""Activation patching: where does what tells two texts apart pass through? (Vig et al. 2020, Meng
et al. 2022)

    clean      The Eiffel Tower is in   -> Paris
    corrupted  The Colosseum is in      -> Rome, with one value of the clean run in it: how much of Paris comes back?

Many patches are runs of one batch, a row for each, from the first block on that one of them
changes. Patches of what is equal in both runs are not computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import UserError, need
from ..core.nn import Memory, Model, Tape
from ..core.nn.finite import must_be_finite
from ..core.nn.model import inference
from ..core.nn.replace import replace_modules
from . import passes, streams
from .axes import HEADED
from .figures.charts import Chart, Heat, Prose, TableFigure
from .figures.drawing import Array
from .figures.progress_bar import Progress, Report
from .figures.shown import Records, Shown
from .inputs import Text
from .reading import shapes_of
from .recording.causes import constantly
from .recording.module_trace import ModuleTrace
from .recording.rules import read
from .recording.trace import record

PARTS = ("resid", "attn.write", "ffn.write")
TOKENS = 1024  # computed at once: rows times their tokens
ONLY_HERE = ("resid", "mid", "mid_cross", "write", "z", "hidden", "pre", "gate", "up")
"""Values that attention of their own block does not read: in the last block they act at their own
position alone."""


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
        return TableFigure("", heading, rows, (2, 3))

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
    model: nn.Module,
    tokenizer: Any,
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
    """Patches each part of each block from a clean run into a corrupted one, position by position.

    Args:
        model: A model of ours or of transformers, or any module that takes ids.
        tokenizer: The tokenizer that came with it.
        clean: The text that the model answers.
        corrupted: A text of as many tokens, with another answer.
        answer: The token whose logit is measured.
        wrong: A token whose logit is taken off it.
        parts: Names within a block, such as "resid", "mid", "attn.write", "ffn.write". "z" and other
            values of heads are patched head by head.
        positions: "each", numbers, or "all" at once.
        at: The position that is measured; None is the last, or an encoder's mask.
        source: What an encoder-decoder's encoder reads; a pair patches the encoder's blocks.
        progress: True shows a bar; a function is called with (done, of all).

    Returns:
        The share of the difference that each patch restores, as a grid.

    Raises:
        UserError: The texts differ in length or not in the answer, no block has the part, or the
            model is recurrent.

    Example:
        >>> texts = "Once upon a time", "Once upon the time"
        >>> print(glassformer.patch_grid(model, tokenizer, *texts, answer=5, parts="resid"))
    """
    if isinstance(model, Model):
        streams.needs_head(model, "give one that does.")
        need(
            not model.config.recurrent,
            "A recurrent model has no blocks to patch one by one; use edits.patch with its own "
            "values.",
        )
    sources = source if isinstance(source, tuple) else (source, source)
    need(
        len(sources) == 2,
        f"source holds {len(sources)} texts; give one, or a pair: clean and corrupted.",
    )
    texts = zip((clean, corrupted), sources, strict=True)
    pair = [record(model, tokenizer, text, beside) for text, beside in texts]
    kind = _OwnRuns if isinstance(model, Model) else _Runs
    runs = kind(pair, isinstance(source, tuple) and passes.has_source(model))
    words = pair[0].tokenizer
    vocab = pair[0].answer.shape[-1]
    runs.at = at = streams.place(at, pair[0].tokens, words)
    runs.ids = ids = [
        streams.word_id(vocab, words, word) for word in (answer, wrong) if word is not None
    ]
    need(
        positions in ("each", "all") or not isinstance(positions, str),
        f'positions is "{positions}"; give "each", "all" or numbers.',
    )
    listed = "all" if positions == "each" else positions
    length = len(runs.words[0])
    columns = [] if positions == "all" else streams.places(listed, length)
    places: list[int | None] = [*columns] or [None]
    names = [parts] if isinstance(parts, str) else list(parts)
    rows = {name: runs.rows(name) for name in map(runs.name, names)}
    lines = {row: [row._replace(position=at) for at in places] for x in rows.values() for row in x}
    cells = [cell for line in lines.values() for cell in line]
    with inference(model), Progress("patching", progress) as report:
        clean_value, corrupted_value = (runs.answer(run.answer) for run in pair)
        need(
            clean_value != corrupted_value,
            f"Both texts give {clean_value:.4f}: they do not differ in this answer.",
        )
        results = dict.fromkeys(cells, corrupted_value)
        acting = [cell for cell in cells if runs.acts(cell)]
        done = len(cells) - len(acting)
        for batch, patched in runs.patched(acting):
            results |= zip(batch, patched, strict=True)
            report(done := done + len(batch), len(cells))
        report(len(cells), len(cells))
    grids = []
    for name, group in rows.items():
        table = [[results[cell] for cell in lines[row]] for row in group]
        change = clean_value - corrupted_value
        effect = [[(x - corrupted_value) / change for x in line] for line in table]
        paths, layers = [row.path for row in group], [row.layer for row in group]
        heads = [row.head for row in group if row.head is not None]
        grids.append(PatchedPart(name, paths, layers, heads, table, effect))
    named, *rivals = streams.display_texts(words, ids)
    less = rivals[0] if rivals else None
    first, second = runs.words
    return PatchGrid(named, less, at, first, second, columns, clean_value, corrupted_value, grids)


class Cell(NamedTuple):
    """One patch: of a block's value or one of its heads, at one position or (None) all of them."""

    layer: int
    path: str
    head: int | None
    position: int | None = None

    def at(self) -> tuple[int | slice, ...]:
        """The index of it in a row of the value."""
        position = slice(None) if self.position is None else self.position
        return (position,) if self.head is None else (self.head, position)


def _by_head(layer: int, path: str, shape: Sequence[int]) -> list[Cell]:
    """The rows of a value: one for each head where it has some (B, H, T, D)."""
    if len(shape) < 4:
        return [Cell(layer, path, None)]
    return [Cell(layer, path, head) for head in range(shape[1])]


class _Runs:
    """Two passes, clean and corrupted, of what is not ours: a recorded pass for each patch. Parts are
    "resid", "write", "z", or patterns of addresses."""

    def __init__(self, pair: Sequence[ModuleTrace], of_source: bool) -> None:
        self.clean, self.corrupted = pair
        self.of_source = of_source
        for name, side in (("texts", "tokens"), ("sources", "source")):
            first, second = (getattr(run, side) for run in pair)
            if first is not None and first.shape != second.shape:
                raise UserError(
                    f"The {name} have {first.shape[1]} and {second.shape[1]} tokens; patching needs "
                    "equally many; glassformer tokens shows them."
                )
        self.words = [(run.source_words if of_source else None) or run.words for run in pair]
        self.at, self.ids = 0, [0]

    def answer(self, logits: Tensor) -> float:
        """The logit of the first word at the asked place, less the second's, of one text."""
        numbers = logits[0, self.at, self.ids].float()
        return float(numbers[0] - numbers[1:].sum())

    def name(self, component: str) -> str:
        """The name of a part in the grid."""
        return "write" if component.endswith(".write") else component

    def rows(self, component: str) -> list[Cell]:
        """The layer, path and head of each row of a part."""
        structure = self.corrupted.structure
        sections = {
            "resid": [x for x in structure.states if x.operation is not None],
            "write": structure.writes,
            "z": [x.mixed for x in structure.attentions],
        }
        values = (
            sections[component]
            if component in sections
            else map(self.corrupted.value, self.corrupted.choose(component))
        )
        return [
            row
            for number, value in enumerate(values)
            for row in _by_head(number, value.address, value.shape)
        ]

    def numbers(self, run: ModuleTrace, cell: Cell) -> Tensor:
        """The numbers at a place in one of the passes."""
        value = read(run.value(cell.path))
        return (value[0] if value.ndim > 2 else value)[cell.at()]

    def acts(self, cell: Cell) -> bool:
        """False where a patch changes nothing."""
        if (cell.position or 0) >= self.corrupted.value(cell.path).shape[-2]:
            return False  # a value of the other side, which has fewer tokens
        clean, corrupted = (self.numbers(run, cell) for run in (self.clean, self.corrupted))
        need(clean.shape == corrupted.shape, f"{cell.path} has another shape in the other text.")
        return not torch.equal(clean, corrupted)

    def patched(self, cells: Sequence[Cell]) -> Iterator[tuple[list[Cell], list[float]]]:
        """The answers of patched runs, of some cells at a time."""
        for cell in cells:
            batched = "0," * (len(self.corrupted.value(cell.path).shape) > 2)
            places = (":" if isinstance(at, slice) else str(at) for at in cell.at())
            replacement = constantly(self.numbers(self.clean, cell))
            trace = self.corrupted.edit({f"{cell.path}[{batched}{','.join(places)}]": replacement})
            yield [cell], [self.answer(trace.outputs[self.clean.structure.name])]


class _OwnRuns(_Runs):
    """The same of a model of ours: a row of a batch for each patch."""

    def __init__(self, pair: Sequence[ModuleTrace], of_source: bool) -> None:
        super().__init__(pair, of_source)
        model: Any = pair[0].module
        self.model = model
        self.side: str = "encoder" if of_source else model.config.main_body
        self.depth = getattr(model.config, self.side).depth

    def name(self, component: str) -> str:
        return f"attn.{component}" if component in HEADED else component

    def rows(self, component: str) -> list[Cell]:
        shapes = shapes_of(self.model)
        start = f"{self.side}.blocks."
        paths = [f"{start}{layer}.{component}" for layer in range(self.depth)]
        if not shapes.keys() & set(paths) or component in (
            "cross.k",
            "cross.v",
        ):  # of source's tokens
            components = dict.fromkeys(p.split(".", 3)[3] for p in shapes if p.startswith(start))
            raise UserError(
                f'No block has a part "{component}"; there are {", ".join(components)}.'
            )
        by_head = component.startswith(("attn.", "cross."))
        present = [(layer, path) for layer, path in enumerate(paths) if path in shapes]
        return [
            row
            for layer, path in present
            for row in _by_head(layer, path, shapes[path] if by_head else ())
        ]

    def acts(self, cell: Cell) -> bool:
        late = cell.layer == self.depth - 1 and cell.path.rpartition(".")[2] in ONLY_HERE
        beside = not self.of_source and cell.position not in (None, self.at)
        return not (late and beside) and super().acts(cell)

    def patched(self, cells: Sequence[Cell]) -> Iterator[tuple[list[Cell], list[float]]]:
        rows = max(1, TOKENS // len(self.words[0]))
        for start, group in groupby(sorted(cells, key=itemgetter(0)), itemgetter(0)):
            layer = list(group)
            for low in range(0, len(layer), rows):
                yield layer[low : low + rows], self._batch(start, layer[low : low + rows])

    def _batch(self, start: int, cells: list[Cell]) -> list[float]:
        """A row for each patch, from the block that they change on."""
        trace, model, count = self.corrupted, self.model, len(cells)

        def put(path: str, x: Tensor) -> Tensor:
            x = x.clone()
            for row, cell in enumerate(cells):
                if cell.path == path:
                    x[(row, *cell.at())] = self.numbers(self.clean, cell)
            return x

        def start_stream(path: str, x: Tensor) -> Tensor:
            return trace[f"{self.side}.blocks.{start - 1}.resid"].expand_as(x)

        edits = {cell.path: put for cell in cells}
        if start:
            blocks: Any = model.get_submodule(f"{self.side}.blocks")
            model = replace_modules(model, {blocks: blocks[start:]})
            edits[f"{self.side}.embed"] = start_stream
        inputs = [ids.expand(count, -1) for ids in trace.args]
        beside: dict[str, Any] = {}
        if len(inputs) == 2 and not self.of_source:
            hidden = trace["encoder.out"].expand(count, -1, -1)
            places = torch.arange(hidden.shape[1], device=hidden.device)[None]
            inputs = inputs[:1]
            beside = {"memory": Memory(hidden, places, True)}
        place = torch.tensor([self.at], device=inputs[0].device)
        output = model(*inputs, tape=Tape(edits=edits), logits=place, **beside)
        must_be_finite(self.model, output.logits)
        logits = output.logits[:, 0, self.ids].float()
        answers: list[float] = (logits[:, 0] - logits[:, 1:].sum(-1)).tolist()
        return answers
