"""Chunks of many texts through the model's own forward pass, as one flat row; and whole texts
through an encoder.

    PagedRunner   attention: keys and values in pages, the encoder's output in pages of its own, keyed by the source
    StateRunner   recurrent decoders: a text's state is its one page

N tokens in the row, S texts, R rows of logits that are wanted, C model dim, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from .. import config
from ..nn import Cache, EncoderDecoder, Memory, Model, Output
from ..nn.flow import Flow
from ..nn.inference import inference
from ..nn.kernels import PAGE
from ..nn.paged import PackedTape, PackedTexts, PagedCache
from ..nn.pool import Pool
from .pages import PagePool
from .request import Encode
from .scheduler import Chunk, Text
from .windows import Windows


class Runner(Protocol):
    """What reads chunks."""

    def read(self, chunks: Sequence[Chunk], wanted: Sequence[Sequence[int]]) -> Tensor:
        """fp32 logits (R, V) that follow the ``wanted`` tokens of each chunk, by their places in
        it."""

    def copy(self, source: int, target: int) -> None:
        """What one page holds to another."""

    def released(self, text: Text) -> None:
        """A text is not read any more, or not for now."""

    def restart(self) -> None:
        """No text is read any more, or not for now; nothing is kept."""


class Sources:
    """The pages of what encoders read, by the ids: texts of one source share them, and they are
    kept while there is room."""

    def __init__(self, pages: int) -> None:
        self.pool = PagePool(pages, self._forget)
        self._pages: dict[tuple[int, ...], list[int]] = {}
        self._of_page: dict[int, tuple[int, ...]] = {}
        self.open: dict[Text, list[int]] = {}

    def find(self, text: Text) -> bool:
        """Open a text's source; whether its pages have to be filled first."""
        assert text.source is not None
        pages = self._pages.get(text.source)
        self.open[text] = own = []
        for place in range(-(-len(text.source) // PAGE)):
            if pages is not None:
                self.pool.share(pages[place])
            own.append(self.pool.take() if pages is None else pages[place])
        return pages is None

    def keep(self, text: Text) -> None:
        """A text's pages are filled: others of the same source find them."""
        assert text.source is not None
        for page in self.open[text]:
            self._of_page[page] = text.source
            self.pool.know(page)
        self._pages[text.source] = self.open[text]

    def close(self, text: Text) -> None:
        """A text does without; harmless where it has none."""
        self.pool.give(self.open.pop(text, ()))

    def clear(self) -> None:
        """No text has any pages."""
        self.pool.clear()
        for table in (self._pages, self._of_page, self.open):
            table.clear()

    def _forget(self, page: int) -> None:
        self._pages.pop(self._of_page.pop(page), None)


class PagedRunner:
    """One pass of the model over the tokens of all chunks, side by side."""

    def __init__(
        self, model: Model, cache: PagedCache, sources: Sources, windows: Windows | None = None
    ) -> None:
        self.model, self.cache, self.sources, self.windows = model, cache, sources, windows
        self.device = next(model.parameters()).device
        self.lag = model.config.embed.previous_token_embeddings

    def read(self, chunks: Sequence[Chunk], wanted: Sequence[Sequence[int]]) -> Tensor:
        for chunk in chunks:
            if chunk.text.source is not None and chunk.text not in self.sources.open:
                self._open(chunk.text)
        self.cache.texts = self._packed(chunks)
        tokens = self._row([token for chunk in chunks for token in chunk.tokens])[None]
        starts = [first for first, _ in self.cache.texts.spans]
        columns = [
            start + place for start, places in zip(starts, wanted, strict=True) for place in places
        ]
        told = (
            {"memory": Memory(tokens[:, :0], tokens[:, :0])}
            if self.cache.texts.sources is not None
            else {}
        )
        tape = self._tape(chunks, wanted)
        with inference(self.model):
            out: Output = self.model(
                tokens,
                pos=self.cache.texts.pos,
                cache=self.cache,
                tape=tape,
                logits=self._row(columns),
                **told,
            )
        for text, chunk in enumerate(chunks):
            if chunk.text.look is not None and tape is not None:
                chunk.text.look.error = tape.errors.get(text)
                chunk.text.look.keep(chunk.start, len(chunk.tokens))
        return out.logits[0].float()

    def copy(self, source: int, target: int) -> None:
        """The keys and values of one page to another."""
        for own, _ in self.cache.pages:
            apart = own.lookback is not None and self.windows is not None
            pair = [self._parts([page])[0] if apart else page for page in (source, target)]
            own.pages.copy(*(self._row([page]) for page in pair))

    def _tape(self, chunks: Sequence[Chunk], wanted: Sequence[Sequence[int]]) -> PackedTape | None:
        """The tapes of the texts that are looked into."""
        if all(chunk.text.look is None for chunk in chunks):
            return None
        ends = [0, *itertools.accumulate(map(len, wanted))]
        watched = [text for text, chunk in enumerate(chunks) if chunk.text.look is not None]
        parts = {
            text: (self.cache.texts.spans[text], chunks[text].text.look.tape) for text in watched
        }
        return PackedTape(parts, {text: (ends[text], ends[text + 1]) for text in watched})

    def released(self, text: Text) -> None:
        self.sources.close(text)

    def restart(self) -> None:
        self.sources.clear()

    def _open(self, text: Text) -> None:
        """The pages of a text's source, filled; where that fails it has none, and nobody finds
        them."""
        try:
            if self.sources.find(text):
                self._encode(text)
                self.sources.keep(text)
        except BaseException:
            self.sources.close(text)
            raise

    def _row(self, numbers: Sequence[int], dtype: torch.dtype = torch.long) -> Tensor:
        return torch.tensor(numbers, dtype=dtype).to(self.device, non_blocking=True)

    def _packed(self, chunks: Sequence[Chunk]) -> PackedTexts:
        """Where the tokens of the chunks stand."""
        pos, rows, spans = list[int](), list[int](), list[tuple[int, int]]()
        for text, chunk in enumerate(chunks):
            spans.append((len(pos), len(pos) + len(chunk.tokens)))
            pos += range(chunk.start, chunk.start + len(chunk.tokens))
            rows += [text] * len(chunk.tokens)
        pages, sources = [chunk.text.pages for chunk in chunks], None
        tables = self._tables(pages)
        windows = None if self.windows is None else self._tables([*map(self._parts, pages)])
        lengths = [len(chunk.text.source or ()) for chunk in chunks]
        if chunks[0].text.source is not None:
            open_pages = [self.sources.open[chunk.text] for chunk in chunks]
            sources = self._tables(open_pages), self._row(lengths, torch.int32)
        previous = self._previous(chunks) if self.lag else None
        where = self._row(pos)[None], self._row(rows, torch.int32), tables, spans
        starts = [chunk.start for chunk in chunks]
        told = {"window_tables": windows, "starts": starts, "source_lengths": lengths}
        return PackedTexts(*where, sources, previous, **told)  # type: ignore[arg-type]

    def _parts(self, pages: Sequence[int]) -> list[int]:
        """What layers with windows have of these pages, any where nothing is there."""
        assert self.windows is not None
        return [self.windows.parts.get(page, 0) for page in pages]

    def _tables(self, pages: Sequence[Sequence[int]]) -> Tensor:
        longest = max(map(len, pages))
        return self._row([[*some, *[0] * (longest - len(some))] for some in pages], torch.int32)  # type: ignore[misc]

    def _previous(self, chunks: Sequence[Chunk]) -> Tensor:
        """The tokens before each one (1, N, lag), the nearest first; -1 before the beginning."""
        found = []
        for chunk in chunks:
            # a draft model goes on from its guesses
            before = (chunk.text.tokens + chunk.text.draft)[: chunk.start]
            read = [-1] * self.lag + before + chunk.tokens
            for place in range(chunk.start + self.lag, len(read)):
                found.append(read[place - self.lag : place][::-1])
        return self._row(found)[None]  # type: ignore[arg-type]

    def _encode(self, text: Text) -> None:
        """Fill the pages of a text's source."""
        assert text.source is not None and isinstance(self.model, EncoderDecoder)
        places, pages = (
            torch.arange(len(text.source), device=self.device),
            self._row(self.sources.open[text]),
        )
        slots = pages[places // PAGE] * PAGE + places % PAGE
        with inference(self.model):
            hidden = self.model.encode(self._row(text.source)[None]).hidden
            for block, (_, across) in zip(self.model.decoder.blocks, self.cache.pages, strict=True):
                k, v = block.cross.memory_keys(hidden)
                across.pages.write(k[0].transpose(0, 1), v[0].transpose(0, 1), slots)  # type: ignore[union-attr]


class StateRunner:
    """A recurrent decoder: a row a text, its state taken from its page and put back."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        self.states: dict[int, dict[int, tuple[Tensor, ...]]] = {}  # page -> layer -> parts (1, C)
        self.memories: dict[Text, Memory] = {}

    def read(self, chunks: Sequence[Chunk], wanted: Sequence[Sequence[int]]) -> Tensor:
        longest = max(len(chunk.tokens) for chunk in chunks)
        tokens = torch.tensor(
            [chunk.tokens + [0] * (longest - len(chunk.tokens)) for chunk in chunks]
        )
        offsets, lengths = (
            torch.arange(longest),
            torch.tensor([[len(chunk.tokens)] for chunk in chunks]),
        )
        starts = torch.tensor([[chunk.start] for chunk in chunks])
        pos = torch.where(offsets < lengths, starts + offsets, -1).to(self.device)
        rows = [row for row, places in enumerate(wanted) for _ in places]
        columns = [place for places in wanted for place in places]
        cache = self._cache(chunks)
        with inference(self.model):
            told = {"memory": self._memory(chunks)} if chunks[0].text.source is not None else {}
            out: Output = self.model(
                tokens.to(self.device), pos=pos, cache=cache, logits="none", **told
            )
            logits: Tensor = self.model.head(out.hidden[rows, columns], self.model.embed).float()  # type: ignore[misc]
        assert cache.carried is not None
        states = cache.carried.states.items()
        parts = [
            {layer: tuple(part[row : row + 1] for part in state) for layer, state in states}
            for row in range(len(chunks))
        ]
        # last, or not at all
        self.states.update(zip((chunk.text.pages[0] for chunk in chunks), parts, strict=True))
        return logits

    def copy(self, source: int, target: int) -> None:
        self.states[target] = self.states[source]  # nothing is written into them

    def released(self, text: Text) -> None:
        self.memories.pop(text, None)

    def restart(self) -> None:
        self.memories.clear()
        self.states.clear()

    def _cache(self, chunks: Sequence[Chunk]) -> Cache:
        """A cache of the chunks' states; those that begin now have none."""
        cache = Cache(self.model.config)
        assert cache.carried is not None
        held = [self.states.get(chunk.text.pages[0], {}) if chunk.start else {} for chunk in chunks]
        like = next((states for states in held if states), {})
        for layer, parts in like.items():
            empty = tuple(torch.zeros_like(part) for part in parts)
            rows = [states.get(layer, empty) for states in held]
            cache.carried.states[layer] = tuple(
                torch.cat(parts) for parts in zip(*rows, strict=True)
            )
        lag = self.model.config.embed.previous_token_embeddings
        if lag:
            before = [[-1] * lag + chunk.text.tokens[: chunk.start] for chunk in chunks]
            places = [[chunk.start - back for back in range(lag, 0, -1)] for chunk in chunks]
            tokens = torch.tensor([read[-lag:] for read in before], device=self.device)
            cache.history = (
                tokens.clamp(min=0),
                torch.tensor(places, device=self.device).clamp(min=-1),
            )
        return cache

    def _memory(self, chunks: Sequence[Chunk]) -> Memory:
        """What the encoder says of each text's source, padded on the right (B, S, C)."""
        assert isinstance(self.model, EncoderDecoder)
        for chunk in chunks:
            if chunk.text not in self.memories:
                read = chunk.text.source
                held = next(
                    (own for text, own in self.memories.items() if text.source == read), None
                )
                self.memories[chunk.text] = held or self.model.encode(
                    torch.tensor([read], device=self.device)
                )
        own = [self.memories[chunk.text].hidden[0] for chunk in chunks]
        hidden = torch.nn.utils.rnn.pad_sequence(own, batch_first=True)
        offsets = torch.arange(hidden.shape[1], device=self.device)
        lengths = torch.tensor([[len(one)] for one in own], device=self.device)
        return Memory(hidden, torch.where(offsets < lengths, offsets, -1))


def encode(model: Model, requests: Sequence[Encode]) -> list[Tensor]:
    """What each request asks of its text, all texts side by side in one row, attended to one by
    one."""
    device, spans = next(model.parameters()).device, list[tuple[int, int]]()
    tokens, places, documents, segments = (list[int]() for _ in range(4))
    for number, request in enumerate(requests):
        spans.append((len(tokens), len(tokens) + len(request.tokens)))
        tokens += request.tokens
        places += range(len(request.tokens))
        documents += [number] * len(request.tokens)
        segments += request.segments or [0] * len(request.tokens)
    row, pos, ids, own = (
        torch.tensor([one], device=device) for one in (tokens, places, documents, segments)
    )
    body: Any = model.encoder if isinstance(model.config, config.Encoder) else model.decoder
    with inference(model):
        flow = model.flow(row, pos, ids)
        flow.spans = spans
        hidden: Tensor = body(
            model.embed(row, flow, own if model.config.embed.segments else None), flow
        )
        return [
            _answer(model, one, hidden[:, a:b], pos[:, a:b])
            for one, (a, b) in zip(requests, spans, strict=True)
        ]


def _answer(model: Model, request: Encode, hidden: Tensor, pos: Tensor) -> Tensor:
    """What one request asks of the hidden states (1, T, C) of its text."""
    flow, own = Flow(pos), model.config.pool
    if request.output == "vector":
        pool = (
            model.pool
            if own is not None and not own.labels
            else Pool(config.Pool("mean"), model.config.dim)
        )
        vector: Tensor = pool(hidden, flow)[0]
        return vector
    if request.output == "labels":
        labels: Tensor = model.pool(hidden, flow)[0]
        return labels
    if request.output == "tags":
        tags: Tensor = model.token_head(hidden, flow)[0]  # type: ignore[misc]
        return tags
    hidden = hidden[0] if request.positions is None else hidden[0, list(request.positions)]
    return hidden if request.output == "hidden" else model.head(hidden, model.embed)  # type: ignore[misc]
