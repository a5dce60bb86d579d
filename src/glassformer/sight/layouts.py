"""The same documents read alone, in chunks, in a batch, padded or packed, and answered document by
document.

However they were read, a document's values come back as if it had been read alone: without the
batch row, and without what is not its own, so that an index into them is an address. B batch, T
tokens, S source tokens, H heads, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..core.nn import Cache, Model, Tape
from ..core.nn.model import inference
from .axes import across, headed, joined, keyed, of_source

Values: TypeAlias = dict[str, Tensor]
"""One document's values by their path on a tape, in the order in which they are made: logits (T,
V), .."""

SPARE = 3  # columns of padding even beside the longest row


class DocumentSpan(NamedTuple):
    """Tokens ``start`` to ``end`` of a document, which stand from ``column`` of ``row`` on."""

    document: int
    row: int
    column: int
    start: int
    end: int

    def columns(self, device: torch.device) -> Tensor:
        return torch.arange(self.column, self.column + self.end - self.start, device=device)


class TokenTable(NamedTuple):
    """Rows of tokens: how many columns they have, and what stands in them; the rest is padding."""

    width: int
    spans: list[DocumentSpan]


@dataclass(frozen=True)
class DocumentBatch:
    """Documents that are read at once; ``passes`` of a ``cached`` one share a cache.

    The documents of a ``packed`` one share a row.
    """

    passes: list[TokenTable]
    source: TokenTable | None
    cached: bool = False
    packed: bool = False


Layout: TypeAlias = list[DocumentBatch]
Arrange: TypeAlias = Callable[[Mapping[int, int]], TokenTable]  # of documents of these lengths


@dataclass(frozen=True)
class Documents:
    """Inputs: a row of ids (T,) for each document, and for an encoder-decoder its source (S,).

    The methods say where documents, by their numbers, stand when they are read in some way.
    """

    tokens: list[Tensor]
    sources: list[Tensor] | None = None

    def batched(self, *numbers: int) -> Layout:
        """Some of one length in one batch."""
        return [self._batch(numbers, rows, rows)]

    def alone(self, *numbers: int) -> Layout:
        """Some, each by itself: what every other way is held to."""
        return [batch for number in numbers for batch in self.batched(number)]

    def padded(self, side: str) -> Layout:
        """All in one batch, filled up on the left or on the right; the sources on the other
        side."""
        opposite = "right" if side == "left" else "left"
        text_rows, source_rows = (partial(rows, side=s, spare=SPARE) for s in (side, opposite))
        return [self._batch(range(len(self.tokens)), text_rows, source_rows)]

    def packed(self) -> Layout:
        """All in one row, told apart by their ids; their sources the same."""
        return [self._batch(range(len(self.tokens)), one_row, one_row, packed=True)]

    def chunked(self, chunks: Callable[[int], list[int]], *numbers: int) -> Layout:
        """Some, each by itself through a cache, in parts as long as ``chunks`` says for a
        length."""
        layout = []
        for number in numbers:
            borders = accumulate(chunks(len(self.tokens[number])), initial=0)
            passes = [
                TokenTable(end - start, [DocumentSpan(number, 0, 0, start, end)])
                for start, end in pairwise(borders)
            ]
            layout.append(DocumentBatch(passes, self._source((number,), rows), cached=True))
        return layout

    def generated(self, side: str, steps: int) -> Layout:
        """All but the last ``steps`` of each in one padded batch, then a
        token of each at once."""
        lengths = {number: len(ids) - steps for number, ids in enumerate(self.tokens)}
        arrange = partial(rows, side=side, spare=SPARE)
        passes = [arrange(lengths)]
        for step in range(steps):
            places = {number: length + step for number, length in lengths.items()}
            spans = [
                DocumentSpan(number, number, 0, end, end + 1) for number, end in places.items()
            ]
            passes.append(TokenTable(1, spans))
        return [DocumentBatch(passes, self._source(tuple(lengths), arrange), cached=True)]

    def _batch(
        self, numbers: Sequence[int], arrange: Arrange, across: Arrange, packed: bool = False
    ) -> DocumentBatch:
        lengths = {number: len(self.tokens[number]) for number in numbers}
        return DocumentBatch([arrange(lengths)], self._source(numbers, across), packed=packed)

    def _source(self, numbers: Sequence[int], arrange: Arrange) -> TokenTable | None:
        if self.sources is None:
            return None
        return arrange({number: len(self.sources[number]) for number in numbers})


def rows(lengths: Mapping[int, int], side: str = "right", spare: int = 0) -> TokenTable:
    """Documents one below the other, with padding on one side."""
    width = max(lengths.values()) + spare
    return TokenTable(
        width,
        [
            DocumentSpan(number, row, width - length if side == "left" else 0, 0, length)
            for row, (number, length) in enumerate(lengths.items())
        ],
    )


def one_row(lengths: Mapping[int, int]) -> TokenTable:
    """Documents one behind the other."""
    spans: list[DocumentSpan] = []
    column = 0
    for number, length in lengths.items():
        spans.append(DocumentSpan(number, 0, column, 0, length))
        column += length
    return TokenTable(column, spans)


class PinnedRouting:
    """Pins the experts that tokens choose, and their weights, to those of another pass: its
    ``values``.

    ``moved`` is how far the routers' own logits (T, E) were from the other pass's, beside the
    largest of these.
    """

    def __init__(self, values: Mapping[int, Values]) -> None:
        self.values = values
        self.moved = 0.0


class DocumentReader:
    """A model that reads documents; with a ``tape`` every value comes back, without only its
    answers.

    Answers are logits, what a Pool and a TokenHead say, and of a model without any the last hidden
    states.
    """

    def __init__(
        self,
        model: Model,
        documents: Documents,
        tape: bool = False,
        pinned: PinnedRouting | None = None,
    ) -> None:
        self.model = model
        self.documents = documents
        self.tape = tape
        self.pinned = pinned
        self.device = next(model.parameters()).device

    def read(self, layout: Layout) -> list[Values]:
        """The values of each document, in the order of the layout."""
        return [values for batch in layout for values in self._batch(batch)]

    def _batch(self, batch: DocumentBatch) -> list[Values]:
        cache = Cache(self.model.config) if batch.cached else None
        across = batch.source.spans if batch.source else [None] * len(batch.passes[0].spans)
        beside: dict[str, Any] = {}
        if batch.source is not None and self.documents.sources is not None:
            beside = self._inputs(self.documents.sources, batch.source, batch.packed, "source")
        if cache is not None and beside:
            pos = beside.get("source_pos")
            tape = None if self.pinned is None else self._tape([], batch.source)
            with inference(self.model):
                encode: Any = self.model.encode
                beside = {"memory": encode(beside["source"], pos=pos, tape=tape)}
        keys = [torch.empty(0, dtype=torch.long, device=self.device) for _ in across]
        passes: list[list[Values]] = []
        offset = 0
        for table in batch.passes:
            inputs = self._inputs(self.documents.tokens, table, batch.packed)
            cached = {} if cache is None else {"cache": cache}
            values = self._pass(
                inputs.pop("tokens"),
                self._tape(table.spans, batch.source),
                **inputs,
                **beside,
                **cached,
            )
            documents = []
            for number, (span, source) in enumerate(zip(table.spans, across, strict=True)):
                keys[number] = torch.cat((keys[number], offset + span.columns(self.device)))
                documents.append(
                    {
                        path: self._cut(path, value, number, span, source, keys[number])
                        for path, value in values.items()
                    }
                )
            passes.append(documents)
            offset += table.width
        return passes[0] if cache is None else _joined(passes, cache)

    def _inputs(
        self, ids: Sequence[Tensor], table: TokenTable, packed: bool, name: str = ""
    ) -> dict[str, Tensor]:
        """Tokens (B, T), their positions where not every row is full, numbers of documents that
        share a row."""
        tokens = torch.zeros(
            table.spans[-1].row + 1, table.width, dtype=torch.long, device=self.device
        )
        pos = torch.full_like(tokens, -1)
        numbers = torch.zeros_like(tokens)
        for span in table.spans:
            place = span.row, span.columns(self.device)
            tokens[place] = ids[span.document][span.start : span.end]
            pos[place] = torch.arange(span.start, span.end, device=self.device)
            numbers[place] = span.document
        prefix = f"{name}_" if name else ""
        inputs = {name or "tokens": tokens}
        if packed or bool((pos < 0).any()):
            inputs[f"{prefix}pos"] = pos
        if packed:
            inputs[f"{prefix}document_ids"] = numbers
        return inputs

    def _pass(self, tokens: Tensor, tape: Tape | None, **kwargs: Any) -> Values:
        with inference(self.model):
            output = self.model(tokens, tape=tape, **kwargs)
        if self.tape and tape is not None:
            return dict(tape.records)
        named = {"token_head.write": output.tagged, "pool.write": output.pooled}
        values = {"logits": output.logits} if output.logits.numel() else {}
        values |= {path: value for path, value in named.items() if value is not None}
        return values or {f"{self.model.config.main_body}.out": output.hidden}

    def _tape(self, spans: Sequence[DocumentSpan], sources: TokenTable | None) -> Tape | None:
        pinned = self.pinned
        if pinned is None:
            return Tape("*") if self.tape else None

        def hold(path: str, x: Tensor) -> Tensor:
            x = x.clone()
            for span in sources.spans if sources and of_source(self.model, path) else spans:
                place = span.row, span.columns(x.device)
                expected = pinned.values[span.document][path].to(x.device)
                replacement = expected[span.start : span.end]
                if path.endswith(".router"):
                    moved = (x[place] - replacement).abs().max()
                    share = moved / expected.abs().max().clamp(min=1e-30)
                    pinned.moved = max(pinned.moved, float(share))
                else:
                    x[place] = replacement.to(x.dtype)
            return x

        edits = {f"*.ffn.{name}": hold for name in ("router", "weight", "chosen")}
        return Tape(*["*"] * self.tape, edits=edits)

    def _cut(
        self,
        path: str,
        value: Tensor,
        number: int,
        span: DocumentSpan,
        source: DocumentSpan | None,
        keys: Tensor,
    ) -> Tensor:
        """Cells of one document in a batch's value; it is the ``number``-th of the batch."""
        if path.startswith("pool."):
            return value[number]
        tokens = source if source is not None and of_source(self.model, path) else span
        axis = int(headed(path, value.ndim))
        columns = tokens.columns(self.device)
        cells = value[min(span.row, len(value) - 1)].index_select(axis, columns)
        if keyed(path):
            if tokens is source:
                keys = columns
            elif source is not None and ".cross." in path:
                keys = source.columns(self.device)
            if int(keys.max()) < cells.shape[-1]:  # else a ring: see _joined
                cells = cells.index_select(-1, keys)
        return cells


def _joined(passes: Sequence[list[Values]], cache: Cache) -> list[Values]:
    """Documents read in parts, put together; scores of a part are filled up with what was not read
    yet.

    A ring keeps its keys in an order of its own, so that scores over it are left out.
    """
    documents = []
    for document in zip(*passes, strict=True):
        values: Values = {}
        for path in document[0]:
            if keyed(path) and ".cross." not in path and cache.evicts:
                continue
            pieces = [chunk[path] for chunk in document]
            axis = int(headed(path, pieces[0].ndim + 1))
            values[path] = pieces[0] if across(path) else joined(path, pieces, axis)
        documents.append(values)
    return documents
