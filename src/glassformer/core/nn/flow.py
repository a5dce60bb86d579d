"""The flow: all that travels beside the residual stream through one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .hooks import Tape

T = TypeVar("T")
ByPosition: TypeAlias = Callable[
    [Hashable, Callable[[Tensor], tuple[Tensor, ...]]], tuple[Tensor, ...]
]


class TracedModule(nn.Module):
    """A module that knows its place in the model (``decoder.blocks.3.attn``), for the tape."""

    path: str = ""


@dataclass
class Memory:
    """The encoder's output for the decoder: hidden (B, S, C), positions (B or 1, S), -1: padding.

    ``aux`` and ``metrics`` are its mixtures'; the decoder's come after them.
    """

    hidden: Tensor
    pos: Tensor
    contiguous: bool = False  # no padding: every row is 0..S-1
    document_ids: Tensor | None = None  # (B, S), where several documents share a row
    aux: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, Tensor] = field(default_factory=dict)


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
    from what a cache holds, which makes fast kernels legal.
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
        engine: Any = "auto",  # a name, or an AttentionEngine from outside
        embed_path: str = "embed",  # the path of its values on a tape; "source_embed" for a source
    ) -> None:
        self.pos, self.contiguous, self.document_ids = pos, contiguous, document_ids
        self.prefix, self.history = prefix, history
        self.tape, self.engine, self.embed_path = tape, engine, embed_path
        self.memory: Memory | None = None
        self.tokens: Tensor | None = None  # (B, T) the text's, where a model reads one
        self.aux: dict[str, Tensor] = {}
        self.metrics: dict[str, Tensor] = {}  # about this pass, for whoever logs: no gradient
        # (B, T, N) the tokens before each one, -1 for none, where a cache tells
        self.previous: Tensor | None = None
        # a cache's tables of what depends on a place alone
        self.by_position: ByPosition | None = None
        self._cached: dict[Hashable, Any] = {}

    def at_positions(
        self, key: Hashable, make: Callable[[Tensor], tuple[Tensor, ...]], dim: int
    ) -> Any:
        """Returns ``make`` of positions (B or 1, T) along ``dim``, from the cache's table if any."""
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
        """Tell the tape where the keys of this attention stand (B or 1, S), and which are seen."""
        if self.tape is not None and self.tape.place is not None:
            self.tape.place.keys, self.tape.place.visible = pos, visible

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns ``make()``, computed once per forward pass: masks, biases, rotary tables."""
        if key not in self._cached:
            self._cached[key] = make()
        return cast(T, self._cached[key])

    def add_metric(self, name: str, value: Tensor) -> None:
        """Append a layer's row to a metric (layers, ...), both padded with zeros to one width."""
        row, metric = value.detach()[None], self.metrics.get(name)
        if metric is not None and row.ndim > 1:
            missing = metric.shape[-1] - row.shape[-1]
            row, metric = F.pad(row, (0, max(0, missing))), F.pad(metric, (0, max(0, -missing)))
        self.metrics[name] = row if metric is None else torch.cat((metric, row))

    def add_loss(self, name: str, loss: Tensor) -> None:
        self.aux[name] = self.aux[name] + loss if name in self.aux else loss
