"""The ways to compute a model that must all say the same: which there are, and how each one reads
the texts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from ..core import config
from ..core.nn import Cache, Model, lora
from ..core.nn.engines import ENGINES
from . import counterparts
from .counterparts import HFModel, NotRun
from .layouts import DocumentReader, Documents, Layout, PinnedRouting, Values

TEXTS = (0, 1, 2)
CHUNK = 13  # no divisor of a block, a ring or a text's length
NEEDS = {
    "block_sparse": "it knows no bias of positions",
    "cpu_blocks": "it knows no bias of positions and caps no scores",
    "prefill": "it computes causal prompts in bfloat16 on a CPU, without bias or cap",
    "sdpa": "it caps no scores",
}
"""Why an engine cannot compute an attention."""


class Readable(Protocol):
    """One side of a comparison."""

    def read(self, tape: bool, pinned: PinnedRouting | None = None) -> list[Values]:
        """The values of each text: all of them with a tape, held to pinned experts."""


class ModelReading:
    """A model that reads the texts in a layout, once without a tape and once with one, and anew
    where experts are pinned. ``tape`` is whether it is always on one, or never."""

    def __init__(
        self, model: Model, documents: Documents, layout: Layout, tape: bool | None = None
    ) -> None:
        self.model = model
        self.documents = documents
        self.layout = layout
        self.tape = tape
        self.values: dict[bool, list[Values]] = {}

    def read(self, tape: bool, pinned: PinnedRouting | None = None) -> list[Values]:
        tape = tape if self.tape is None else self.tape
        if pinned is not None:
            return DocumentReader(self.model, self.documents, tape, pinned).read(self.layout)
        if tape not in self.values:
            reader = DocumentReader(self.model, self.documents, tape)
            self.values[tape] = reader.read(self.layout)
        return self.values[tape]


@dataclass(frozen=True)
class Way:
    """A way to compute the model beside what it is held to.

    ``dtype`` is the format whose rounding may show; None: the same bits. ``texts`` are the numbers
    of those read, in the order in which they come back; ``weights`` must be the same bits.
    """

    actual: Readable
    expected: Readable
    dtype: torch.dtype | None
    note: str = ""
    texts: tuple[int, ...] = TEXTS
    weights: tuple[Mapping[str, Tensor], Mapping[str, Tensor]] | None = None


Made: TypeAlias = Iterator[tuple[str, str, Callable[[], Way]]]
"""(kind, name, what makes it) of each: making may take long, or raise NotRun."""


class Ways:
    """All of them for one model and its texts; ``new`` tokens at the end of each continue it
    greedily."""

    def __init__(self, model: Model, documents: Documents, new: int, seed: int) -> None:
        self.model = model
        self.documents = documents
        self.new = new
        self.seed = seed
        self.dtype = next(model.parameters()).dtype
        self.longest = max(map(len, documents.tokens))
        self.plain = self.alone(model)

    def alone(self, model: Model, *texts: int) -> ModelReading:
        """Each text alone, read by another model."""
        return ModelReading(model, self.documents, self.documents.alone(*(texts or TEXTS)))

    def all(self, folder: Path, against: str | Path | None, compiles: bool) -> Made:
        """(kind, name, what makes it): of those that fit the model's shape."""
        taped = ModelReading(self.model, self.documents, self.documents.alone(*TEXTS), tape=True)
        yield "tape", "on a tape / off it", lambda: Way(taped, self.plain, None)
        for kind, name, layout, texts in self.layouts():
            expected = self.plain if texts == TEXTS else self.alone(self.model, *texts)
            actual = ModelReading(self.model, self.documents, layout)
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
        readable = counterparts.with_engine(self.model, "eager")
        eager = ModelReading(readable, self.documents, layout)

        def make(name: str) -> Way:
            view = counterparts.with_engine(self.model, name)
            note = ""
            if name != "auto":
                counts = counterparts.engines_of(view, self.documents)
                if not counts[name]:
                    raise NotRun(NEEDS.get(name, "it can compute no attention of this model"))
                fallbacks = [f"{n} by {engine}" for engine, n in counts.items() if engine != name]
                note = ", ".join([f"{counts[name]} attentions", *fallbacks]) if fallbacks else ""
            return Way(
                ModelReading(view, self.documents, layout), eager, self.dtype, note, (0, *TEXTS)
            )

        for name in ("auto", *(ENGINES if config.stacks(self.model.config) else ())):
            if name != "eager":
                yield "engine", f"engine {name} / eager", partial(make, name)

    def formats(self) -> Made:
        """Number formats beside wider ones: what rounding alone does."""

        def side(dtype: torch.dtype) -> ModelReading:
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
        back, layout = counterparts.loaded_again(self.model, folder)
        weights = dict(back.named_parameters()), lora.weights(self.model)
        dtype = self.dtype if lora.adapted(self.model) else None
        return Way(self.alone(back), self.plain, dtype, f"layout {layout}", weights=weights)

    def compiled(self, is_wanted: bool) -> Way:
        """Under torch.compile; of a deep model a few blocks, since all are of a kind."""
        if not is_wanted:
            raise NotRun("compiling takes longer than all the rest: ask for it, --compile")
        short, blocks = counterparts.shortened(self.model)
        expected = self.alone(short, 0, 1)
        # a tape has no trace in it
        actual = ModelReading(
            counterparts.compiled_copy(short), self.documents, expected.layout, False
        )
        return Way(actual, expected, self.dtype, f"the first {blocks} blocks", (0, 1))

    def transformers(self, folder: Path, against: str | Path) -> Way:
        """Variant that ``transformers`` reads from the folder; "hf": in one in which the model is
        saved here."""
        source, note = Path(against), f"both read {against}"
        if str(against) == "hf":
            source, note = folder, "as saved here"
            if not (folder / "config.json").exists():
                counterparts.loaded_again(self.model, folder)
        actual = ModelReading(self.model, self.documents, self.plain.layout, tape=True)
        return Way(actual, HFModel(source, self.model, self.documents), self.dtype, note)


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
