"""The same documents read alone, in chunks, in a batch, padded or packed, and answered document by
document.

However they were read, a document's values come back as if it had been read alone: without the
batch row, and without what is not its own, so that an index into them is an address. B batch, T
tokens, S source tokens, H heads, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core import config
from ..core.nn import Cache, EncoderDecoder, Model, Tape
from ..core.nn.model import inference

Values: TypeAlias = dict[str, Tensor]
"""One document's values by their path on a tape, in the order in which they are made: logits (T,
V), .."""

SPARE = 3  # columns of padding even beside the longest row
BY_HEAD = ("q", "k", "v", "z", "scores", "pattern")  # (B, H, T, ..)


@dataclass(frozen=True)
class Documents:
    """Inputs: a row of ids (T,) for each document, and for an encoder-decoder its source
    (S,).

    ``numbers`` are theirs among all, where these are some of them (empty: all, in order).
    """

    tokens: list[Tensor]
    sources: list[Tensor] | None = None
    numbers: tuple[int, ...] = ()

    def only(self, *numbers: int) -> Documents:
        """Some of them."""
        sources = None if self.sources is None else [self.sources[number] for number in numbers]
        return Documents([self.tokens[number] for number in numbers], sources, numbers)

    def number(self, row: int) -> int:
        """The number of the one in this row."""
        return self.numbers[row] if self.numbers else row


@dataclass(frozen=True)
class DocumentPlace:
    """Position of a document, or of its tokens from ``start`` on, in a batch: its ``row`` and its
    ``columns`` there.

    ``source`` are the columns of its source; ``keys`` those of its keys, where a cache holds more
    than this pass reads.
    """

    document: int
    row: int
    columns: Tensor
    source: Tensor | None = None
    keys: Tensor | None = None
    start: int = 0


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
        self, model: Model, tape: bool = False, pinned: PinnedRouting | None = None
    ) -> None:
        self.model = model
        self.tape = tape
        self.held = pinned
        self.device = next(model.parameters()).device
        self.body = "encoder" if isinstance(model.config, config.Encoder) else "decoder"

    # ------------------------------------------------------------------------------------- ways to
    # read

    def alone(self, documents: Documents) -> list[Values]:
        """Each by itself: what every other way is held to."""
        values = []
        for number, tokens in enumerate(documents.tokens):
            source, columns = self._source(documents, number)
            place = DocumentPlace(documents.number(number), 0, self._range(len(tokens)), columns)
            values += self._read(tokens[None], [place], **source)
        return values

    def batched(self, documents: Documents) -> list[Values]:
        """Reads documents of one length in one batch."""
        tokens = torch.stack(documents.tokens)
        sources = {} if documents.sources is None else {"source": torch.stack(documents.sources)}
        width = 0 if documents.sources is None else len(documents.sources[0])
        target_range = self._range(tokens.shape[1])
        across = self._range(width)
        places = [
            DocumentPlace(documents.number(row), row, target_range, across)
            for row in range(len(tokens))
        ]
        return self._read(tokens, places, **sources)

    def padded(self, documents: Documents, side: str) -> list[Values]:
        """All in one batch, filled up on the left or on the right; the sources on the other
        side."""
        tokens, pos, columns = self._pad(documents.tokens, side)
        kwargs, across = self._padded_sources(documents, "right" if side == "left" else "left")
        places = [
            DocumentPlace(row, row, columns_of_row, across[row])
            for row, columns_of_row in enumerate(columns)
        ]
        return self._read(tokens, places, pos=pos, **kwargs)

    def packed(self, documents: Documents) -> list[Values]:
        """All in one row, told apart by their ids; their sources the same."""
        tokens, pos, ids, columns = self._pack(documents.tokens)
        kwargs: dict[str, Any] = {"document_ids": ids}
        across: Sequence[Tensor | None] = [None] * len(columns)
        if documents.sources is not None:
            source, source_pos, source_ids, across = self._pack(documents.sources)
            kwargs |= {
                "source": source,
                "source_pos": source_pos,
                "source_document_ids": source_ids,
            }
        places = [
            DocumentPlace(number, 0, columns_of_row, across[number])
            for number, columns_of_row in enumerate(columns)
        ]
        return self._read(tokens, places, pos=pos, **kwargs)

    def chunked(self, documents: Documents, chunks: Callable[[int], list[int]]) -> list[Values]:
        """Each by itself through a cache, in parts as long as ``chunks`` says for a length."""
        values = []
        for number, tokens in enumerate(documents.tokens):
            source, columns = self._source(documents, number)
            cache = Cache(self.model.config)
            chunk_values = []
            start = 0
            encoded = self._memory(
                source, [DocumentPlace(documents.number(number), 0, self._range(0), columns)]
            )
            for chunk in torch.split(tokens, chunks(len(tokens))):
                end = start + len(chunk)
                place = DocumentPlace(
                    documents.number(number),
                    0,
                    self._range(len(chunk)),
                    columns,
                    self._range(end),
                    start,
                )
                chunk_values.append(self._read(chunk[None], [place], cache=cache, **encoded))
                start = end
            values += _joined(chunk_values, cache)
        return values

    def generated(self, documents: Documents, side: str, steps: int) -> list[Values]:
        """Reads as generation does: all but the last ``steps`` of each in one padded batch, then a
        token of each at once."""
        tokens, pos, columns = self._pad([ids[:-steps] for ids in documents.tokens], side)
        kwargs, across = self._padded_sources(documents, side)
        rows = range(len(tokens))
        encoded = self._memory(
            kwargs, [DocumentPlace(row, row, self._range(0), across[row]) for row in rows]
        )
        cache = Cache(self.model.config)
        width = tokens.shape[1]
        places = [DocumentPlace(row, row, columns[row], across[row], columns[row]) for row in rows]
        passes = [self._read(tokens, places, pos=pos, cache=cache, **encoded)]
        for step in range(steps):
            column = torch.stack([ids[len(ids) - steps + step] for ids in documents.tokens])
            later = self._range(step + 1) + width
            places = [
                DocumentPlace(
                    row,
                    row,
                    self._range(1),
                    across[row],
                    torch.cat((columns[row], later)),
                    len(columns[row]) + step,
                )
                for row in rows
            ]
            passes.append(self._read(column[:, None], places, cache=cache, **encoded))
        return _joined(passes, cache)

    # ------------------------------------------------------------------------------------- one pass

    def _read(self, tokens: Tensor, places: Sequence[DocumentPlace], **kwargs: Any) -> list[Values]:
        tape = self._tape(places)
        with inference(self.model):
            output = self.model(tokens, tape=tape, **kwargs)
        if self.tape and tape is not None:
            values = dict(tape.records)
        else:
            values = {} if output.logits.numel() == 0 else {"logits": output.logits}
            values |= {} if output.tagged is None else {"token_head.write": output.tagged}
            values |= {} if output.pooled is None else {"pool.write": output.pooled}
            values = values or {f"{self.body}.out": output.hidden}
        return [
            {path: self._own(path, value, place, number) for path, value in values.items()}
            for number, place in enumerate(places)
        ]

    def _memory(self, source: dict[str, Any], places: Sequence[DocumentPlace]) -> dict[str, Any]:
        """Encoded sources, for passes through a cache."""
        if not isinstance(self.model, EncoderDecoder):
            return {}
        with inference(self.model):
            tape = None if self.held is None else self._tape(places)
            return {
                "memory": self.model.encode(
                    source["source"], pos=source.get("source_pos"), tape=tape
                )
            }

    def _tape(self, places: Sequence[DocumentPlace]) -> Tape | None:
        pinned = self.held
        if pinned is None:
            return Tape("*") if self.tape else None

        def hold(path: str, x: Tensor) -> Tensor:
            logits = path.endswith(".router")
            x = x.clone()
            for place in places:
                columns = self._columns(path, place)
                start = 0 if columns is place.source else place.start
                document_value = pinned.values[place.document][path].to(x.device)
                replacement = document_value[start : start + len(columns)]
                if logits:
                    moved = (
                        x[place.row, columns] - replacement
                    ).abs().max() / document_value.abs().max().clamp(min=1e-30)
                    pinned.moved = max(pinned.moved, float(moved))
                else:
                    x[place.row, columns] = replacement.to(x.dtype)
            return x

        return Tape(
            *["*"] * self.tape,
            edits={f"*.ffn.{name}": hold for name in ("router", "weight", "chosen")},
        )

    def _columns(self, path: str, place: DocumentPlace) -> Tensor:
        """Columns of a document's tokens in a value: its source's in what the encoder makes."""
        of_source = isinstance(self.model, EncoderDecoder) and path.startswith(
            ("encoder.", "source_embed.")
        )
        columns = (
            place.source if of_source or path.endswith((".cross.k", ".cross.v")) else place.columns
        )
        assert columns is not None
        return columns

    def _own(self, path: str, value: Tensor, place: DocumentPlace, number: int) -> Tensor:
        """Cells of one document in a batch's value; it is the ``number``-th of the batch."""
        if path.startswith("pool."):
            return value[number]
        columns = self._columns(path, place)
        leaf = path.rpartition(".")[2]
        cells = value[min(place.row, len(value) - 1)].index_select(
            int(_by_head(leaf, value.ndim)), columns
        )
        if leaf in ("scores", "pattern"):
            keys = (
                place.source if ".cross." in path else columns if place.keys is None else place.keys
            )
            assert keys is not None
            cells = (
                cells.index_select(-1, keys) if int(keys.max()) < cells.shape[-1] else cells
            )  # else a ring: see _joined
        return cells

    # ------------------------------------------------------------------------------------- batches

    def _range(self, length: int) -> Tensor:
        return torch.arange(length, device=self.device)

    def _source(self, documents: Documents, number: int) -> tuple[dict[str, Any], Tensor | None]:
        if documents.sources is None:
            return {}, None
        return {"source": documents.sources[number][None]}, self._range(
            len(documents.sources[number])
        )

    def _padded_sources(
        self, documents: Documents, side: str
    ) -> tuple[dict[str, Any], Sequence[Tensor | None]]:
        if documents.sources is None:
            return {}, [None] * len(documents.tokens)
        source, source_pos, columns = self._pad(documents.sources, side)
        return {"source": source, "source_pos": source_pos}, columns

    def _pad(self, rows: Sequence[Tensor], side: str) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Tokens and positions (B, T), -1 where nothing is, and the columns of each row."""
        width = max(map(len, rows)) + SPARE
        tokens = torch.zeros(len(rows), width, dtype=torch.long, device=self.device)
        pos = torch.full_like(tokens, -1)
        columns = []
        for row, ids in enumerate(rows):
            columns.append(self._range(len(ids)) + (width - len(ids) if side == "left" else 0))
            tokens[row, columns[-1]], pos[row, columns[-1]] = ids, self._range(len(ids))
        return tokens, pos, columns

    def _pack(self, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Tokens, positions and numbers of documents (1, T), and the columns of each."""
        columns = list(torch.split(self._range(sum(map(len, rows))), [len(ids) for ids in rows]))
        pos = torch.cat([self._range(len(ids)) for ids in rows])
        numbers = torch.cat([torch.full_like(ids, number) for number, ids in enumerate(rows)])
        return torch.cat(list(rows))[None], pos[None], numbers[None], columns


def _by_head(leaf: str, dimensions: int) -> bool:
    """True if the token axis of a batch's value follows its head axis."""
    return leaf in BY_HEAD and dimensions == 4


def _joined(chunk_values: Sequence[list[Values]], cache: Cache) -> list[Values]:
    """Documents read in parts, put together; scores of a part are filled up with what was not read
    yet.

    A ring keeps its keys in an order of its own, so that scores over it are left out.
    """
    joined = []
    for document in zip(*chunk_values, strict=True):
        values: Values = {}
        for path in document[0]:
            pieces = [chunk[path] for chunk in document]
            leaf = path.rpartition(".")[2]
            if leaf in ("scores", "pattern") and ".cross." not in path:
                if cache.evicts:
                    continue
                fill = float("-inf") if leaf == "scores" else 0.0
                longest = pieces[-1].shape[-1]
                pieces = [
                    F.pad(piece, (0, longest - piece.shape[-1]), value=fill) for piece in pieces
                ]
            across = path.endswith((".cross.k", ".cross.v"))
            axis = int(_by_head(leaf, pieces[0].ndim + 1))
            values[path] = pieces[0] if across else torch.cat(pieces, axis)
        joined.append(values)
    return joined
