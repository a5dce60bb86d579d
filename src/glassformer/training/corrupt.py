"""Running text made into questions: tokens hidden, documents cut in two, spans cut out.

    text     Thank you for inviting me to your party last week
    mask     Thank you [M] inviting me to your apple last week        targets  for, party
    prefix   Thank you for inviting|me to your party last week        targets  me to your party last week
    spans    Thank you <0> me to your party <1> week                  targets  <0> for inviting <1> last </s>

Each document of a packed row by itself. What is drawn comes from the generator given, and from nothing else.
Shapes: B rows, T tokens, D documents, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..config import objective as objectives
from ..data.examples import start_of_target
from ..errors import UserError
from ..tokenizer.tokenizer import Tokenizer
from .data import Array, Batch

SHORTEST = 4  # tokens of a document out of which a span is cut: with a sentinel and an end on both sides it fits


@dataclass(frozen=True)
class Documents:
    """The documents of a batch: where they begin in its flattened tokens, how long they are; ``of`` (B, T), or -1."""

    starts: Array
    lengths: Array
    of: Array

    @property
    def place(self) -> Array:
        """How far each token is from the beginning of its document (B, T)."""
        return np.arange(self.of.size).reshape(self.of.shape) - self.starts[self.of]


def documents(batch: Batch) -> Documents:
    """The documents of a batch; what comes first in a row begins one."""
    shape = batch.tokens.shape
    pos = np.broadcast_to(np.arange(shape[1]), shape) if batch.pos is None else batch.pos.numpy()
    there = pos >= 0
    before = np.pad(there, ((0, 0), (1, 0)))[:, :-1]
    opens = there & ((pos == 0) | ~before)
    of = np.where(there, opens.cumsum().reshape(shape) - 1, -1)
    return Documents(np.flatnonzero(opens), np.bincount(of[there]), of)


# ------------------------------------------------------------------------------------------ mask


@functools.lru_cache(maxsize=4)
def _kinds(tokenizer: Tokenizer) -> tuple[Array, Array]:
    """Of each id (V,): is it ordinary, no special token; does it start a word, as white space parts them?"""
    special = set(tokenizer.specials.values())
    names = [tokenizer.token(id) for id in range(tokenizer.size)]
    ordinary = np.array([bool(name) and id not in special for id, name in enumerate(names)])
    prefix = json.loads(tokenizer.to_json())["model"].get("continuing_subword_prefix")
    if prefix:  # WordPiece marks what goes on instead
        return ordinary, np.array([not name.startswith(prefix) for name in names])
    return ordinary, np.array([tokenizer.bytes_of(id)[:1].isspace() for id in range(tokenizer.size)])


def mask(batch: Batch, random: np.random.Generator, words: objectives.Masked, tokenizer: Tokenizer | None) -> Batch:
    """Hide each token with probability ``words.rate``, or each word; the targets are what was there (Devlin 2019).

    Of those chosen 80 % become the mask, 10 % any ordinary token, 10 % stay. Special tokens and padding are never
    chosen. Raises UserError when the tokenizer has no mask.
    """
    if tokenizer is None or tokenizer.mask is None:
        raise UserError('This tokenizer has no mask token; use one that has, or train one with "[MASK]".')
    ordinary, opens = _kinds(tokenizer)
    tokens = batch.tokens.numpy()
    found = documents(batch)
    may = ordinary[tokens] & (found.of >= 0)
    if words.whole_words:
        after = np.pad(may, ((0, 0), (1, 0)))[:, :-1]
        word = (opens[tokens] | (found.place == 0) | ~may | ~after).cumsum().reshape(tokens.shape)
        chosen = may & (random.random(word.max() + 1) < words.rate)[word]
    else:
        chosen = may & (random.random(tokens.shape) < words.rate)
    if not chosen.any() and may.any():
        chosen.flat[random.choice(np.flatnonzero(may))] = True  # a batch asks something
    fate, others = random.random(tokens.shape), np.flatnonzero(ordinary)
    shown = np.where(chosen & (fate < 0.8), tokenizer.mask, tokens)
    shown = np.where(chosen & (fate >= 0.9), others[random.integers(len(others), size=tokens.shape)], shown)
    targets = np.where(chosen, tokens, -1)
    return dataclasses.replace(batch, tokens=torch.from_numpy(shown), targets=torch.from_numpy(targets))


# ---------------------------------------------------------------------------------------- prefix


def split_prefix(batch: Batch, random: np.random.Generator, words: objectives.Prefix) -> Batch:
    """Cut each document between ``words.least`` and ``most`` of it: ``prefix`` before, targets only after.

    The last token of the prefix predicts the first one after it. (Raffel et al. 2020, section 3.2.1)
    """
    found = documents(batch)
    share = random.uniform(words.least, words.most, len(found.lengths))
    cut = np.clip(np.rint(share * found.lengths).astype(np.int64), 1, np.maximum(found.lengths - 1, 1))
    there, place = found.of >= 0, found.place
    prefix = torch.from_numpy(there & (place < cut[found.of]))
    asked = torch.from_numpy(there & (place >= cut[found.of] - 1))
    return dataclasses.replace(batch, prefix=prefix, targets=torch.where(asked, batch.targets, -1))


# ----------------------------------------------------------------------------------------- spans


def spans(batch: Batch, random: np.random.Generator, words: objectives.Span, tokenizer: Tokenizer | None) -> Batch:
    """Cut spans out of each document: a sentinel stands for each in the source, the decoder writes what was there.

    ``words.rate`` of the tokens in spans of ``length`` on average (Raffel et al. 2020, section 3.1.4), fewer and longer
    ones where there are not enough sentinels. Documents below four tokens are left out. Raises UserError when the
    tokenizer lacks sentinels or an end, or when no document is long enough.
    """
    if tokenizer is None or not tokenizer.sentinels:
        raise UserError('This tokenizer has no sentinels; use one that has, or train one with "<extra_id_0>" and on.')
    if tokenizer.eos is None:
        raise UserError("This tokenizer has no end-of-text token to end a target with; use one that has.")
    sentinels, eos, start = np.array(tokenizer.sentinels), tokenizer.eos, start_of_target(tokenizer)
    rows, context = batch.tokens.shape
    sources: list[list[Array]] = [[] for _ in range(rows)]
    targets: list[list[Array]] = [[] for _ in range(rows)]
    flat, found = batch.tokens.flatten().numpy(), documents(batch)
    for first, length in zip(found.starts, found.lengths, strict=True):
        ids = flat[first : first + length]
        ids = ids[int(ids[0] == tokenizer.bos) : length - int(ids[-1] == eos)]
        if len(ids) >= SHORTEST:
            source, target = cut_out(ids, random, words.rate, words.length, sentinels)
            sources[first // context].append(np.append(source, eos))
            targets[first // context].append(np.append(target, eos))
    if not any(sources):
        raise UserError(f"No document of a batch has the {SHORTEST} tokens that Span needs; give longer documents.")
    written = [[np.append(start, target[:-1]) for target in row] for row in targets]
    step = max(8, context // 16)  # few different widths
    width = -(-max(sum(map(len, row)) for row in targets) // step) * step
    pos, document_ids = _numbered(targets, width)
    source_pos, source_document_ids = _numbered(sources, context)
    return Batch(
        _padded(written, width, 0),
        _padded(targets, width, -1),
        pos,
        document_ids,
        _padded(sources, context, 0),
        source_pos,
        source_document_ids,
    )


def cut_out(
    ids: Array, random: np.random.Generator, rate: float, length: float, sentinels: Array
) -> tuple[Array, Array]:
    """A document with sentinels for spans, and every sentinel with its span; both, with an end, no longer than it.

    Spans never touch, may stand at both ends, and all divisions into spans are equally likely.
    """
    size = len(ids)
    hidden = min(max(2, round(size * rate)), size - 2)
    count = min(max(1, round(hidden / length)), len(sentinels), hidden - 1, size - hidden - 1)
    cuts = np.sort(random.choice(hidden - 1, count - 1, replace=False)) + 1
    lengths = np.diff(cuts, prepend=0, append=hidden)
    before = np.cumsum(lengths) - lengths  # hidden tokens before each span
    starts = np.sort(random.choice(size - hidden + 1, count, replace=False)) + before
    inside, opens = np.zeros(size, bool), np.zeros(size, bool)
    inside[np.repeat(starts - before, lengths) + np.arange(hidden)] = opens[starts] = True
    marked = ids.copy()
    marked[starts] = sentinels[:count]
    return marked[~inside | opens], np.insert(ids[inside], before, sentinels[:count])


def _padded(rows: Sequence[Sequence[Array]], width: int, fill: int) -> torch.Tensor:
    """Rows of documents side by side (B, width)."""
    whole = np.full((len(rows), width), fill, np.int64)
    for row, parts in zip(whole, rows, strict=True):
        at = 0
        for part in parts:
            row[at : at + len(part)] = part
            at += len(part)
    return torch.from_numpy(whole)


def _numbered(rows: Sequence[Sequence[Array]], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The positions and the document numbers of such rows."""
    pos = [[np.arange(len(part)) for part in row] for row in rows]
    document_ids = [[np.full(len(part), number) for number, part in enumerate(row)] for row in rows]
    return _padded(pos, width, -1), _padded(document_ids, width, -1)
