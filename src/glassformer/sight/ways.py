"""The ways to compute a model that must all say the same: which there are, and how each one reads
the texts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..core import config
from ..core.nn import Cache, Model, lora
from ..core.nn.engines import ENGINES
from . import counterparts
from .counterparts import HFModel, NotRun
from .layouts import DocumentReader, Documents, PinnedRouting, Values

Read: TypeAlias = Callable[[bool, PinnedRouting | None], list[Values]]
"""(whether on a tape, the experts held to) -> the values of each text that is read."""
CHUNK = 13  # no divisor of a block, a ring or a text's length
NEEDS = {
    "block_sparse": "it knows no bias of positions",
    "cpu_blocks": "it knows no bias of positions and caps no scores",
    "prefill": "it computes causal prompts in bfloat16 on a CPU, without bias or cap",
    "sdpa": "it caps no scores",
}
"""Why an engine cannot compute an attention."""


@dataclass(frozen=True)
class Way:
    """A way to compute the model, and what it is held to: the plain pass of the same texts where
    nothing is given.

    ``dtype`` is the format whose rounding may show; None: the same bits. ``texts`` are the numbers
    of those read, in the order in which they come back.
    """

    run: Read
    dtype: torch.dtype | None = None
    texts: Sequence[int] = (0, 1, 2)
    against: Read | None = None
    note: str = ""
    # that must be the same bits
    weights: tuple[Mapping[str, Tensor], Mapping[str, Tensor]] | None = None


Made: TypeAlias = Iterator[tuple[str, str, Callable[[], Way]]]
"""(kind, name, what makes it) of each: making may take long, or raise NotRun."""


class Ways:
    """All of them for one model and its texts; ``new`` tokens at the end of each continue it
    greedily."""

    def __init__(self, model: Model, documents: Documents, new: int, seed: int) -> None:
        self.model = model
        self.given = documents
        self.new = new
        self.seed = seed
        self.dtype = next(model.parameters()).dtype
        self.causal = model.config.main_body == "decoder"
        self.longest = max(map(len, documents.tokens))
        self._plain = _remembered(self.alone(model))

    def plain(self, tape: bool) -> list[Values]:
        """The plain pass, made once without a tape and once with one."""
        return self._plain(tape, None)

    def all(self, folder: Path, against: str | Path | None, compiles: bool) -> Made:
        """(kind, name, what makes it): of those that fit the model's shape."""
        yield (
            "tape",
            "on a tape / off it",
            lambda: Way(
                lambda tape, pinned: DocumentReader(self.model, True, pinned).alone(self.given)
            ),
        )
        if self.causal:
            yield from self.cached()
        yield from self.batched()
        yield from self.engines()
        yield from self.formats()
        yield "prepacked", "prepacked weights / plain", self.prepacked
        yield from self.adapted()
        yield "saved", "saved and loaded / before", lambda: self.saved(folder)
        yield "compiled", "compiled / eager", lambda: self.compiled(compiles)
        if against is not None:
            yield "transformers", "here / transformers", lambda: self.transformers(folder, against)

    def alone(self, model: Model) -> Read:
        """Reader of each text alone with another model."""
        return lambda tape, pinned: DocumentReader(model, tape, pinned).alone(self.given)

    def variant(self, reading: Callable[[DocumentReader], list[Values]], **fields: Any) -> Way:
        """The model itself read in another way."""
        return Way(
            lambda tape, pinned: reading(DocumentReader(self.model, tape, pinned)),
            **{"dtype": self.dtype, **fields},
        )

    def cached(self) -> Made:
        """Through a cache, in parts of every size, alone and as a batch is generated."""
        ahead = max(1, Cache(self.model.config).prefix_length)
        for name, cut, texts in (
            ("one pass", evenly(1 << 30, ahead), (0, 1, 2)),
            (f"chunks of {CHUNK}", evenly(CHUNK, ahead), (0, 1, 2)),
            ("drawn chunks", drawn(self.seed, ahead), (0, 1, 2)),
            ("token by token", evenly(1, ahead), (2,)),
        ):
            reading = partial(DocumentReader.chunked, documents=self.given.only(*texts), chunks=cut)
            yield "cache", f"cache, {name} / no cache", partial(self.variant, reading, texts=texts)
        steps = self.new or min(4, min(map(len, self.given.tokens)) - ahead)
        for side in ("left", "right"):
            reading = partial(
                DocumentReader.generated, documents=self.given, side=side, steps=steps
            )
            yield (
                "cache",
                f"batch padded {side}, then tokens / alone",
                partial(self.variant, reading),
            )

    def batched(self) -> Made:
        """Several texts at once."""
        pair = partial(DocumentReader.batched, documents=self.given.only(0, 1))
        yield "batch", "in a batch / alone", partial(self.variant, pair, texts=(0, 1))
        for side in ("left", "right"):
            reading = partial(DocumentReader.padded, documents=self.given, side=side)
            yield "padding", f"padded {side} / alone", partial(self.variant, reading)
        yield (
            "packing",
            "packed in a row / alone",
            partial(self.variant, partial(DocumentReader.packed, documents=self.given)),
        )

    def engines(self) -> Made:
        """Every engine beside the readable one: a text alone, and all packed, whose mask is no
        kernel's own."""

        def reading(reader: DocumentReader) -> list[Values]:
            return reader.alone(self.given.only(0)) + reader.packed(self.given)

        readable = counterparts.with_engine(self.model, "eager")
        eager = _remembered(
            lambda tape, pinned: reading(DocumentReader(readable, tape, pinned)),
        )

        names = ("auto", *(ENGINES if config.stacks(self.model.config) else ()))
        counts: dict[str, Counter[str]] = {}

        def make(name: str) -> Way:
            view = counterparts.with_engine(self.model, name)
            note = ""
            if name != "auto":
                short = Documents(
                    [self.given.tokens[0][:2]], self.given.sources and [self.given.sources[0][:2]]
                )
                if not counts:
                    counts.update(counterparts.engines_of(readable, short, names))
                others = [
                    f"{n} by {engine}" for engine, n in counts[name].items() if engine != name
                ]
                if not counts[name][name]:
                    raise NotRun(NEEDS.get(name, "it can compute no attention of this model"))
                note = ", ".join([f"{counts[name][name]} attentions", *others]) if others else ""
            run = lambda tape, pinned: reading(DocumentReader(view, tape, pinned))  # noqa: E731
            return Way(run, self.dtype, (0, 0, 1, 2), eager, note)

        for name in names:
            if name != "eager":
                yield "engine", f"engine {name} / eager", partial(make, name)

    def formats(self) -> Made:
        """Number formats beside wider ones: what rounding alone does."""

        def make(low: torch.dtype, high: torch.dtype) -> Way:
            own, other = (
                self.alone(
                    self.model if kind == self.dtype else counterparts.in_format(self.model, kind)
                )
                for kind in (low, high)
            )
            return Way(own, low, against=None if high == self.dtype else other)

        wide = {torch.float32: torch.float64, torch.float64: torch.float32}.get(self.dtype)
        pairs = [(torch.float32, torch.float64)] if wide else [(self.dtype, torch.float32)]
        for low, high in dict.fromkeys([*pairs, (torch.bfloat16, torch.float32)]):
            yield "format", f"{_name(low)} / {_name(high)}", partial(make, low, high)

    def prepacked(self) -> Way:
        """Weights in the processor's own order, as generation reads them."""
        view = counterparts.with_prepacked(self.model)
        return Way(self.alone(view), self.dtype)

    def adapted(self) -> Made:
        """Low-rank changes in their matrices, beside them, and taken out again."""
        adapted_models: list[tuple[dict[str, Model], str]] = []

        def make(name: str, exact: bool) -> Way:
            if not adapted_models:
                adapted_models.append(counterparts.adapters(self.model, self.seed))
            models, note = adapted_models[0]
            adapted = models[name]
            apart = models["apart"]
            weights = (
                (dict(adapted.named_parameters()), dict(apart.named_parameters()))
                if exact
                else None
            )
            dtype = None if exact else self.dtype
            return Way(self.alone(adapted), dtype, (0, 1, 2), self.alone(apart), note, weights)

        yield "lora", "LoRA merged / apart", partial(make, "merged", False)
        yield "lora", "LoRA taken out again / apart", partial(make, "unmerged", True)

    def saved(self, folder: Path) -> Way:
        """Written to a folder and read again: the same bits, weights and answers; an adapter is
        merged in files."""
        back, layout = counterparts.loaded_again(self.model, folder)
        weights = dict(back.named_parameters()), lora.weights(self.model)
        note = f"layout {layout}"
        dtype = self.dtype if lora.adapted(self.model) else None
        return Way(self.alone(back), dtype, note=note, weights=weights)

    def compiled(self, is_wanted: bool) -> Way:
        """Under torch.compile; of a deep model a few blocks, since all are of a kind."""
        if not is_wanted:
            raise NotRun("compiling takes longer than all the rest: ask for it, --compile")
        short, blocks = counterparts.shortened(self.model)
        compiled_model = counterparts.compiled_copy(short)
        two_documents = self.given.only(0, 1)
        return Way(
            lambda tape, pinned: counterparts.quietly(
                lambda: DocumentReader(compiled_model).alone(two_documents)
            ),  # a tape has no trace in it
            self.dtype,
            (0, 1),
            lambda tape, pinned: DocumentReader(short, tape, pinned).alone(two_documents),
            f"the first {blocks} blocks",
        )

    def transformers(self, folder: Path, against: str | Path) -> Way:
        """Variant that ``transformers`` reads from the folder; "hf": in one in which the model is
        saved here."""
        folder_to_read = Path(against)
        if str(against) == "hf":
            folder_to_read = folder
            if not (folder / "config.json").exists():
                counterparts.loaded_again(self.model, folder)
        hf_model = HFModel(folder_to_read, self.model)
        note = "as saved here" if folder_to_read == folder else f"both read {folder_to_read}"
        return Way(
            lambda tape, pinned: DocumentReader(self.model, True, pinned).alone(self.given),
            self.dtype,
            against=lambda tape, pinned: hf_model.alone(self.given),
            note=note,
        )


def _remembered(read: Read) -> Read:
    """The same, which reads once without a tape and once with one, and anew where experts are
    pinned."""
    made: dict[bool, list[Values]] = {}

    def read_once(tape: bool, pinned: PinnedRouting | None) -> list[Values]:
        if pinned is not None:
            return read(tape, pinned)
        if tape not in made:
            made[tape] = read(tape, None)
        return made[tape]

    return read_once


def evenly(size: int, ahead: int) -> Callable[[int], list[int]]:
    """Parts of ``size`` tokens, the first at least ``ahead``, the last what is left."""

    def cut(length: int) -> list[int]:
        first = min(max(size, ahead), length)
        sizes = [first] + [size] * ((length - first) // size)
        return sizes + [length - sum(sizes)] * (sum(sizes) < length)

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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
