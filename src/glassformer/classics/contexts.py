"""One word in two sentences: the same vector by word2vec, and other vectors after each layer of an encoder.

N texts, L layers and before them the embedding, T tokens, C model dim.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .. import config
from ..errors import UserError, need
from ..nn import Model, Tape
from ..nn.inference import inference
from ..tokenizer.tokenizer import Tokenizer
from .vectors import Vectors
from .vocabulary import Array, read_lines

Place = tuple[str, int, int]  # a text, and from which to before which character of it a word stands

EXAMPLES = (
    ("bank", "She put her money in the bank.", "They had a picnic on the bank of the river."),
    (
        "it",
        "The animal didn't cross the street because it was too tired.",
        "The animal didn't cross the street because it was too wide.",
    ),
    ("it", "The cat lay on the mat because it was tired.", "The cat lay on the mat because it was soft."),
    (
        "it",
        "The chicken didn't cross the road because it was too tired.",
        "The chicken didn't cross the road because it was too wide.",
    ),
)
"""A word whose meaning, or whose referent, is another in the second sentence (after Vaswani and Uszkoreit 2017)."""


def place(text: str, word: str) -> Place:
    """Where a word stands in a text for the first time; UserError where it does not."""
    found = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE)
    if found is None or not word.strip():
        raise UserError(f'The word "{word}" does not stand in "{text}"; give sentences that have it.')
    return text, *found.span()


def layers(model: Model, tokenizer: Tokenizer, places: Sequence[Place], batch: int = 64) -> Tensor:
    """A word's vector after the embedding and after each block (N, 1 + L, C): the mean of its tokens.

    Raises UserError for a model that is not an encoder, and for a word that lies past its context.
    """
    cfg = model.config
    need(isinstance(cfg, config.Encoder), "Only an encoder reads both sides of a word; give one, such as a BERT.")
    order = sorted(range(len(places)), key=lambda i: len(places[i][0]))  # texts of one length together
    found: dict[int, Tensor] = {}
    for low in range(0, len(order), batch):
        some = order[low : low + batch]
        rows = [_tokens(tokenizer, places[i], cfg.context) for i in some]
        tokens = pad_sequence([torch.tensor(ids) for ids, _ in rows], batch_first=True)
        pos = pad_sequence([torch.arange(len(ids)) for ids, _ in rows], batch_first=True, padding_value=-1)
        tape = Tape("encoder.embed", "encoder.blocks.*.resid")
        with inference(model):
            model(tokens, pos=pos, tape=tape, logits="none")
        seen = torch.stack(list(tape.records.values()), 2)  # (N, T, 1 + L, C)
        found |= {i: seen[row, mine].mean(0) for row, (i, (_, mine)) in enumerate(zip(some, rows, strict=True))}
    return torch.stack([found[i] for i in range(len(places))])


def _tokens(tokenizer: Tokenizer, where: Place, most: int) -> tuple[list[int], list[int]]:
    """The ids of a text as an encoder reads it, and which of them the word is."""
    text, start, end = where
    inside = [i for i, (low, high) in enumerate(tokenizer.offsets(text)) if low < end and high > start]
    ids, _ = tokenizer.encode_pair(text)
    plain = tokenizer.encode(text)
    before = next(at for at in range(len(ids)) if ids[at : at + len(plain)] == plain)
    mine = [before + i for i in inside]
    past = f'The word "{text[start:end]}" lies past the {most} tokens that the model reads; shorten the text.'
    need(bool(mine) and mine[-1] < most, past)
    return ids[:most], mine


def moving_apart(model: Model, tokenizer: Tokenizer, first: Place, second: Place) -> list[float]:
    """The cosine of a word's two vectors after the embedding and after each block."""
    one, other = layers(model, tokenizer, [first, second])
    return [float(cosine) for cosine in torch.cosine_similarity(one, other, dim=-1)]


@dataclass(frozen=True)
class Pair:
    """A word in two texts, and whether it means the same in both."""

    first: Place
    second: Place
    same: bool


def read_wic(folder: Path, part: str) -> list[Pair]:
    """A part ("train", "dev", "test") of Words in Context (Pilehvar & Camacho-Collados 2019, 1808.09121).

    Raises UserError, with the line, for files that are not of its form.
    """
    pairs = []
    names = (f"{part}.{kind}.txt" for kind in ("data", "gold"))
    data, gold = (read_lines(folder / name, "give the folder of WiC's files") for name in names)
    counts = f"{folder} has {len(data)} pairs in {part} and {len(gold)} answers; restore the files."
    need(len(data) == len(gold), counts)
    for number, (line, answer) in enumerate(zip(data, gold, strict=True), 1):
        try:
            _, _, numbers, first, second = line.split("\t")
            sides = zip((first, second), numbers.split("-"), strict=True)
            places = [(text, *list(re.finditer(r"\S+", text))[int(n)].span()) for text, n in sides]
        except (ValueError, IndexError):
            raise UserError(f"{folder / part}.data.txt line {number} is not of WiC's form; restore the file.") from None
        pairs.append(Pair(places[0], places[1], answer.strip() == "T"))
    return pairs


def static_cosines(vectors: Vectors, pairs: Sequence[Pair]) -> Array:
    """The cosine of each pair's two words by one table (N, 1): 1 for the same word, 0 where one is unknown."""
    found = []
    for pair in pairs:
        one, other = (text[start:end].lower() for text, start, end in (pair.first, pair.second))
        known = vectors.find(one) is not None and vectors.find(other) is not None
        found.append(1.0 if one == other else vectors.cosine(one, other) if known else 0.0)
    return np.array(found)[:, None]


def contextual_cosines(model: Model, tokenizer: Tokenizer, pairs: Sequence[Pair]) -> Array:
    """The cosine of each pair's two vectors after the embedding and each block (N, 1 + L)."""
    places = [place for pair in pairs for place in (pair.first, pair.second)]
    seen = layers(model, tokenizer, places)
    cosines: Array = torch.cosine_similarity(seen[0::2], seen[1::2], dim=-1).numpy()
    return cosines


def threshold(cosines: Array, same: Array) -> float:
    """The cosine from which "the same" is said so that most answers (N,) are right."""
    order = np.argsort(-cosines, kind="stable")
    right = np.cumsum(np.where(same[order], 1, -1))  # better than saying "other" throughout, by so many
    ends = np.append(np.diff(cosines[order]) != 0, True)  # equal cosines get one answer
    best = int(np.where(ends, right, -len(order)).argmax())
    if right[best] <= 0:
        return float(np.inf)
    after = cosines[order][best + 1] if best + 1 < len(order) else -1.0
    return float((cosines[order][best] + after) / 2)


def accuracy(cosines: Array, same: Array, border: float) -> float:
    """Right answers in per cent."""
    return 100 * float(np.mean((cosines >= border) == same))
