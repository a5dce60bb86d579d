"""Exactness as a product: a model computed in every way there is, each way held to the plain pass.

    for check in verify(model, tokenizer): print(check.line())

The plain pass reads each text alone, without cache, tape or compiler, by the engine that the model
would choose.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..core.errors import need
from ..core.nn import Model
from ..core.nn.finite import must_be_finite
from ..core.nn.replace import is_packed
from .agreement import (
    Check,
    Status,
    answers,
    differing,
    equal_choices,
    first_difference,
    largest,
    tolerance,
)
from .counterparts import NotRun, quiet_compiler
from .layouts import PinnedRouting
from .probes import draw
from .ways import Way, Ways

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer

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

    It reads three texts (by ``tokenizer``, else drawn with ``seed``), each continued greedily by
    ``new`` tokens where the model can. ``against`` "hf" compares with ``transformers`` too, which
    reads the model as saved here; a folder in its layout instead is read by both. ``compile`` has
    torch.compile tried, which takes longer than all the rest on a CPU. The model is not changed.
    Where all answers are exactly 0, as those of a head that starts at 0 are, nothing can be
    compared, and that is said. Raises UserError for a model without weights, with NaN among them,
    or without room for the texts.
    """
    need(new > 0, f"There is nothing to compare in {new} tokens; give 1 or more.")
    need(
        not any(weight.is_meta for weight in model.parameters()),
        "This model has no weights; build it on a device.",
    )
    yield from Verification(model, tokenizer, new, seed).checks(against, compile)


class Verification:
    """The texts, their plain pass, and the ways that are held to it."""

    def __init__(self, model: Model, tokenizer: Tokenizer | None, new: int, seed: int) -> None:
        self.model = model
        documents, self.new = draw(model, tokenizer, new, seed)
        self.ways = Ways(model, documents, self.new, seed)
        self.labels = bool(
            getattr(model.config, "token_head", None) or getattr(model.config.pool, "labels", 0)
        )
        self.mixture = any(name.endswith(".ffn.router") for name, _ in model.named_modules())
        # a fused kernel makes zeros of NaN scores: answers may hide them
        must_be_finite(model, *model.parameters())
        must_be_finite(
            model, *(value for values in self.ways.plain.read(False) for value in values.values())
        )

    def share(self, dtype: torch.dtype) -> float:
        """By how much answers of this format may differ, as a share of the largest."""
        return tolerance(
            self.model.config,
            dtype,
            self.ways.longest,
            any(map(is_packed, self.model.parameters())),
        )

    def checks(self, against: str | Path | None, compiles: bool) -> Iterator[Check]:
        """Every way, compared."""
        with tempfile.TemporaryDirectory(prefix="glassformer-verify-") as folder:
            for kind, name, make in self.ways.all(Path(folder) / "model", against, compiles):
                start_time = time.monotonic()
                try:
                    with quiet_compiler():
                        check = self.compared(kind, name, make())
                except NotRun as reason:
                    check = Check(kind, name, "not run", note=str(reason))
                except (
                    Exception
                ) as error:  # a way that breaks is a way that fails, and the others are still told
                    reason_lines = str(error).strip().splitlines() or ["no reason given"]
                    check = Check(
                        kind, name, "FAIL", note=f"{type(error).__name__}: {reason_lines[0][:200]}"
                    )
                yield replace(check, seconds=round(time.monotonic() - start_time, 3))

    def compared(self, kind: str, name: str, way: Way) -> Check:
        """One way beside what it is held to; where they differ too much, where they first do."""
        notes = [way.note]
        share = 0.0 if way.dtype is None else self.share(way.dtype)
        actual, right = way.actual.read(False), way.expected.read(False)
        if not answers(actual, right):  # a cache pools nothing: the hidden states instead
            right = way.expected.read(True)
        paths = answers(actual, right)
        if not any(bool(values[path].any()) for values in (*actual, *right) for path in paths):
            if way.weights is None:
                raise NotRun(ZEROS)
            notes.append("its weights alone: every answer is 0")
        difference, bound, path = largest(actual, right, share)
        if difference > bound and share and self.mixture:
            choices = dict(zip(way.texts, way.expected.read(True), strict=True))
            # transformers tells none
            if any(path.endswith(".ffn.chosen") for path in choices[way.texts[0]]):
                pinned = PinnedRouting(choices)
                again = way.actual.read(False, pinned), way.expected.read(False, pinned)
                # the routers agree: what differs is what was chosen at a near tie
                if pinned.moved <= share:
                    actual, right = again
                    notes.append(
                        "a near tie of experts fell otherwise: they are held to the other's"
                    )
                    difference, bound, path = largest(actual, right, share)
        first = None
        if way.weights is not None:
            back, weights = way.weights
            checks = (differing(path, back.get(path), weight) for path, weight in weights.items())
            first = next(filter(None, checks), None)
        if first is None and difference > bound:
            first = first_difference(
                way.actual.read(True), way.expected.read(True), share, way.texts
            ) or first_difference(actual, right, share, way.texts)
        equal, tokens = equal_choices(actual, right, self.new, self.labels)
        fails = difference > bound or first is not None
        if not fails and equal != tokens:
            notes.append("the other choices are ties within the bound")
        finite = difference if math.isfinite(difference) else None
        status: Status = "FAIL" if fails else "pass"
        note = "; ".join(filter(None, notes))
        return Check(kind, name, status, finite, bound, path, equal, tokens, first, note)
