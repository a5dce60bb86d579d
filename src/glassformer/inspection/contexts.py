"""One word in two texts: how alike its vectors are after each layer, beside how alike any two words are there.

T tokens, C model dim.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import config
from ..errors import UserError, need
from ..nn import Model, Tape
from ..nn.finite import must_be_finite
from ..nn.inference import inference
from . import streams, tables
from .looking import token_ids

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Contexts:
    """The cosine of a word's vectors in two texts at each depth, from the embedding on.

    ``others`` is what to hold it against: the mean cosine of the word in one text with each other token of the other,
    both ways. ``positions`` and ``pieces`` are the word's tokens in each text; a word of several is their mean.
    """

    word: str
    texts: list[str]
    positions: list[list[int]]
    pieces: list[list[str]]
    depths: list[str]
    cosine: list[float]
    others: list[float]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return dict(vars(self))

    def table(self) -> list[str]:
        """The depths as lines, cosines rounded to four places."""
        rows = zip(self.depths, self.cosine, self.others, strict=True)
        shown = [(name, f"{own:.4f}", f"{others:.4f}") for name, own, others in rows]
        return tables.lines(shown, ("depth", "the word", "other words"))


def word_in_contexts(model: Model, tokenizer: Tokenizer, word: str, first: str, second: str) -> Contexts:
    """How alike ``word`` is in two texts at each depth of the model; where it stands twice, the first place counts.

    An encoder-decoder's encoder reads them. Raises UserError for a word that a text does not have, and for a text
    that the model cannot read.
    """
    pair = [_Seen.of(model, tokenizer, word, text) for text in (first, second)]
    depths = list(pair[0].states)
    cosine, others = [], []
    for path in depths:
        one, two = (seen.states[path] for seen in pair)
        mine, its = one[pair[0].places].mean(0), two[pair[1].places].mean(0)
        cosine.append(_cosine(mine, its[None]).item())
        away = torch.cat((_cosine(mine, two[pair[1].others]), _cosine(its, one[pair[0].others])))
        need(len(away) > 0, "The texts have no other word to compare with; give longer ones.")
        others.append(away.mean().item())
    notes = []
    if any(len(seen.places) > 1 for seen in pair):
        notes.append(f'"{word}" is several tokens; its vector is their mean.')
    if any(seen.times > 1 for seen in pair):
        notes.append(f'"{word}" stands in a text more than once; the first place counts.')
    if streams.body_of(model) == "decoder" and not isinstance(model.config, config.EncoderDecoder):
        notes.append("A decoder's word has seen only what stands before it; words after it change nothing.")
    return Contexts(
        word,
        [first, second],
        [seen.places for seen in pair],
        [streams.pieces(tokenizer, [seen.ids[at] for at in seen.places]) for seen in pair],
        depths,
        cosine,
        others,
        notes,
    )


@dataclass(frozen=True)
class _Seen:
    """One text: ids, states (T, C) by depth, where the word is and where others are, how often the word is there."""

    ids: list[int]
    states: dict[str, Tensor]
    places: list[int]
    others: list[int]
    times: int

    @classmethod
    def of(cls, model: Model, tokenizer: Tokenizer, word: str, text: str) -> _Seen:
        """A text as the model reads it."""
        found = spans(text, word)
        if not found:
            raise UserError(f'The word "{word}" does not stand in "{text}"; give texts that have it.')
        tokens = token_ids(model, tokenizer, text)
        ids, plain = tokens[0].tolist(), tokenizer.encode(text)
        before = next(at for at in range(len(ids)) if ids[at : at + len(plain)] == plain)
        (start, end), offsets = found[0], tokenizer.offsets(text)
        inside = [before + at for at, (low, high) in enumerate(offsets) if low < end and high > start]
        need(bool(inside), f'No token of "{text}" stands for "{word}"; this tokenizer leaves it out.')
        rest = [at for at in range(before, before + len(plain)) if at not in inside]
        return cls(ids, _states(model, tokens), inside, rest, len(found))


def spans(text: str, word: str) -> list[tuple[int, int]]:
    """Where a word stands in a text, as characters (start, end): as it is written, else whatever its capitals."""
    if not word.strip():
        return []
    form = rf"(?<!\w){re.escape(word.strip())}(?!\w)"
    for flags in (0, re.IGNORECASE):
        if found := [match.span() for match in re.finditer(form, text, flags)]:
            return found
    return []


def _states(model: Model, tokens: Tensor) -> dict[str, Tensor]:
    """The states (T, C) of one text at each depth; an encoder-decoder's encoder reads it."""
    if not isinstance(model.config, config.EncoderDecoder):
        return streams.states(model, streams.Read(tokens, None, {})).by_path
    tape = Tape("encoder.embed", "encoder.blocks.*.resid", "encoder.cells.*.state")
    with inference(model):
        must_be_finite(model, model.encode(tokens, tape=tape).hidden)  # type: ignore[operator]
    return {path: value[0] for path, value in tape.records.items()}


def _cosine(one: Tensor, others: Tensor) -> Tensor:
    """The cosine of a vector (C) with each of some (N, C), in fp64."""
    return torch.nn.functional.cosine_similarity(streams.fp64(one)[None], streams.fp64(others), dim=-1)
