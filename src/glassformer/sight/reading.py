"""Edits of a run, made ready for one model and what it reads: other tokens, and a function for each
path. The core asks ``tape_of`` for them (core/nn/hooks.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..core import registry
from ..core.errors import UserError, need
from ..core.nn import Model, Tape
from ..core.nn.finite import is_finite
from ..core.nn.hooks import Edit, ModelEdit, Place, PlacedEdit
from ..core.nn.model import inference

Hook: TypeAlias = Callable[[str, Tensor, Place], Tensor]
Shapes: TypeAlias = dict[str, tuple[int, ...]]  # of values for a single token, by their path
Ids: TypeAlias = list[list[int]]  # a row for each text
# of a model that is not ours: functions by address
Edits: TypeAlias = Sequence[ModelEdit | str] | Mapping[str, Callable[[Tensor], Tensor]]


@dataclass
class Reading:
    """One model and what it is about to read, for edits to be held against.

    ``rows`` are the ids of a decoder or an encoder alone, ``sources`` those of an encoder beside a
    decoder; None where many texts are read that nobody knows yet. ``grows``: tokens will come after
    the rows (generation). ``shared`` is what the edits of one run tell each other.
    """

    model: Model
    rows: Ids | None
    sources: Ids | None = None
    tokenizer: Any = None
    grows: bool = False
    shared: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def shapes(self) -> Shapes:
        """Every path of the model with the shape of its value for a single token."""
        return shapes_of(self.model)

    @property
    def is_encoder_decoder(self) -> bool:
        return self.model.config.has_source


class Last:
    """A function that comes after those of all other edits of its path."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def __call__(self, path: str, x: Tensor, place: Place) -> Tensor:
        return self.hook(path, x, place)


class Chain(PlacedEdit):
    """Several functions of one path, one after the other; UserError for one that makes NaN of
    numbers."""

    def __init__(self) -> None:
        self.hooks: list[tuple[Hook, ModelEdit]] = []

    def add(self, hook: Hook, edit: ModelEdit) -> None:
        """One more, of this edit, behind the others but for those that are the Last."""
        self.hooks = sorted(
            [*self.hooks, (hook, edit)], key=lambda entry: isinstance(entry[0], Last)
        )

    def __call__(self, path: str, x: Tensor, place: Place) -> Tensor:
        for hook, edit in self.hooks:
            new = hook(path, x, place)
            # else weights are blamed
            if not is_finite(new) and bool((_wrong(path, new) & ~_wrong(path, x)).any()):
                raise UserError(
                    f"{edit!r} produces NaN or infinite numbers in {path}; use finite numbers."
                )
            x = new
        return x


def _wrong(path: str, x: Tensor) -> Tensor:
    """Which numbers no run may have; -infinity hides a key, a word or an expert."""
    hides = path.rpartition(".")[2] in ("scores", "logits", "router")
    if hides:
        return x.isnan() | (x == math.inf)
    return ~x.isfinite()


def as_edit_list(edits: str | ModelEdit | Edits) -> list[ModelEdit]:
    """One edit or several as a list; those that are written out, as on a command line, are read."""
    usage = "Edits are a list of edits, such as ['head_off(\"decoder.blocks.0.attn\", 1)']"
    need(not isinstance(edits, Mapping), f"{usage}; give such a list.")
    result: list[Any] = (
        [edits] if isinstance(edits, str) or hasattr(edits, "hooks") else list(edits)
    )
    if any(isinstance(edit, str) for edit in result):
        parse = registry.load("edits")[0].parse
        result = [parse(edit) if isinstance(edit, str) else edit for edit in result]
    for edit in result:
        need(hasattr(edit, "hooks") and hasattr(edit, "read"), f"{usage}; {edit!r} is not an edit.")
    return result


def build_hooks(edits: Edits, reading: Reading) -> dict[str, Edit]:
    """Change what ``reading`` reads, and give what a Tape takes as ``edits``; those of one path in
    their order."""
    several = as_edit_list(edits)
    for edit in several:
        edit.read(reading)
    chains: dict[str, Edit] = {}
    for edit in several:
        for path, hook in edit.hooks(reading).items():
            chain = chains.setdefault(path, Chain())
            assert isinstance(chain, Chain)
            chain.add(hook, edit)
    return chains


def apply(
    edits: Edits,
    model: Model,
    tokens: Tensor,
    source: Tensor | None = None,
    tokenizer: Any = None,
) -> tuple[Tensor, Tensor | None, dict[str, Edit]]:
    """The tokens (B, T) and the source (B, S) as ``edits`` change them, and what a Tape takes as
    ``edits``.

    ``tokenizer`` is needed by edits that name a token or a text. Raises UserError for an edit of
    something that the model or the text does not have.
    """
    reading = Reading(
        model, tokens.tolist(), None if source is None else source.tolist(), tokenizer
    )
    hooks = build_hooks(edits, reading)
    changed = torch.tensor(reading.rows, dtype=tokens.dtype, device=tokens.device)
    if source is not None:
        source = torch.tensor(reading.sources, dtype=source.dtype, device=source.device)
    return changed, source, hooks


def tape_of(
    edits: Edits,
    model: Model,
    rows: Ids | None,
    sources: Ids | None,
    tokenizer: Any,
) -> tuple[Tape, Ids | None, Ids | None]:
    """A tape that applies ``edits``, and the rows and sources that are read then.

    Tokens will come after rows that are given (generation); None: texts that nobody knows yet.
    """
    rows, sources = (None if ids is None else [*map(list, ids)] for ids in (rows, sources))
    reading = Reading(model, rows, sources, tokenizer, grows=rows is not None)
    return Tape(edits=build_hooks(edits, reading)), reading.rows, reading.sources


def one_token(model: Model) -> dict[str, Tensor]:
    """Every value of a pass over a single token by its path, in the order in which the model makes
    them."""
    token, tape = (
        torch.zeros(1, 1, dtype=torch.long, device=next(model.parameters()).device),
        Tape("*"),
    )
    with inference(model):
        model(
            *([token, token] if model.config.has_source else [token]),
            tape=tape,
        )
    return tape.records


def shapes_of(model: Model) -> Shapes:
    """The shape of every value for a single token by its path."""
    return {path: tuple(value.shape) for path, value in one_token(model).items()}
