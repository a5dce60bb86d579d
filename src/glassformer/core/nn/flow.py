"""What travels beside the residual stream through one forward pass, and the tape that looks at
named values of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .packing import Packing

T = TypeVar("T")


@dataclass
class Place:
    """Positions and batch rows of the values in a forward pass.

    With a cache a pass sees the new tokens alone, at their positions in the whole text.
    """

    pos: Tensor  # (B or 1, T), -1 at padding
    document_ids: Tensor | None = None  # (B, T), where several documents share a row
    # (B,) the row that each was in the first batch; None: every row is where it was
    rows: Tensor | None = None
    source_pos: Tensor | None = None  # (B or 1, S) of the encoder's output that a decoder looks at
    keys: Tensor | None = None  # (B or 1, S) of the keys of the attention under way
    visible: Callable[[], Tensor] | None = None  # its dense mask (B or 1, 1, T, S)


class PlacedEdit:
    """An edit that is told where the values stand; a plain function is not."""

    def __call__(self, path: str, x: Tensor, place: Place) -> Tensor:
        raise NotImplementedError


ByPosition: TypeAlias = Callable[
    [Hashable, Callable[[Tensor], tuple[Tensor, ...]]], tuple[Tensor, ...]
]
Edit: TypeAlias = Callable[[str, Tensor], Tensor] | PlacedEdit


class Tape:
    """Records what matches ``patterns`` and applies ``edits`` on the way.

    Patterns are shell wildcards over paths such as ``decoder.blocks.3.attn.pattern``; an edit is a
    function (path, value) -> value for every path its pattern matches. ``graph=True`` keeps the
    records attached to autograd. Recording changes no bit of what the model computes. ``place`` is
    that of the pass under way, ``rows`` what it says of rows.
    """

    def __init__(
        self, *patterns: str, edits: Mapping[str, Edit] | None = None, graph: bool = False
    ) -> None:
        self.patterns = patterns
        self.edits = dict(edits or {})
        self.graph = graph
        self.records: dict[str, Tensor] = {}
        self.place: Place | None = None
        self.rows: Tensor | None = None
        self._watched: dict[str, bool] = {}

    def __getitem__(self, path: str) -> Tensor:
        return self.records[path]

    def start_pass(self, pos: Tensor, document_ids: Tensor | None) -> None:
        """A pass over tokens at these positions (B or 1, T) begins."""
        self.place = Place(pos, document_ids, self.rows)

    def select(self, rows: Tensor) -> None:
        """Row i of the batch is from now on what row ``rows[i]`` was."""
        self.rows = rows if self.rows is None else self.rows[rows]

    def watches(self, path: str) -> bool:
        if path not in self._watched:
            self._watched[path] = any(
                fnmatchcase(path, pattern) for pattern in (*self.patterns, *self.edits)
            )
        return self._watched[path]

    def changes(self, path: str) -> bool:
        """True where an edit applies to ``path``."""
        return any(fnmatchcase(path, pattern) for pattern in self.edits)

    def pass_through(self, path: str, x: Tensor) -> Tensor:
        """``x``, edited and recorded as asked; the very same tensor where no edit matches."""
        if not self.watches(path):
            return x
        x = self.edit(path, x)
        self.record(path, x)
        return x

    def edit(self, path: str, x: Tensor, place: Place | None = None) -> Tensor:
        """``x`` after each edit whose pattern matches ``path``; ``place`` where it is not the whole
        pass's."""
        for pattern, edit in self.edits.items():
            if not fnmatchcase(path, pattern):
                continue
            if isinstance(edit, PlacedEdit):
                current_place = place or self.place
                assert current_place is not None, "a PlacedEdit needs a pass that the model began"
                x = edit(path, x, current_place)
            else:
                x = edit(path, x)
        return x

    def record(self, path: str, x: Tensor) -> None:
        if any(fnmatchcase(path, pattern) for pattern in self.patterns):
            self.records[path] = x if self.graph else x.detach()


class TracedModule(nn.Module):
    """A module that knows its place in the model (``decoder.blocks.3.attn``), for the tape."""

    path: str = ""


@dataclass
class Memory:
    """The encoder's output for the decoder: hidden (B, S, C) and positions (B or 1, S), -1 at
    padding.

    ``aux`` and ``metrics`` are its mixtures'; the decoder's come after them.
    """

    hidden: Tensor
    pos: Tensor
    contiguous: bool = False  # no padding: every row is 0..S-1
    document_ids: Tensor | None = None  # (B, S), where several documents share a row
    aux: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, Tensor] = field(default_factory=dict)
    packing: Packing | None = None  # what the host knows of these rows


def document_starts(pos: Tensor) -> Tensor:
    """Marks the first token of each document (B, T): position 0, and a row's first token, whatever
    its position in ``pos`` (B, T).

    Rows that training makes begin at 0; what goes on from a cache, or a piece of a text, may begin
    later.
    """
    is_token = pos >= 0
    return (pos == 0) | (is_token & (is_token.cumsum(1) == 1))


class Flow:
    """Positions, documents, memory, tape and auxiliary losses of one forward pass.

    ``pos`` is (B or 1, T), -1 where there is nothing; ``document_ids`` (B, T) tells packed
    documents apart; tokens where ``prefix`` (B, T) is true are seen by all of their document, those
    before them too (prefix language models). ``contiguous`` says that every row counts 0..T-1 on
    from what a cache holds, which makes fast kernels legal. ``packing`` is what the host knows of
    these rows.
    """  # no dataclass: FSDP2 copies those on their way into a module, and what is added to a copy is lost

    def __init__(
        self,
        pos: Tensor,
        contiguous: bool = True,
        document_ids: Tensor | None = None,
        prefix: Tensor | None = None,
        # tokens and positions (B, N) that a cache remembers
        history: tuple[Tensor, Tensor] | None = None,
        tape: Tape | None = None,
        engine: Any = "auto",  # a name, or an Engine from outside (engines/)
        embed_path: str = "embed",  # the path of its values on a tape; "source_embed" for a source
    ) -> None:
        self.pos, self.contiguous, self.document_ids = pos, contiguous, document_ids
        self.prefix, self.history = prefix, history
        self.tape, self.engine, self.embed_path = tape, engine, embed_path
        self.memory: Memory | None = None
        self.packing: Packing | None = None
        self.aux: dict[str, Tensor] = {}
        self.metrics: dict[str, Tensor] = {}  # about this pass, for whoever logs: no gradient
        # columns of one row: texts that are attended to one by one
        self.spans: Sequence[tuple[int, int]] = ()
        # (B, T, N) the tokens before each one, -1 for none, where a cache tells
        self.previous: Tensor | None = None
        # a cache's tables of what depends on a place alone
        self.by_position: ByPosition | None = None
        self._cached: dict[Hashable, Any] = {}

    def at_positions(
        self, key: Hashable, make: Callable[[Tensor], tuple[Tensor, ...]], dim: int
    ) -> Any:
        """Returns ``make`` of the pass's positions (B or 1, T), which lie along ``dim``; looked up
        in a table where the cache has one."""
        if self.by_position is None:
            return make(self.pos)
        return tuple(table.index_select(dim, self.pos[0]) for table in self.by_position(key, make))

    def look(self, module: TracedModule | str, name: str, x: Tensor) -> Tensor:
        """``x`` itself, unless the tape watches ``path.name``; no trace of it in compiled code."""
        if self.tape is None:
            return x
        path = module if isinstance(module, str) else module.path
        return self.tape.pass_through(f"{path}.{name}" if path else name, x)

    def watches(self, module: TracedModule, *names: str) -> bool:
        """True where the tape records or edits a value of this module by any of these names."""
        return self.tape is not None and any(
            self.tape.watches(f"{module.path}.{name}") for name in names
        )

    def changes(self, module: TracedModule, *names: str) -> bool:
        """True where the tape edits a value of this module by any of these names."""
        return self.tape is not None and any(
            self.tape.changes(f"{module.path}.{name}") for name in names
        )

    def keys(self, pos: Tensor, visible: Callable[[], Tensor]) -> None:
        """Tell the tape where the keys of the attention under way stand (B or 1, S), and which of
        them are seen."""
        if self.tape is not None and self.tape.place is not None:
            self.tape.place.keys, self.tape.place.visible = pos, visible

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns ``make()``, computed once per forward pass: masks, biases, rotary tables."""
        if key not in self._cached:
            self._cached[key] = make()
        return cast(T, self._cached[key])

    def add_metric(self, name: str, value: Tensor) -> None:
        """Append one layer's row to a metric (layers, ...); rows whose last dimensions differ are
        padded with zeros."""
        row, metric = value.detach()[None], self.metrics.get(name)
        if metric is not None and row.ndim > 1:
            missing = metric.shape[-1] - row.shape[-1]
            row, metric = F.pad(row, (0, max(0, missing))), F.pad(metric, (0, max(0, -missing)))
        self.metrics[name] = row if metric is None else torch.cat((metric, row))

    def add_loss(self, name: str, loss: Tensor) -> None:
        self.aux[name] = self.aux[name] + loss if name in self.aux else loss
