"""One word in two texts: how alike its vectors are after each layer, beside how alike any two words
are there.

N texts, T tokens, D depths, C model dim.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.errors import UserError, need
from ..core.nn import Model, Tape
from . import streams
from .figures.charts import Chart, Curves, Prose, TableFigure
from .figures.shown import Shown
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

    def records(self) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        """A row for each depth."""
        rows = zip(self.depths, self.cosine, self.others, strict=True)
        return ("depth", "cosine", "others"), rows

    def table(self) -> list[str]:
        """The depths as lines, cosines rounded to four places."""
        return self._table().lines()

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
    pair = [_Seen.of(model, tokenizer, word, text) for text in (first, second)]
    depths = list(pair[0].states)
    cosine = []
    baselines = []
    for path in depths:
        first_states, two = (occurrence.states[path] for occurrence in pair)
        first_vector = first_states[pair[0].places].mean(0)
        its = two[pair[1].places].mean(0)
        cosine.append(_cosine(first_vector, its[None]).item())
        away = torch.cat(
            (_cosine(first_vector, two[pair[1].others]), _cosine(its, first_states[pair[0].others]))
        )
        need(len(away) > 0, "The texts have no other word to compare with; give longer ones.")
        baselines.append(away.mean().item())
    notes = []
    if any(len(occurrence.places) > 1 for occurrence in pair):
        notes.append(f'"{word}" is several tokens; its vector is their mean.')
    if any(occurrence.times > 1 for occurrence in pair):
        notes.append(f'"{word}" stands in a text more than once; the first place counts.')
    if model.config.main_body == "decoder" and not model.config.has_source:
        notes.append(
            "A decoder's word has seen only what stands before it; words after it change nothing."
        )
    return Contexts(
        word,
        [first, second],
        [occurrence.places for occurrence in pair],
        [
            streams.pieces(
                _reads(model, tokenizer), [occurrence.ids[at] for at in occurrence.places]
            )
            for occurrence in pair
        ],
        depths,
        cosine,
        baselines,
        notes,
    )


@dataclass(frozen=True)
class _Seen:
    """One text: ids, states (T, C) by depth, where the word is and where others are, how often the
    word is there."""

    ids: list[int]
    states: dict[str, Tensor]
    places: list[int]
    others: list[int]
    times: int

    @classmethod
    def of(cls, model: Model, tokenizer: Tokenizer, word: str, text: str) -> _Seen:
        """A text as the model reads it."""
        word_spans = must_have(text, word)
        tokens = token_ids(model, tokenizer, text)
        every, inside = _places(
            _reads(model, tokenizer), tokens[0].tolist(), (text, *word_spans[0])
        )
        states = {path: value[0] for path, value in _states(model, tokens).items()}
        return cls(
            tokens[0].tolist(),
            states,
            inside,
            [at for at in every if at not in inside],
            len(word_spans),
        )


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
        batch_ids = order[low : low + batch]
        rows = [
            token_ids(model, tokenizer, places[number][0], truncate=True)[0] for number in batch_ids
        ]
        states = torch.stack(
            list(_states(model, *streams.padded(rows)).values()), 2
        )  # (N, T, D, C)
        for row, number in enumerate(batch_ids):
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
