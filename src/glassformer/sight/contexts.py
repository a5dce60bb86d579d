"""One word in two texts: how alike its vectors are after each layer, beside how alike any two words
are there.

N texts, T tokens, D depths, C model dim.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.errors import UserError, need
from ..core.nn import Model, Tape
from . import streams
from .figures.charts import Chart, Curves, Prose, TableFigure
from .figures.shown import Records, Shown
from .looking import token_ids
from .streams import TokenLabel

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer

Place = tuple[str, int, int]
"""A text, and from which to before which character of it a word stands."""


@dataclass(frozen=True, repr=False)
class Contexts(Shown):
    """The cosine of a word's vectors in two texts at each depth, from the embedding on.

    ``others`` is what to hold it against: the mean cosine of the word in one text with each other
    token of the other, both ways. ``positions`` and ``pieces`` are the word's tokens in each text;
    a word of several is their mean.
    """

    word: str
    texts: list[str]
    positions: list[list[int]]
    pieces: list[list[TokenLabel]]
    depths: list[str]
    cosine: list[float]
    others: list[float]
    notes: list[str]

    @property
    def title(self) -> str:
        return f"One word in two contexts: {self.word}"

    def charts(self) -> Iterator[Chart]:
        """The texts; the cosines as curves over depth, and as a table."""
        yield Prose([*self.texts, *self.notes])
        steps = list(range(len(self.depths)))
        lines = {"the word": (steps, self.cosine), "other words": (steps, self.others)}
        yield Curves(f"cosine by depth (0: {self.depths[0]})", lines, "depth", tuple(lines))
        yield self._table()

    def records(self) -> Records:
        """A row for each depth."""
        rows = zip(self.depths, self.cosine, self.others, strict=True)
        return ("depth", "cosine", "others"), rows

    def _table(self) -> TableFigure:
        return TableFigure.of("", ("depth", "the word", "other words"), self.records()[1])


def word_in_contexts(
    model: Model, tokenizer: Tokenizer, word: str, first: str, second: str
) -> Contexts:
    """Cosine similarity of ``word`` in two texts at each depth of the model; where it stands twice,
    the first place counts.

    An encoder-decoder's encoder reads them. Raises UserError for a word that a text does not have,
    and for a text that the model cannot read.
    """
    texts, reads = [first, second], _reads(model, tokenizer)
    occurrences = [must_have(text, word) for text in texts]
    states, places, others, pieces = [], [], [], []
    for text, spans_of_word in zip(texts, occurrences, strict=True):
        tokens = token_ids(model, tokenizer, text)
        every, inside = _places(reads, tokens[0].tolist(), (text, *spans_of_word[0]))
        states.append(_states(model, tokens))
        places.append(inside)
        others.append([at for at in every if at not in inside])
        pieces.append(streams.pieces(reads, tokens[0, inside].tolist()))
    need(any(others), "The texts have no other word to compare with; give longer ones.")
    cosine = []
    baselines = []
    for (x,), (y,) in zip(*(by_depth.values() for by_depth in states), strict=True):
        vector, second_vector = x[places[0]].mean(0), y[places[1]].mean(0)
        cosine.append(_cosine(vector, second_vector[None]).item())
        away = torch.cat((_cosine(vector, y[others[1]]), _cosine(second_vector, x[others[0]])))
        baselines.append(away.mean().item())
    notes = []
    if max(map(len, places)) > 1:
        notes.append(f'"{word}" is several tokens; its vector is their mean.')
    if max(map(len, occurrences)) > 1:
        notes.append(f'"{word}" stands in a text more than once; the first place counts.')
    if model.config.main_body == "decoder" and not model.config.has_source:
        notes.append(
            "A decoder's word has seen only what stands before it; words after it change nothing."
        )
    return Contexts(word, texts, places, pieces, list(states[0]), cosine, baselines, notes)


def word_vectors(
    model: Model, tokenizer: Tokenizer, places: Sequence[Place], batch: int = 64
) -> Tensor:
    """A word's vector in each of N texts at each of D depths, from the embedding on (N, D, C): the
    mean of its tokens.

    A text longer than the context loses its end. Raises UserError for a word that lies there.
    """
    # texts of one length together
    order = sorted(range(len(places)), key=lambda number: len(places[number][0]))
    vectors: dict[int, Tensor] = {}
    for low in range(0, len(order), batch):
        numbers = order[low : low + batch]
        texts = [places[number][0] for number in numbers]
        rows = [token_ids(model, tokenizer, text, truncate=True)[0] for text in texts]
        by_depth = _states(model, *streams.padded(rows)).values()
        states = torch.stack(list(by_depth), 2)  # (N, T, D, C)
        for row, number in enumerate(numbers):
            _, inside = _places(_reads(model, tokenizer), rows[row].tolist(), places[number])
            vectors[number] = states[row, inside].mean(0)
    return torch.stack([vectors[number] for number in range(len(places))])


def pair_cosines(
    model: Model, tokenizer: Tokenizer, pairs: Sequence[tuple[Place, Place]]
) -> Tensor:
    """The cosine of the two vectors of each of N pairs at each depth (N, D)."""
    vectors = word_vectors(model, tokenizer, [place for pair in pairs for place in pair])
    return torch.cosine_similarity(vectors[0::2], vectors[1::2], dim=-1)


def _reads(model: Model, tokenizer: Tokenizer) -> Tokenizer:
    return tokenizer.for_source if model.config.has_source else tokenizer


def _places(tokenizer: Tokenizer, ids: list[int], place: Place) -> tuple[range, list[int]]:
    """Which of a row's ``ids`` are the text's own, and which of them the word is; UserError where
    none is."""
    text, start, end = place
    encoding = tokenizer.encode(text)
    before = next(
        at for at in range(len(ids)) if ids[at : at + len(encoding)] == encoding[: len(ids) - at]
    )
    offsets = tokenizer.offsets(text)
    inside = [before + at for at, (low, high) in enumerate(offsets) if low < end and high > start]
    word = text[start:end]
    need(bool(inside), f'No token of "{text}" stands for "{word}"; this tokenizer leaves it out.')
    past = (
        f'The word "{word}" lies past the {len(ids)} tokens that the model reads; shorten the text.'
    )
    need(inside[-1] < len(ids), past)
    return range(before, min(before + len(encoding), len(ids))), inside


def must_have(text: str, word: str) -> list[tuple[int, int]]:
    """``spans`` of the word; UserError where there are none."""
    if not (word_spans := spans(text, word)):
        raise UserError(f'The word "{word}" does not stand in "{text}"; give texts that have it.')
    return word_spans


def spans(text: str, word: str) -> list[tuple[int, int]]:
    """Occurrences of a word in a text, as character ranges (start, end): as it is written, else
    whatever its capitals."""
    if not word.strip():
        return []
    form = rf"(?<!\w){re.escape(word.strip())}(?!\w)"
    for flags in (0, re.IGNORECASE):
        if matches := [match.span() for match in re.finditer(form, text, flags)]:
            return matches
    return []


def _states(model: Model, tokens: Tensor, pos: Tensor | None = None) -> dict[str, Tensor]:
    """The states (N, T, C) of rows of tokens (N, T) at each depth; an encoder-decoder's encoder
    reads them."""
    body = "encoder" if model.config.has_source else model.config.main_body
    return streams.read_texts(model, tokens, pos, Tape(*streams.depths(body)))


def _cosine(vector: Tensor, vectors: Tensor) -> Tensor:
    """The cosine of a vector (C) with each of some (N, C), in fp64."""
    return torch.nn.functional.cosine_similarity(
        streams.fp64(vector)[None], streams.fp64(vectors), dim=-1
    )
