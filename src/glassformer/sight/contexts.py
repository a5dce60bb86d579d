"""One word in two texts: how alike its vectors are after each layer, beside how alike any two words
are there.

N texts, T tokens, D depths, C model dim.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ..core.errors import UserError, need
from ..core.nn import Model, Tape
from . import answers, passes, streams
from .figures.charts import Chart, Curves, Prose, TableFigure
from .figures.shown import Records, Shown
from .inputs import token_ids
from .recording.outside import readable
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
        lines = {"the word": self.cosine, "other words": self.others}
        yield Curves.by_depth(f"cosine by depth (0: {self.depths[0]})", lines)
        yield self._table()

    def records(self) -> Records:
        """A row for each depth."""
        rows = zip(self.depths, self.cosine, self.others, strict=True)
        return ("depth", "cosine", "others"), rows

    def _table(self) -> TableFigure:
        return TableFigure("", ("depth", "the word", "other words"), self.records()[1])


def word_in_contexts(
    model: nn.Module, tokenizer: Any, word: str, first: str, second: str
) -> Contexts:
    """Compares the vectors of one word in two texts, at each depth of a model.

    Args:
        model: A model of ours or of transformers, or any module that takes ids.
        tokenizer: The tokenizer that came with it.
        word: The word; where a text has it twice, the first counts.
        first: One text, which an encoder-decoder's encoder reads.
        second: The other text.

    Returns:
        The cosine similarity at each depth; printing it shows a table.

    Raises:
        UserError: A text does not have the word, or the model cannot read it.

    Example:
        >>> texts = "the dog ran", "a big dog sat"
        >>> print(glassformer.word_in_contexts(model, tokenizer, "dog", *texts))
    """
    texts, reads = [first, second], _reads(model, tokenizer)
    occurrences = [must_have(text, word) for text in texts]
    states, places, others, pieces = [], [], [], []
    for text, spans_of_word in zip(texts, occurrences, strict=True):
        if isinstance(model, Model):
            tokens = token_ids(model, tokenizer, text)
            states.append(_states(model, tokens))
        else:
            run = passes.record_foreign(model, tokenizer, text)
            tokens = run.tokens
            states.append(run.structure.depths())
        every, inside = _places(reads, tokens[0].tolist(), (text, *spans_of_word[0]))
        places.append(inside)
        others.append([at for at in every if at not in inside])
        pieces.append(streams.pieces(reads, tokens[0, inside].tolist()))
    need(any(others), "The texts have no other word for the comparison; give longer texts.")
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
    if (
        isinstance(model, Model)
        and model.config.main_body == "decoder"
        and not model.config.has_source
    ):
        notes.append(
            "A decoder's word has seen only what stands before it; words after it change nothing."
        )
    return Contexts(word, texts, places, pieces, list(states[0]), cosine, baselines, notes)


def _reads(model: nn.Module, tokenizer: Any) -> Tokenizer:
    if not isinstance(model, Model):
        return cast("Tokenizer", readable(tokenizer))
    reads: Tokenizer = tokenizer.for_source if model.config.has_source else tokenizer
    return reads


def _places(tokenizer: Tokenizer, ids: list[int], place: Place) -> tuple[list[int], list[int]]:
    """Which of a row's ``ids`` are the text's own, and which of them the word is; UserError where
    none is."""
    text, start, end = place
    characters = answers.spans(tokenizer, ids, text)
    inside = [at for at, (low, high) in characters.items() if low < end and high > start]
    word = text[start:end]
    need(bool(inside), f'No token of "{text}" encodes "{word}"; this tokenizer drops it.')
    return list(characters), inside


def must_have(text: str, word: str) -> list[tuple[int, int]]:
    """``spans`` of the word; UserError where there are none."""
    if not (word_spans := spans(text, word)):
        raise UserError(f'The word "{word}" is not in "{text}"; give texts that contain it.')
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


def _states(model: Model, tokens: Tensor) -> dict[str, Tensor]:
    """The states (N, T, C) of rows of tokens (N, T) at each depth; an encoder-decoder's encoder
    reads them."""
    body = "encoder" if model.config.has_source else model.config.main_body
    return streams.read_texts(model, tokens, None, Tape(*streams.depths(body)))


def _cosine(vector: Tensor, vectors: Tensor) -> Tensor:
    """The cosine of a vector (C) with each of some (N, C), in fp64."""
    return torch.nn.functional.cosine_similarity(
        streams.fp64(vector)[None], streams.fp64(vectors), dim=-1
    )
