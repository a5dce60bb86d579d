"""A look inside one request while others run beside it: its tape, and its records put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import config
from ..errors import UserError, need
from ..nn import Model, Tape
from ..nn.editing import Reading, ready
from ..nn.paged import HEADS
from .request import Request


class Look:
    """The tape of one continuation, and what it has recorded, by the place at which each chunk began."""

    def __init__(self, patterns: Sequence[str], edits: Mapping[str, Any]) -> None:
        self.tape = Tape(*patterns, edits=edits)
        self.pieces: dict[int, dict[str, Tensor]] = {}

    def keep(self, start: int) -> None:
        """A chunk that began at place ``start`` was read; from 0 on all is read again."""
        if start == 0:
            self.pieces.clear()
        self.pieces[start] = {path: x.clone() for path, x in self.tape.records.items()}
        self.tape.records.clear()

    def joined(self) -> dict[str, Tensor]:
        """Each path's values over all tokens."""
        found: dict[str, list[Tensor]] = {}
        for start in sorted(self.pieces):
            for path, x in self.pieces[start].items():
                found.setdefault(path, []).append(x)
        return {path: _joined(path.rpartition(".")[2], some) for path, some in found.items()}


def _joined(leaf: str, pieces: Sequence[Tensor]) -> Tensor:
    if leaf in ("scores", "pattern"):  # later tokens have more keys
        widest, nothing = pieces[-1].shape[-1], 0.0 if leaf == "pattern" else float("-inf")
        pieces = [F.pad(x, (0, widest - x.shape[-1]), value=nothing) for x in pieces]
        return torch.cat(list(pieces), 2)
    return torch.cat(list(pieces), 2 if leaf in HEADS else 1)


def looks(
    request: Request, model: Model, tokenizer: Any, shapes: dict[str, tuple[int, ...]]
) -> tuple[list[int], list[Look]]:
    """What a request with wishes reads, its edits applied, and a Look for each of its continuations.

    ``shapes`` are the model's paths. Raises UserError for a path or an edit of what is not there.
    """
    stack = isinstance(getattr(model.config, "decoder", None), config.Stack)
    if not stack or request.source is not None:
        raise UserError("An engine looks inside decoders with attention alone; use glassformer.look for this model.")
    for pattern in request.want:
        need(any(fnmatchcase(path, pattern) for path in shapes), f'Nothing in this model is called "{pattern}".')
    reading = Reading.growing(model, [request.tokens], None, tokenizer)
    reading.__dict__["shapes"] = shapes  # known already
    hooks = ready(request.edits, reading)
    assert reading.rows is not None
    return reading.rows[0], [Look(request.want, hooks) for _ in range(request.n)]
