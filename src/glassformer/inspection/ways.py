"""The ways to compute a model that must all say the same: which there are, and how each one reads the texts."""

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

from .. import config
from ..nn import Cache, Model, lora
from ..nn.engines import ENGINES
from . import counterparts
from .counterparts import NotRun, Theirs
from .layouts import Documents, Held, Reader, Values

Read: TypeAlias = Callable[[bool, Held | None], list[Values]]
"""(whether on a tape, the experts held to) -> the values of each text that is read."""
CHUNK = 13  # no divisor of a block, a ring or a text's length
NEEDS = {
    "block_sparse": "it knows no bias of positions",
    "cpu_blocks": "it knows no bias of positions and caps no scores",
    "prefill": "it computes causal prompts in bfloat16 on a CPU, without bias or cap",
    "varlen": "it computes packed texts under a full, causal or window rule, without bias or cap",
    "flex": "it knows no bias of positions",
    "sdpa": "it caps no scores",
}
"""Why an engine cannot compute an attention."""


@dataclass(frozen=True)
class Way:
    """A way to compute the model, and what it is held to: the plain pass of the same texts where nothing is given.

    ``dtype`` is the format whose rounding may show; None: the same bits. ``texts`` are the numbers of those read, in
    the order in which they come back.
    """

    read: Read
    dtype: torch.dtype | None = None
    texts: Sequence[int] = (0, 1, 2)
    against: Read | None = None
    note: str = ""
    weights: tuple[Mapping[str, Tensor], Mapping[str, Tensor]] | None = None  # that must be the same bits


Made: TypeAlias = Iterator[tuple[str, str, Callable[[], Way]]]
"""(kind, name, what makes it) of each: making may take long, or raise NotRun."""


class Ways:
    """All of them for one model and its texts; ``new`` tokens at the end of each continue it greedily."""

    def __init__(self, model: Model, given: Documents, new: int, seed: int) -> None:
        self.model, self.given, self.new, self.seed = model, given, new, seed
        self.dtype = next(model.parameters()).dtype
        self.causal = not isinstance(model.config, config.Encoder)
        self.longest = max(map(len, given.tokens))
        self._plain: dict[bool, list[Values]] = {}

    def plain(self, tape: bool) -> list[Values]:
        """The plain pass, made once without a tape and once with one."""
        if tape not in self._plain:
            self._plain[tape] = Reader(self.model, tape).alone(self.given)
        return self._plain[tape]

    def all(self, folder: Path, against: str | Path | None, compiles: bool) -> Made:
        """(kind, name, what makes it): of those that fit the model's shape."""
        yield (
            "tape",
            "on a tape / off it",
            lambda: Way(lambda tape, held: Reader(self.model, True, held).alone(self.given)),
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
        """How another model reads each text by itself."""
        return lambda tape, held: Reader(model, tape, held).alone(self.given)

    def way(self, how: Callable[[Reader], list[Values]], **rest: Any) -> Way:
        """The model itself read in another way."""
        return Way(lambda tape, held: how(Reader(self.model, tape, held)), **{"dtype": self.dtype, **rest})

    def cached(self) -> Made:
        """Through a cache, in parts of every size, alone and as a batch is generated."""
        ahead = max(1, Cache(self.model.config).prefix_length)
        for name, cut, texts in (
            ("one pass", evenly(1 << 30, ahead), (0, 1, 2)),
            (f"chunks of {CHUNK}", evenly(CHUNK, ahead), (0, 1, 2)),
            ("drawn chunks", drawn(self.seed, ahead), (0, 1, 2)),
            ("token by token", evenly(1, ahead), (2,)),
        ):
            read = partial(Reader.chunked, given=self.given.only(*texts), chunks=cut)
            yield "cache", f"cache, {name} / no cache", partial(self.way, read, texts=texts)
        steps = self.new or min(4, min(map(len, self.given.tokens)) - ahead)
        for side in ("left", "right"):
            read = partial(Reader.generated, given=self.given, side=side, steps=steps)
            yield "cache", f"batch padded {side}, then tokens / alone", partial(self.way, read)

    def batched(self) -> Made:
        """Several texts at once."""
        pair = partial(Reader.batched, given=self.given.only(0, 1))
        yield "batch", "in a batch / alone", partial(self.way, pair, texts=(0, 1))
        for side in ("left", "right"):
            read = partial(Reader.padded, given=self.given, side=side)
            yield "padding", f"padded {side} / alone", partial(self.way, read)
        yield "packing", "packed in a row / alone", partial(self.way, partial(Reader.packed, given=self.given))

    def engines(self) -> Made:
        """Every engine beside the readable one: a text alone, and all packed, whose mask is no kernel's own."""

        def read(reader: Reader) -> list[Values]:
            return reader.alone(self.given.only(0)) + reader.packed(self.given)

        readable, kept = counterparts.with_engine(self.model, "eager"), dict[bool, list[Values]]()

        def eager(tape: bool, held: Held | None) -> list[Values]:
            if held is not None:
                return read(Reader(readable, tape, held))
            if tape not in kept:
                kept[tape] = read(Reader(readable, tape))
            return kept[tape]

        names = ("auto", *(ENGINES if config.stacks(self.model.config) else ()))
        counts: dict[str, Counter[str]] = {}

        def make(name: str) -> Way:
            view, note = counterparts.with_engine(self.model, name), ""
            if name != "auto":
                short = Documents([self.given.tokens[0][:2]], self.given.sources and [self.given.sources[0][:2]])
                if not counts:
                    counts.update(counterparts.engines_of(readable, short, names))
                if name == "varlen":  # of packed texts alone, whose borders it asks for
                    counts.update(counterparts.engines_of(view, short, [name], packed=True))
                found = counts[name]
                others = ", ".join(f"{count} by {other}" for other, count in found.items() if other != name)
                if not found[name]:
                    raise NotRun(NEEDS.get(name, "it can compute no attention of this model"))
                note = f"{found[name]} attentions, {others}" if others else ""
            return Way(
                lambda tape, held: counterparts.quietly(lambda: read(Reader(view, tape, held))),
                self.dtype,
                (0, 0, 1, 2),
                eager,
                note,
            )

        for name in names:
            if name != "eager":
                yield "engine", f"engine {name} / eager", partial(make, name)

    def formats(self) -> Made:
        """Number formats beside wider ones: what rounding alone does."""

        def make(low: torch.dtype, high: torch.dtype) -> Way:
            models = [
                self.model if kind == self.dtype else counterparts.in_format(self.model, kind) for kind in (low, high)
            ]
            return Way(self.alone(models[0]), low, (0, 1, 2), None if high == self.dtype else self.alone(models[1]))

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
        made: list[tuple[dict[str, Model], str]] = []

        def make(name: str, exact: bool) -> Way:
            if not made:
                made.append(counterparts.adapters(self.model, self.seed))
            models, note = made[0]
            one, apart = models[name], models["apart"]
            weights = (dict(one.named_parameters()), dict(apart.named_parameters())) if exact else None
            dtype = None if exact else self.dtype
            return Way(self.alone(one), dtype, (0, 1, 2), self.alone(apart), note, weights)

        yield "lora", "LoRA merged / apart", partial(make, "merged", False)
        yield "lora", "LoRA taken out again / apart", partial(make, "unmerged", True)

    def saved(self, folder: Path) -> Way:
        """Written to a folder and read again: the same bits, weights and answers; an adapter is merged in files."""
        back, layout = counterparts.loaded_again(self.model, folder)
        weights = dict(back.named_parameters()), lora.weights(self.model)
        note = f"layout {layout}"
        dtype = self.dtype if lora.adapted(self.model) else None
        return Way(self.alone(back), dtype, note=note, weights=weights)

    def compiled(self, wanted: bool) -> Way:
        """Under torch.compile; of a deep model a few blocks, since all are of a kind."""
        if not wanted:
            raise NotRun("compiling takes longer than all the rest: ask for it, --compile")
        short, blocks = counterparts.shortened(self.model)
        made, some = counterparts.compiled_copy(short), self.given.only(0, 1)
        return Way(
            lambda tape, held: counterparts.quietly(lambda: Reader(made).alone(some)),  # a tape has no trace in it
            self.dtype,
            (0, 1),
            lambda tape, held: Reader(short, tape, held).alone(some),
            f"the first {blocks} blocks",
        )

    def transformers(self, folder: Path, against: str | Path) -> Way:
        """What ``transformers`` reads in the folder; "hf": in one in which the model is saved here."""
        where = Path(against)
        if str(against) == "hf":
            where = folder
            if not (folder / "config.json").exists():
                counterparts.loaded_again(self.model, folder)
        theirs, note = Theirs(where, self.model), "as saved here" if where == folder else f"both read {where}"
        ours = lambda tape, held: Reader(self.model, True, held).alone(self.given)  # noqa: E731
        return Way(ours, self.dtype, (0, 1, 2), lambda tape, held: theirs.alone(self.given), note)


def evenly(size: int, ahead: int) -> Callable[[int], list[int]]:
    """Parts of ``size`` tokens, the first at least ``ahead``, the last what is left."""

    def cut(length: int) -> list[int]:
        first = min(max(size, ahead), length)
        parts = [first] + [size] * ((length - first) // size)
        return parts + [length - sum(parts)] * (sum(parts) < length)

    return cut


def drawn(seed: int, ahead: int) -> Callable[[int], list[int]]:
    """Parts of 1 to 11 tokens, the same ones each time, the first at least ``ahead``."""

    def cut(length: int) -> list[int]:
        draws, parts = random.Random(f"{seed} {length}"), [min(ahead, length)]
        while (left := length - sum(parts)) > 0:
            parts.append(min(left, draws.randint(1, 11)))
        return parts

    return cut


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
