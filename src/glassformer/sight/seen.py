"""The result of ``look``: a dict of tensors that shows itself, attention as pictures of who looks
at whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..core.errors import need
from . import wire
from .axes import along_source, keyed
from .figures.charts import Chart, Folded, Heat, TableFigure
from .figures.drawing import Array
from .figures.shown import Records, Shown

ACROSS = 128  # columns of a value that is no attention; more are pooled to so many
MOST_NUMBERS = 200_000  # numbers that are still worth a row of text each


class Seen(dict[str, Tensor], Shown):
    """Values by their path, as the model made them; ``words`` are the text's tokens, ``source`` an
    encoder's.

    Pictures are of the first row of a batch.
    """

    def __init__(
        self,
        values: Mapping[str, Tensor],
        words: Sequence[str] = (),
        source: Sequence[str] | None = None,
    ) -> None:
        super().__init__(values)
        self.words = list(words)
        self.source = None if source is None else list(source)

    def __repr__(self) -> str:
        shapes = ", ".join(
            f"{path} {'x'.join(map(str, value.shape)) or 'number'}" for path, value in self.items()
        )
        return f"Seen({shapes})"

    def head(self, number: int) -> Seen:
        """Only one head of each attention, counted from 0; what is no attention is left out."""
        patterns = {path: value for path, value in self.items() if _square(path, value)}
        need(bool(patterns), 'There is no attention here; look at "*.pattern".')
        least = min(value.shape[1] for value in patterns.values())
        need(
            0 <= number < least, f"head is {number}; these attentions have heads 0 to {least - 1}."
        )
        named = {
            f"{path}[{number}]": value[:, number : number + 1] for path, value in patterns.items()
        }
        return Seen(named, self.words, self.source)

    @property
    def title(self) -> str:
        """The text that was read, and beside what."""
        beside = "" if self.source is None else f"  (source: {' '.join(self.source)})"
        return f"{' '.join(self.words)}{beside}"

    def charts(self) -> Iterator[Chart]:
        """Mean pattern of each attention's heads, and folded each head; of other values their
        numbers as colours."""
        attentions = {path for path, value in self.items() if _square(path, value)}
        for path in sorted(self, key=lambda path: path not in attentions):
            value = self[path].detach().float().cpu()
            value = value[0] if value.ndim > 1 else value
            if path in attentions:
                yield from self._heads(path, value)
            else:
                yield self._other(path, value)

    def _heads(self, path: str, patterns: Tensor) -> Iterator[Chart]:
        """The mean of the heads' ``patterns`` (H, T, S), and each of them."""
        rows, columns = self._sides(path, *patterns.shape[1:])
        span = (0.0, 1.0) if path.partition("[")[0].endswith("pattern") else None
        mean = Heat(path, patterns.mean(0).numpy(), rows, columns, span=span, signed=span is None)
        if (count := len(patterns)) == 1:
            yield mean
            return
        yield replace(mean, title=f"{path}, the mean of {count} heads")
        heads = enumerate(patterns.numpy())
        charts = [replace(mean, title=f"{path}[{number}]", values=head) for number, head in heads]
        yield Folded(f"{path}: each of {count} heads", charts)

    def _other(self, path: str, value: Tensor) -> Chart:
        if value.ndim < 2 or not value.numel():
            numbers = " ".join(f"{x:.4g}" for x in value.flatten()[:16].tolist())
            return TableFigure(path, ("value",), [(numbers,)])
        flat = value.movedim(-2, 0).flatten(1).numpy()  # a row for each token
        pooled = wire.pooled(flat, (64, ACROSS))
        shape = "x".join(map(str, flat.shape))
        of = f", of each tile of {shape} what is furthest from 0"
        title = path if pooled.shape == flat.shape else path + of
        rows, _ = self._sides(path, len(pooled), 0)
        return Heat(title, pooled, rows, [*map(str, range(pooled.shape[1]))], signed=True)

    def sides(self, path: str) -> list[list[str]]:
        """The words of the tokens and of the keys of a value."""
        sources = [self.source if along_source(path, axis) else None for axis in "TS"]
        return [words or self.words for words in sources]

    def _sides(self, path: str, queries: int, keys: int) -> tuple[list[str], list[str]]:
        """The words of both sides of a value, or numbers where they do not fit."""
        query_words, key_words = self.sides(path)
        return _fit(query_words, queries), _fit(key_words, keys)

    def records(self) -> Records:
        """A row for each number: of attentions head, query and key, of other values their index."""
        total = sum(value.numel() for value in self.values())
        need(
            total <= MOST_NUMBERS,
            f"These are {total:,} numbers, too many for .csv; save as .safetensors, or look at "
            "fewer.",
        )
        if all(_square(path, value) for path, value in self.items()):
            names = ("path", "row", "head", "query", "key", "query_token", "key_token", "value")
            return names, self._attentions()
        rows = (
            (path, ",".join(map(str, at)), value[at].item())
            for path, value in self.items()
            for at in product(*map(range, value.shape))
        )
        return ("path", "index", "value"), rows

    def _attentions(self) -> Iterator[Sequence[Any]]:
        for path, value in self.items():
            queries, keys = self._sides(path, *value.shape[2:])
            for at in product(*map(range, value.shape)):
                yield (path, *at, queries[at[2]], keys[at[3]], value[at].item())

    def tensors(self) -> dict[str, Array]:
        """The values by their paths; what numpy does not know (bf16) as fp32."""
        odd = torch.bfloat16
        return {
            path: (x.float() if x.dtype == odd else x).detach().cpu().numpy()
            for path, x in self.items()
        }

    def facts(self) -> Mapping[str, Any]:
        """The tokens that were read."""
        facts = {"tokens": self.words, "source": self.source}
        return {side: words for side, words in facts.items() if words is not None}


def _square(path: str, value: Tensor) -> bool:
    return keyed(path.partition("[")[0]) and value.ndim == 4


def _fit(words: Sequence[str], count: int) -> list[str]:
    named = [f"{at}:{word}" for at, word in enumerate(words)]
    if len(named) == count:
        return named
    return [str(at) for at in range(count)]
