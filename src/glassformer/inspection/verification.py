"""Exactness as a product: a model computed in every way there is, each way held to the plain pass.

    for check in verify(model, tokenizer): print(check.line())

The plain pass reads each text alone, without cache, tape or compiler, by the engine that the model would choose.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import need
from ..nn import Model
from ..nn.finite import must_be_finite
from ..nn.quantized import quantized
from .agreement import (
    Check,
    FirstDifference,
    answers,
    differing,
    equal_choices,
    first_difference,
    largest,
    tolerance,
)
from .counterparts import NotRun
from .layouts import Held
from .probes import draw
from .ways import Way, Ways

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer

ZEROS = "every answer is 0 however it is computed, which proves nothing: train the model first"


def verify(
    model: Model,
    tokenizer: Tokenizer | None = None,
    *,
    against: str | Path | None = None,
    new: int = 16,
    seed: int = 0,
    compile: bool = False,
) -> Iterator[Check]:
    """Compute a model in every way there is, and yield a Check of each, as it is done.

    It reads three texts (by ``tokenizer``, else drawn with ``seed``), each continued greedily by ``new`` tokens where
    the model can. ``against`` "hf" compares with ``transformers`` too, which reads the model as saved here; a folder in
    its layout instead is read by both. ``compile`` has torch.compile tried, which takes longer than all the rest on a
    CPU. The model is not changed. Where all answers are exactly 0, as those of a head that starts at 0 are,
    nothing can be compared, and that is said. Raises UserError for a model without weights, with NaN among them, or
    without room for the texts.
    """
    need(new > 0, f"There is nothing to compare in {new} tokens; give 1 or more.")
    need(not any(weight.is_meta for weight in model.parameters()), "This model has no weights; build it on a device.")
    yield from Verification(model, tokenizer, new, seed).checks(against, compile)


class Verification:
    """The texts, their plain pass, and the ways that are held to it."""

    def __init__(self, model: Model, tokenizer: Tokenizer | None, new: int, seed: int) -> None:
        self.model = model
        given, self.new = draw(model, tokenizer, new, seed)
        self.ways = Ways(model, given, self.new, seed)
        self.labels = bool(getattr(model.config, "token_head", None) or getattr(model.config.pool, "labels", 0))
        self.mixture = any(name.endswith(".ffn.router") for name, _ in model.named_modules())
        must_be_finite(model, *model.parameters())  # a fused kernel makes zeros of NaN scores: answers may hide them
        must_be_finite(model, *(value for values in self.ways.plain(False) for value in values.values()))

    def share(self, dtype: torch.dtype) -> float:
        """By how much answers of this format may differ, as a share of the largest."""
        return tolerance(self.model.config, dtype, self.ways.longest, bool(quantized(self.model)))

    def checks(self, against: str | Path | None, compiles: bool) -> Iterator[Check]:
        """Every way, compared."""
        with tempfile.TemporaryDirectory(prefix="glassformer-verify-") as folder:
            for kind, name, make in self.ways.all(Path(folder) / "model", against, compiles):
                begun = time.monotonic()
                try:
                    found = self.compared(kind, name, make())
                except NotRun as reason:
                    found = Check(kind, name, "not run", note=str(reason))
                except Exception as error:  # a way that breaks is a way that fails, and the others are still told
                    what = str(error).strip().splitlines() or ["no reason given"]
                    found = Check(kind, name, "FAIL", note=f"{type(error).__name__}: {what[0][:200]}")
                yield replace(found, seconds=round(time.monotonic() - begun, 3))

    def compared(self, kind: str, name: str, way: Way) -> Check:
        """One way beside what it is held to; where they differ too much, where they first do."""
        texts, note = way.texts, way.note
        against = way.against or (lambda tape, held: [self.ways.plain(tape)[text] for text in texts])
        share = 0.0 if way.dtype is None else self.share(way.dtype)
        left, right = way.read(False, None), against(False, None)
        if not answers(left, right):  # a cache pools nothing: the hidden states instead
            right = against(True, None)
        if not any(bool(values[path].any()) for values in (*left, *right) for path in answers(left, right)):
            if way.weights is None:
                raise NotRun(ZEROS)
            note = joined(note, "its weights alone: every answer is 0")
        difference, bound, path = largest(left, right, share)
        if difference > bound and share and self.mixture:
            choices = dict(zip(texts, against(True, None), strict=True))
            if any(path.endswith(".ffn.chosen") for path in choices[texts[0]]):  # transformers tells none
                held = Held(choices)
                again = way.read(False, held), against(False, held)
                if held.moved <= share:  # the routers agree: what differs is what was chosen at a near tie
                    left, right = again
                    note = joined(note, "a near tie of experts fell otherwise: they are held to the other's")
                    difference, bound, path = largest(left, right, share)
        first = None if way.weights is None else _first_weight(*way.weights)
        if first is None and difference > bound:
            first = first_difference(way.read(True, None), against(True, None), share, texts)
            first = first or first_difference(left, right, share, texts)
        equal, tokens = equal_choices(left, right, self.new, self.labels)
        fails = difference > bound or first is not None
        if not fails and equal != tokens:
            note = joined(note, "the other choices are ties within the bound")
        finite = difference if math.isfinite(difference) else None
        return Check(kind, name, "FAIL" if fails else "pass", finite, bound, path, equal, tokens, first, note)


def joined(note: str, more: str) -> str:
    """Two remarks as one."""
    return f"{note}; {more}" if note else more


def _first_weight(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> FirstDifference | None:
    """The first weight that is not the same bits, by name and index."""
    for name, weight in wanted.items():
        if name not in found:
            return FirstDifference(f"{name} (missing)", None, None, 0)
        if not torch.equal(found[name], weight):
            return differing(name, found[name], weight)
    return None
