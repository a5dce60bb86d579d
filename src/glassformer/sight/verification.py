"""Exactness as a product: a model computed in every way there is, each way held to the plain pass.

    for check in verify(model, tokenizer): print(check.line())

The plain pass reads each text alone, without cache, tape or compiler, by the engine that the model
would choose.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from ..core.errors import need
from ..core.nn import Cache, Model, lora
from ..core.nn.attention import ENGINES
from ..core.nn.finite import must_be_finite
from ..core.nn.replace import is_packed
from . import counterparts
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
from .counterparts import HFModel, NotRun, quiet_compiler
from .layouts import DocumentReader, Layout, PinnedRouting, Values
from .probes import draw

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer

ZEROS = "every answer is 0 however it is computed, which proves nothing: train the model first"
TEXTS = (0, 1, 2)
CHUNK = 13  # no divisor of a block, a ring or a text's length
NEEDS = {
    "block_sparse": "it knows no bias of positions",
    "cpu_blocks": "it knows no bias of positions and caps no scores",
    "prefill": "it computes causal prompts in bfloat16 on a CPU, without bias or cap",
    "sdpa": "it caps no scores",
}
"""Why an engine cannot compute an attention."""


Reading: TypeAlias = Callable[..., list[Values]]
"""One side of a comparison: the values of each text, all of them with a tape (a bool), held to
pinned experts where these are given."""


@dataclass(frozen=True)
class Way:
    """A way to compute the model beside what it is held to.

    ``dtype`` is the format whose rounding may show; None: the same bits. ``texts`` are the numbers
    of those read, in the order in which they come back; ``weights`` must be the same bits.
    """

    actual: Reading
    expected: Reading
    dtype: torch.dtype | None
    note: str = ""
    texts: tuple[int, ...] = TEXTS
    weights: tuple[Mapping[str, Tensor], Mapping[str, Tensor]] | None = None


Made: TypeAlias = Iterator[tuple[str, str, Callable[[], Way]]]
"""(kind, name, what makes it) of each: making may take long, or raise NotRun."""


def verify(
    model: Model,
    tokenizer: Tokenizer | None = None,
    *,
    against: str | Path | None = None,
    new: int = 16,
    seed: int = 0,
    compile: bool = False,
) -> Iterator[Check]:
    """Computes a model in every way there is, and holds each to the plain pass.

    Args:
        model: A model of ours; it is not changed.
        tokenizer: Reads three texts; without it they are drawn.
        against: "hf" compares with transformers too, which reads the model as saved here. A folder
            in its layout is read by both.
        new: Tokens that each text is continued by, where the model can.
        seed: The seed of what is drawn.
        compile: Try torch.compile, which takes longer than all the rest on a CPU.

    Yields:
        A check at a time: what was compared, the largest difference, and its bound.

    Raises:
        UserError: The model has no weights, NaN among them, or no room for the texts.

    Example:
        >>> for check in glassformer.verify(model, tokenizer, new=2):
        ...     print(check)
    """
    need(new > 0, f"The number of tokens to compare is {new}; give 1 or more.")
    need(
        not any(weight.is_meta for weight in model.parameters()),
        "This model has no weights; build it on a device.",
    )
    yield from Verification(model, tokenizer, new, seed).checks(against, compile)


class Verification:
    """A model and its texts, their plain pass, and the ways that are held to it; ``new`` tokens at
    the end of each text continue it greedily."""

    def __init__(self, model: Model, tokenizer: Tokenizer | None, new: int, seed: int) -> None:
        self.model = model
        self.seed = seed
        self.documents, self.new = draw(model, tokenizer, new, seed)
        self.dtype = next(model.parameters()).dtype
        self.texts = self.documents.alone(*TEXTS)
        self.plain = self.alone(model)
        # a fused kernel makes zeros of NaN scores: answers may hide them
        must_be_finite(
            model,
            *model.parameters(),
            *(x for values in self.plain(False) for x in values.values()),
        )

    def reading(self, model: Model, layout: Layout, always: bool | None = None) -> Reading:
        """A model that reads the texts in a layout, once without a tape and once with one, and anew
        where experts are pinned; ``always`` is whether it is always on one, or never."""

        @cache
        def read(tape: bool, pinned: PinnedRouting | None) -> list[Values]:
            return DocumentReader(model, self.documents, tape, pinned).read(layout)

        return lambda tape, pinned=None: read(tape if always is None else always, pinned)

    def alone(self, model: Model, *texts: int) -> Reading:
        """Each text alone, read by another model."""
        return self.reading(model, self.documents.alone(*(texts or TEXTS)))

    def all(self, folder: Path, against: str | Path | None, compiles: bool) -> Made:
        """(kind, name, what makes it): of those that fit the model's shape."""
        taped = self.reading(self.model, self.texts, True)
        yield "tape", "on a tape / off it", lambda: Way(taped, self.plain, None)
        for kind, name, layout, texts in self.layouts():
            expected = self.plain if texts == TEXTS else self.alone(self.model, *texts)
            actual = self.reading(self.model, layout)
            yield kind, name, partial(Way, actual, expected, self.dtype, texts=texts)
        yield from self.engines()
        yield from self.formats()
        yield "prepacked", "prepacked weights / plain", self.prepacked
        yield from self.adapted()
        yield "saved", "saved and loaded / before", lambda: self.saved(folder)
        yield "compiled", "compiled / eager", lambda: self.compiled(compiles)
        if against is not None:
            yield "transformers", "here / transformers", lambda: self.transformers(folder, against)

    def layouts(self) -> Iterator[tuple[str, str, Layout, tuple[int, ...]]]:
        """(kind, name, layout, texts): through a cache in parts of every size, alone and as a batch
        is generated; then several texts at once."""
        documents = self.documents
        if self.model.config.main_body == "decoder":
            ahead = max(1, Cache(self.model.config).prefix_length)
            for name, cut, texts in (
                ("one pass", evenly(1 << 30, ahead), TEXTS),
                (f"chunks of {CHUNK}", evenly(CHUNK, ahead), TEXTS),
                ("drawn chunks", drawn(self.seed, ahead), TEXTS),
                ("token by token", evenly(1, ahead), (2,)),
            ):
                layout = documents.chunked(cut, *texts)
                yield "cache", f"cache, {name} / no cache", layout, texts
            steps = self.new or min(4, min(map(len, documents.tokens)) - ahead)
            for side in ("left", "right"):
                name = f"batch padded {side}, then tokens / alone"
                yield "cache", name, documents.generated(side, steps), TEXTS
        yield "batch", "in a batch / alone", documents.batched(0, 1), (0, 1)
        for side in ("left", "right"):
            yield "padding", f"padded {side} / alone", documents.padded(side), TEXTS
        yield "packing", "packed in a row / alone", documents.packed(), TEXTS

    def engines(self) -> Made:
        """Every engine beside the readable one: a text alone, and all packed, whose mask is no
        kernel's own."""
        layout = self.documents.alone(0) + self.documents.packed()
        eager = self.reading(counterparts.with_engine(self.model, "eager"), layout)

        def make(name: str) -> Way:
            view = counterparts.with_engine(self.model, name)
            note = ""
            if name != "auto":
                counts = counterparts.engines_of(self.model, name, self.documents)
                if not counts[name]:
                    raise NotRun(NEEDS.get(name, "it can compute no attention of this model"))
                fallbacks = [f"{n} by {engine}" for engine, n in counts.items() if engine != name]
                note = ", ".join([f"{counts[name]} attentions", *fallbacks]) if fallbacks else ""
            return Way(self.reading(view, layout), eager, self.dtype, note, (0, *TEXTS))

        for name in ("auto", *(ENGINES if self.model.config.stacks else ())):
            if name != "eager":
                yield "engine", f"engine {name} / eager", partial(make, name)

    def formats(self) -> Made:
        """Number formats beside wider ones: what rounding alone does."""

        def side(dtype: torch.dtype) -> Reading:
            if dtype == self.dtype:
                return self.plain
            return self.alone(counterparts.in_format(self.model, dtype))

        def make(low: torch.dtype, high: torch.dtype) -> Way:
            return Way(side(low), side(high), low)

        exact = self.dtype in (torch.float32, torch.float64)
        pair = (torch.float32, torch.float64) if exact else (self.dtype, torch.float32)
        for low, high in dict.fromkeys([pair, (torch.bfloat16, torch.float32)]):
            name = f"{low} / {high}".replace("torch.", "")
            yield "format", name, partial(make, low, high)

    def prepacked(self) -> Way:
        """Weights in the processor's own order, as generation reads them."""
        view = counterparts.with_prepacked(self.model)
        return Way(self.alone(view), self.plain, self.dtype)

    def adapted(self) -> Made:
        """Low-rank changes in their matrices, beside them, and taken out again."""

        @cache
        def models() -> tuple[dict[str, Model], str]:
            return counterparts.adapters(self.model, self.seed)

        def make(name: str, dtype: torch.dtype | None) -> Way:
            adapted, apart = (models()[0][model] for model in (name, "apart"))
            weights = dict(adapted.named_parameters()), dict(apart.named_parameters())
            exact = weights if dtype is None else None
            actual, expected = self.alone(adapted), self.alone(apart)
            return Way(actual, expected, dtype, models()[1], weights=exact)

        yield "lora", "LoRA merged / apart", lambda: make("merged", self.dtype)
        yield "lora", "LoRA taken out again / apart", lambda: make("unmerged", None)

    def saved(self, folder: Path) -> Way:
        """Written to a folder and read again: the same bits, weights and answers; an adapter is
        merged in files."""
        if "features" in self.model._modules:
            raise NotRun("a dictionary of features is saved beside its base, not in it")
        back, layout = counterparts.loaded_again(self.model, folder)
        weights = dict(back.named_parameters()), lora.weights(self.model)
        dtype = self.dtype if lora.adapted(self.model) else None
        return Way(self.alone(back), self.plain, dtype, f"layout {layout}", weights=weights)

    def compiled(self, is_wanted: bool) -> Way:
        """Under torch.compile; of a deep model a few blocks, since all are of a kind."""
        if not is_wanted:
            raise NotRun("compiling takes longer than all the rest: ask for it, --compile")
        short, blocks = counterparts.shortened(self.model)
        layout = self.documents.alone(0, 1)
        # a tape has no trace in it
        actual = self.reading(counterparts.compiled_copy(short), layout, False)
        expected = self.reading(short, layout)
        return Way(actual, expected, self.dtype, f"the first {blocks} blocks", (0, 1))

    def transformers(self, folder: Path, against: str | Path) -> Way:
        """Variant that ``transformers`` reads from the folder; "hf": in one in which the model is
        saved here."""
        source, note = Path(against), f"both read {against}"
        if str(against) == "hf":
            source, note = folder, "as saved here"
            if not (folder / "config.json").exists():
                counterparts.loaded_again(self.model, folder)
        actual = self.reading(self.model, self.texts, True)
        return Way(actual, HFModel(source, self.model, self.documents), self.dtype, note)

    def share(self, dtype: torch.dtype) -> float:
        """By how much answers of this format may differ, as a share of the largest."""
        return tolerance(
            self.model.config,
            dtype,
            max(map(len, self.documents.tokens)),
            any(map(is_packed, self.model.parameters())),
        )

    def checks(self, against: str | Path | None, compiles: bool) -> Iterator[Check]:
        """Every way, compared."""
        with tempfile.TemporaryDirectory(prefix="glassformer-verify-") as folder:
            for kind, name, make in self.all(Path(folder) / "model", against, compiles):
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
        actual, right = way.actual(False), way.expected(False)
        if not answers(actual, right):  # a cache pools nothing: the hidden states instead
            right = way.expected(True)
        paths = answers(actual, right)
        if not any(bool(values[path].any()) for values in (*actual, *right) for path in paths):
            if way.weights is None:
                raise NotRun(ZEROS)
            notes.append("its weights alone: every answer is 0")
        difference, bound, path = largest(actual, right, share)
        if difference > bound and share:
            choices = dict(zip(way.texts, way.expected(True), strict=True))
            # of a mixture; transformers tells none
            if any(path.endswith(".ffn.chosen") for path in choices[way.texts[0]]):
                pinned = PinnedRouting(choices)
                again = way.actual(False, pinned), way.expected(False, pinned)
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
                way.actual(True), way.expected(True), share, way.texts
            ) or first_difference(actual, right, share, way.texts)
        cfg = self.model.config
        labels = bool(cfg.token_head or cfg.labels)
        equal, tokens = equal_choices(actual, right, self.new, labels)
        fails = difference > bound or first is not None
        if not fails and equal != tokens:
            notes.append("the other choices are ties within the bound")
        finite = difference if math.isfinite(difference) else None
        status: Status = "FAIL" if fails else "pass"
        note = "; ".join(filter(None, notes))
        return Check(kind, name, status, finite, bound, path, equal, tokens, first, note)


def evenly(size: int, ahead: int) -> Callable[[int], list[int]]:
    """Parts of ``size`` tokens, the first at least ``ahead``, the last what is left."""

    def cut(length: int) -> list[int]:
        first = min(max(size, ahead), length)
        borders = [0, *range(first, length, size), length]
        return [end - start for start, end in pairwise(borders)]

    return cut


def drawn(seed: int, ahead: int) -> Callable[[int], list[int]]:
    """Parts of 1 to 11 tokens, the same ones each time, the first at least ``ahead``."""

    def cut(length: int) -> list[int]:
        draws = random.Random(f"{seed} {length}")
        sizes = [min(ahead, length)]
        while (remaining := length - sum(sizes)) > 0:
            sizes.append(min(remaining, draws.randint(1, 11)))
        return sizes

    return cut
