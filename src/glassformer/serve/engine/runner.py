"""Chunks of many sequences through the model's own forward pass, as one flat row.

    PagedRunner   attention: keys and values in pages, the encoder's output in pages of its own
    StateRunner   recurrent cells, mixers of a user's own, or elsewhere than on a CPU: a cache a
                  sequence, its one page

N tokens in the row, S sequences, R rows of logits, C model dim, V vocabulary.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence as Seq
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ...core.generation.sample import likeliest, log_probability
from ...core.nn import Cache, Memory, Model, Output
from ...core.nn.model import inference
from ...fast.kernels import PAGE
from ...fast.packed_tape import PackedTape
from ...fast.paged import PackedTexts, PagedCache
from .results import TokenLogprob
from .scheduler import Windows
from .sequence import Sequence, SequenceChunk

S = TypeVar("S")  # what is kept of a source


class Runner(Generic[S]):
    """Forward passes over chunks: ``forward`` gives fp32 logits (R, V) that follow the tokens in the
    ``places`` of each, ``copy`` copies one page to another.

    What is kept of an encoder's source is shared by the sequences of equal source, as long as one
    of them reads it.
    """

    def __init__(self, model: Model) -> None:
        self.model: Any = model
        self.device = next(model.parameters()).device
        self.sources: dict[tuple[int, ...], S] = {}
        self.readers: set[Sequence] = set()

    def read(self, source: tuple[int, ...]) -> S:
        """Reads a source and returns what is kept of it."""
        raise NotImplementedError

    def source_of(self, sequence: Sequence) -> S | None:
        """A sequence's source as it is kept, read the first time; None where it has none. A pass that
        fails keeps nothing."""
        if sequence.source is None:
            return None
        if sequence.source not in self.sources:
            self.sources[sequence.source] = self.read(sequence.source)
        self.readers.add(sequence)
        return self.sources[sequence.source]

    def released(self, sequence: Sequence) -> None:
        """Drops what is kept for a sequence."""
        self.readers.discard(sequence)
        if not any(reader.source == sequence.source for reader in self.readers):
            self.sources.pop(sequence.source or (), None)

    def restart(self) -> None:
        """Drops what is kept for all sequences."""
        self.readers.clear()
        self.sources.clear()

    def row(self, numbers: Seq[Any], dtype: torch.dtype = torch.long) -> Tensor:
        return torch.tensor(numbers, dtype=dtype).to(self.device, non_blocking=True)


class PagedRunner(Runner[list[int]]):
    """One pass of the model over the tokens of all chunks, side by side; each source that is read has
    pages of ``source_pages``."""

    def __init__(
        self, model: Model, cache: PagedCache, source_pages: int = 0, windows: Windows | None = None
    ) -> None:
        super().__init__(model)
        self.cache = cache
        self.windows = windows
        self.source_pages = source_pages
        self.lag = model.config.embed.previous_token_embeddings

    def forward(self, chunks: Seq[SequenceChunk]) -> Tensor:
        texts = self.cache.texts = self._packed(chunks)
        tokens = self.row([token for chunk in chunks for token in chunk.tokens])[None]
        columns = [
            start + place
            for (start, _), chunk in zip(texts.spans, chunks, strict=True)
            for place in chunk.places
        ]
        nothing = tokens[:, :0]
        extras = {} if texts.sources is None else {"memory": Memory(nothing, nothing)}
        tape = packed_tape(chunks, texts.spans)
        with inference(self.model):
            out: Output = self.model(
                tokens,
                pos=texts.pos,
                cache=self.cache,
                tape=tape,
                logits=self.row(columns),
                **extras,
            )
        keep_records(chunks, tape)
        return out.logits[0].float()

    def copy(self, source: int, target: int) -> None:
        """Copies the keys and values of one page to another."""
        for kv, _ in self.cache.pages:
            has_window = kv.lookback is not None and self.windows is not None
            pair = [self._parts([page])[0] if has_window else page for page in (source, target)]
            kv.pages.copy(*(self.row([page]) for page in pair))

    def read(self, source: tuple[int, ...]) -> list[int]:
        """The pages of a source, filled."""
        used = set(itertools.chain.from_iterable(self.sources.values()))
        free = (page for page in range(self.source_pages) if page not in used)
        pages = [*itertools.islice(free, -(-len(source) // PAGE))]
        places = torch.arange(len(source), device=self.device)
        slots = self.row(pages)[places // PAGE] * PAGE + places % PAGE
        with inference(self.model):
            hidden = self.model.encode(self.row(source)[None]).hidden
            for block, (_, across) in zip(self.model.decoder.blocks, self.cache.pages, strict=True):
                k, v = block.cross.memory_keys(hidden)
                across.pages.write(k[0].transpose(0, 1), v[0].transpose(0, 1), slots)  # type: ignore[union-attr]
        return pages

    def _packed(self, chunks: Seq[SequenceChunk]) -> PackedTexts:
        """Layout of the chunks' tokens in one row."""
        pos = list[int]()
        rows = list[int]()
        spans = list[tuple[int, int]]()
        for number, chunk in enumerate(chunks):
            spans.append((len(pos), len(pos) + len(chunk.tokens)))
            pos += range(chunk.start, chunk.start + len(chunk.tokens))
            rows += [number] * len(chunk.tokens)
        pages = [chunk.sequence.pages for chunk in chunks]
        filled = [source for chunk in chunks if (source := self.source_of(chunk.sequence))]
        lengths = [len(chunk.sequence.source or ()) for chunk in chunks]
        sources = (self._tables(filled), self.row(lengths, torch.int32)) if filled else None
        return PackedTexts(
            self.row(pos)[None],
            self.row(rows, torch.int32),
            self._tables(pages),
            spans,
            sources,
            self._previous(chunks) if self.lag else None,
            window_tables=self._tables([*map(self._parts, pages)]) if self.windows else None,
        )

    def _parts(self, pages: Seq[int]) -> list[int]:
        """Window pages of these pages, 0 where a page has none."""
        assert self.windows is not None
        return [self.windows.part_of.get(page, 0) for page in pages]

    def _tables(self, pages: Seq[Seq[int]]) -> Tensor:
        longest = max(map(len, pages))
        return self.row([[*row, *[0] * (longest - len(row))] for row in pages], torch.int32)

    def _previous(self, chunks: Seq[SequenceChunk]) -> Tensor:
        """The tokens before each one (1, N, lag), the nearest first; -1 before the beginning."""
        previous = []
        for chunk in chunks:
            ids = [-1] * self.lag + chunk.sequence.ids[: chunk.start] + chunk.tokens
            for place in range(chunk.start + self.lag, len(ids)):
                previous.append(ids[place - self.lag : place][::-1])
        return self.row(previous)[None]


class StateRunner(Runner[Memory]):
    """A decoder of recurrent cells, or with token mixers that keep states: a cache and a pass of
    its own for each sequence."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.caches: dict[int, Cache] = {}  # by page

    def forward(self, chunks: Seq[SequenceChunk]) -> Tensor:
        rows = [self._forward(chunk) for chunk in chunks]
        # the model applies no head where no row is asked for: of another width
        return torch.cat([row for row in rows if len(row)] or rows[:1])

    def _forward(self, chunk: SequenceChunk) -> Tensor:
        sequence = chunk.sequence
        page = chunk.sequence.pages[0]
        before = list[int]()
        # none is kept while it is computed: a pass that fails leaves it unusable
        cache = self.caches.pop(page, None)
        if cache is None or cache.length != chunk.start:
            cache = Cache(self.model.config)
            before = sequence.ids[: chunk.start]
        memory = self.source_of(sequence)
        extras = {} if memory is None else {"memory": memory}
        first = len(before)
        tokens = before + chunk.tokens
        places: Seq[int] = [first + place for place in chunk.places]
        look = sequence.look
        tape = None
        if look is not None:  # edits change what is computed again, too
            places = range(len(tokens)) if look.tape.watches("logits") else places
            tape = PackedTape({0: ((0, len(tokens)), look.tape)}, {0: (0, len(places))})
        with inference(self.model):
            out: Output = self.model(
                self.row([tokens]),
                cache=cache,
                tape=tape,
                logits=self.row(places),
                **extras,
            )
        keep_records([chunk], tape, first)
        self.caches[page] = cache
        return out.logits[0, len(places) - len(chunk.places) :].float()

    def copy(self, source: int, target: int) -> None:
        self.caches[target] = copy.deepcopy(self.caches[source])

    def read(self, source: tuple[int, ...]) -> Memory:
        """The encoder's output."""
        with inference(self.model):
            memory: Memory = self.model.encode(self.row([source]))
        return memory

    def restart(self) -> None:
        super().restart()
        self.caches.clear()


def packed_tape(chunks: Seq[SequenceChunk], spans: Seq[tuple[int, int]]) -> PackedTape | None:
    """The tapes of the sequences that are recorded or edited."""
    tapes = {
        number: (spans[number], chunk.sequence.look.tape)
        for number, chunk in enumerate(chunks)
        if chunk.sequence.look is not None
    }
    row_ends = [0, *itertools.accumulate(len(chunk.places) for chunk in chunks)]
    rows = {number: (row_ends[number], row_ends[number + 1]) for number in tapes}
    return PackedTape(tapes, rows) if tapes else None


def keep_records(chunks: Seq[SequenceChunk], tape: PackedTape | None, before: int = 0) -> None:
    """Keeps what a pass recorded of each sequence, and the error of its edits; so many tokens
    ``before`` a chunk were computed again."""
    for number, chunk in enumerate(chunks):
        look = chunk.sequence.look
        if look is not None and tape is not None:
            look.error = tape.errors.get(number)
            look.keep(chunk.start - before, before + len(chunk.tokens))


def wants_scores(sequence: Sequence) -> bool:
    """True for the first continuation of a request that asks for prompt log-probabilities."""
    return sequence.index == 0 and sequence.request.prompt_logprobs is not None


def logit_positions(chunk: SequenceChunk) -> Seq[int]:
    """Places in a chunk whose logits are needed: of a scored prompt all from ``since``, else the
    last."""
    length = len(chunk.tokens)
    sequence = chunk.sequence
    request = chunk.sequence.request
    if sequence.look is not None and sequence.look.tape.watches("logits"):
        return range(length)
    if wants_scores(sequence) and chunk.start < len(request.tokens):
        return range(min(max(0, request.since - chunk.start), length - 1), length)
    return range(length - 1 - chunk.drafted, length) if chunk.finishes else ()


def record_scores(chunk: SequenceChunk, vocab_size: int | None) -> None:
    """Records log-probabilities of a scored prompt's tokens from a chunk's logits."""
    handle = chunk.handle
    request = chunk.sequence.request
    prompt = handle.prompt
    since = request.since
    count = request.prompt_logprobs
    if not wants_scores(chunk.sequence) or handle.prompt_logprobs is not None:
        return
    positions = [chunk.start + place for place in chunk.places]
    rows = [row for row, at in enumerate(positions) if since <= at < len(prompt) - 1]
    logits = chunk.logits[rows]
    following = [positions[row] + 1 for row in rows]
    tokens = torch.tensor([prompt[at] for at in following], device=logits.device)
    logprobs = log_probability(logits, tokens.long()).tolist()
    top = likeliest(logits, vocab_size, count) if count else [() for _ in rows]
    for at, logprob, likely in zip(following, logprobs, top, strict=True):
        handle.scores[at] = TokenLogprob(prompt[at], logprob, tuple(likely))
    if len(handle.scores) == len(prompt) - 1 - since:
        scores = (handle.scores[at] for at in sorted(handle.scores))
        handle.prompt_logprobs = [TokenLogprob(prompt[since], None), *scores]
