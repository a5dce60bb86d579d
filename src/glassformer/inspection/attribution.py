"""Direct logit attribution: what each part of the model added to a logit, or to the difference of two.

A logit is a direction times the stream, and the stream is a sum of what parts wrote to it (direction.py). Every norm on
the way is held at the scale that it had in this pass, so the sum is exact, and is shown to be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import need
from ..nn import Model
from ..nn.editing import ModelEdit
from ..nn.finite import must_be_finite
from ..nn.inference import inference
from . import streams, tables
from .direction import INSTEAD, AtOnePlace, Part, Sweep
from .looking import Text
from .streams import fp64

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Attribution:
    """What every part added to the logit of ``token`` at ``position``, less that of ``against`` where it is given.

    ``logit`` is the model's own (before a softcap; ``capped`` after it), ``sum`` that of all ``parts``, ``difference``
    what is between them: rounding.
    """

    token: int
    piece: str
    against: int | None
    against_piece: str | None
    position: int
    parts: list[Part]
    sum: float
    logit: float
    difference: float
    capped: float | None
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**vars(self), "parts": [vars(part) for part in self.parts]}

    def by_block(self) -> list[tuple[str, dict[str, float]]]:
        """The sums of each block by kind, from the embedding on, and of what stands outside of blocks."""
        found: dict[str, dict[str, float]] = {}
        for part in self.parts:
            name = "ends" if part.block is None else f"block {part.block}"
            kinds = found.setdefault(name, {})
            kinds[part.kind] = kinds.get(part.kind, 0.0) + part.value
        order = sorted(found, key=lambda name: (name != "ends", int(name.split()[-1]) if name != "ends" else 0))
        return [(name, found[name]) for name in order]

    def table(self, top: int = 20) -> list[str]:
        """The parts that added or took most, as lines, rounded to four places; then the sum beside the logit."""
        ordered = sorted(self.parts, key=lambda part: -abs(part.value))
        rows = [(_label(part), part.address, f"{part.value:+.4f}") for part in ordered[:top]]
        if rest := ordered[top:]:
            rows.append((f"{len(rest):,} more", "", f"{math.fsum(part.value for part in rest):+.4f}"))
        rows += [("sum", f"of {len(self.parts):,} parts", f"{self.sum:+.4f}")]
        rows += [("logit", "the model's own", f"{self.logit:+.4f}"), ("difference", "", f"{self.difference:.1e}")]
        return tables.lines(rows, ("part", "address", "added"), left=(0, 1))


def _label(part: Part) -> str:
    block = "" if part.block is None else f"L{part.block}."
    return f"{block}{part.kind}" + ("" if part.index is None else f" {part.index}")


def attribute(
    model: Model,
    tokenizer: Tokenizer | None,
    text: Text,
    *,
    source: Text | None = None,
    token: str | int | None = None,
    against: str | int | None = None,
    position: int | None = None,
    edits: Sequence[ModelEdit] = (),
) -> Attribution:
    """What each part of ``model`` added to the logit of ``token`` (None: the likeliest) at ``position`` of ``text``.

    ``position`` None is an encoder's only mask token, else the last. With ``against`` the difference of the two
    logits is taken apart. An encoder-decoder's decoder is asked, beside its ``source``. ``edits`` (inspection.edits)
    change the run; what one did to the stream itself is a part of its own. Raises UserError for a model without a head
    or without a residual stream, and for blocks and norms whose arithmetic is not known here.
    """
    head = streams.needs_head(model, "`glassformer contexts` compares its vectors.")
    streams.needs_stream(model, "Direct logit attribution", INSTEAD)
    read = streams.prepare(model, tokenizer, text, source, edits)
    at = streams.place(position, read.tokens, tokenizer)
    tape = AtOnePlace(at, streams.body_of(model), read.edits)
    with inference(model):
        output = model(*read.given, tape=tape, logits="none")
        one = output.hidden[:, at : at + 1]
        logits = fp64(head.proj(head.prepare(one), head.table(model.embed))[0, 0])  # before the cap
        must_be_finite(model, output.hidden, logits)
    known = len(logits) if tokenizer is None else min(tokenizer.size, len(logits))
    chosen = int(logits[:known].argmax()) if token is None else streams.word_id(model, tokenizer, token)
    other = None if against is None else streams.word_id(model, tokenizer, against)
    need(other != chosen, "The two tokens are the same one, and their difference is nothing; give another.")
    with torch.no_grad():
        sweep = Sweep(model, tape)
        sweep.carry_back(fp64(output.hidden[0, at]), chosen, other)
    total = math.fsum(part.value for part in sweep.parts)

    def told(logits: Tensor) -> float:
        return (logits[chosen] - (0.0 if other is None else logits[other])).item()

    own, cap = told(logits), head.softcap
    capped = None if cap is None else told(cap * torch.tanh(logits / cap))
    piece, *rest = streams.pieces(tokenizer, [chosen] if other is None else [chosen, other])
    beside, parts = rest[0] if rest else None, sweep.parts[::-1]
    return Attribution(chosen, piece, other, beside, at, parts, total, own, abs(total - own), capped, sweep.notes)
