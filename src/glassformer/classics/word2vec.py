"""word2vec: vectors of words from the company they keep (Mikolov et al. 2013, arXiv 1301.3781 and 1310.4546).

    skip-gram   a word's vector guesses each word around it      CBOW   the mean of the words around guesses the word
    right pairs are told from pairs with noise words: sigmoid(input . output) goes to 1 and to 0

The gradient of a pair touches two rows of two tables, so this has its own loop: the trainer's optimizers would move
every row at every step. Rows of T neighbouring words are worked on together, as small matrix products: the words of a
row share S noise words, weighted so that each pair meets ``negative`` of them on average (Ji et al. 2016, 1604.04661).

B rows of a batch, T words of a row, O = T + 2 window words around it too, S shared noise words, D width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UserError, above_zero, need
from .vectors import Vectors
from .vocabulary import Words

ROW = 32  # T at most
SHARED = 32  # S
BATCH = 16  # B at most: 512 words move the tables at once; 2,048 pushed frequent words too far
PUSH = 0.1  # rate times how often one word stands in a batch, about, at most
STRETCH = 1 << 22  # words of the text that are put in rows at once
REPORT = 1 << 17  # words between two reports
LOWEST = 1e-4  # of the first rate: where it ends


@dataclass(frozen=True)
class Settings:
    """How to train. ``window`` is the farthest neighbour, ``negative`` the noise words a pair; a word whose share of
    the text is above ``sample`` is often skipped; ``rate`` falls linearly to nearly nothing over ``epochs``.
    """

    kind: Literal["skip-gram", "cbow"] = "skip-gram"
    dim: int = 100
    window: int = 5
    negative: int = 5
    sample: float = 1e-3
    epochs: int = 5
    rate: float = 0.025
    seed: int = 0

    def __post_init__(self) -> None:
        above_zero(self, "dim", "window", "negative", "sample", "epochs", "rate")
        need(self.kind in ("skip-gram", "cbow"), f'There is no word2vec "{self.kind}"; choose skip-gram or cbow.')


@dataclass
class Step:
    """How far training is: ``done`` of all words, the mean ``loss`` of a pair with its noise words, the rate."""

    epoch: int
    done: float
    loss: float
    rate: float


class Word2Vec:
    """Two tables (V, D): ``inputs``, the vectors that are kept, and ``outputs``, what they are held against."""

    def __init__(self, text: Words, settings: Settings) -> None:
        self.text, self.settings = text, settings
        self.random = torch.Generator().manual_seed(settings.seed)
        size, dim = len(text.words), settings.dim
        self.inputs = (torch.rand(size, dim, generator=self.random) - 0.5) / dim
        self.outputs = torch.zeros(size, dim)
        counts = torch.from_numpy(text.counts).double()
        share = counts / counts.sum() / settings.sample
        self.keep = (share.rsqrt() + 1 / share).float()  # as the authors' program has it; above 1 is always
        most = (counts * self.keep.clamp(max=1)).max() / (counts * self.keep.clamp(max=1)).sum()
        at_once = max(1, int(PUSH / (settings.rate * most)))  # few, where there are few different words
        self.row, self.batch = min(ROW, at_once), max(1, min(BATCH, at_once // ROW))
        noise = counts.pow(0.75)
        self.noise = (noise / noise.sum()).cumsum(0).float()

    def train(self) -> Iterator[Step]:
        """Go through the text ``epochs`` times; a Step now and then, and at the end."""
        how, words, done, reported = self.settings, len(self.text), 0, 0
        for epoch in range(how.epochs):
            for low in range(0, words, STRETCH):
                rows = self._rows(low, min(low + STRETCH, words))
                each = (min(low + STRETCH, words) - low) / len(rows[0])  # words of the text a row stands for
                order = torch.randperm(len(rows[0]), generator=self.random)
                begun = epoch * words + low
                for first in range(0, len(order), self.batch):
                    chosen = order[first : first + self.batch]
                    rate = how.rate * max(LOWEST, 1 - done / (how.epochs * words))
                    done = begun + round(each * (first + len(chosen)))
                    last = done == how.epochs * words
                    report = last or done - reported >= REPORT
                    ids, pos, reach = (part[chosen] for part in rows)
                    loss = self._learn(ids, pos, reach, rate, report)
                    if report:
                        reported = done
                        if not math.isfinite(loss):
                            raise UserError(f"The vectors grew beyond all bounds; give a rate below {how.rate}.")
                        yield Step(epoch + 1, done / (how.epochs * words), loss, rate)

    def vectors(self) -> Vectors:
        """The words and their input vectors, as they are now."""
        return Vectors(self.text.words, self.inputs.numpy().copy())

    def _rows(self, low: int, high: int) -> tuple[Tensor, Tensor, Tensor]:
        """Part of the text in rows of T words and ``window`` more on both sides, frequent words thinned out.

        Word numbers, positions (those of two sentences are more than ``window`` apart) and how far each word looks,
        drawn anew each time: near neighbours count more. All (rows, O); at both ends of the text it looks nowhere.
        """
        window = self.settings.window
        ids, sentence = (torch.from_numpy(part[low:high]).long() for part in (self.text.ids, self.text.sentence))
        kept = torch.rand(len(ids), generator=self.random) < self.keep[ids]
        ids, sentence = ids[kept], sentence[kept]
        pos = torch.arange(len(ids)) + sentence * window
        reach = torch.randint(1, window + 1, (len(ids),), generator=self.random)
        ends = (window, window + max(-len(ids) % self.row, self.row * (len(ids) == 0)))
        parts = ((ids, 0), (pos, -(2**40)), (reach, -1))
        ids, pos, reach = (F.pad(part, ends, value=x).unfold(0, self.row + 2 * window, self.row) for part, x in parts)
        return ids, pos, reach

    def _learn(self, ids: Tensor, pos: Tensor, reach: Tensor, rate: float, report: bool) -> float:
        """Move both tables along the gradient of these rows; the mean loss, where it is reported."""
        how = self.settings
        window, inner = how.window, ids[:, how.window : -how.window]
        noise = torch.searchsorted(self.noise, torch.rand(len(ids), SHARED, generator=self.random))
        noise.clamp_(max=len(self.noise) - 1)
        if how.kind == "skip-gram":  # the words of the row are asked by each word that looks so far
            near = (pos[:, window:-window, None] - pos[:, None]).abs_() <= reach[:, None]
            near = _off_diagonal(near, window).float()  # (B, T, O)
            against = (near @ (ids[..., None] != noise[:, None]).float()).mul_(how.negative / SHARED)
            right, others = near, ids
            asked = given = _take(self.inputs, inner)
        else:  # the mean of the words around each word of the row is asked
            near = (pos[:, window:-window, None] - pos[:, None]).abs_() <= reach[:, window:-window, None]
            near = _off_diagonal(near, window).float()
            count = near.sum(2, keepdim=True)
            there = (count > 0).float()
            right, others = torch.eye(self.row) * there, inner
            against = (inner[..., None] != noise[:, None]).float().mul_(there * (how.negative / SHARED))
            given = _take(self.inputs, ids)
            asked = near @ given / count.clamp_(min=1)
        others = torch.cat((others, noise), 1)
        outputs = _take(self.outputs, others)
        weight = torch.cat((right, against), 2)
        score = asked @ outputs.mT
        loss = _loss(score, right, against) if report else math.nan
        slope = score.sigmoid_().mul_(weight).neg_()
        slope[..., : right.shape[2]] += right
        slope *= rate
        back = slope @ outputs
        if how.kind == "cbow":  # each word around gets all of it, undivided, as in the authors' program
            back = near.mT @ back
        _add(self.outputs, others, slope.mT @ asked)
        _add(self.inputs, inner if how.kind == "skip-gram" else ids, back)
        return loss


def _off_diagonal(near: Tensor, window: int) -> Tensor:
    """A word is not its own neighbour."""
    near.diagonal(window, 1, 2).fill_(False)
    return near


def _take(table: Tensor, ids: Tensor) -> Tensor:
    return table.index_select(0, ids.flatten()).view(*ids.shape, -1)


def _add(table: Tensor, ids: Tensor, rows: Tensor) -> None:
    table.index_add_(0, ids.flatten(), rows.flatten(0, 1))


def _loss(score: Tensor, right: Tensor, against: Tensor) -> float:
    total = (right * F.logsigmoid(score[..., : right.shape[2]])).sum()
    total += (against * F.logsigmoid(-score[..., right.shape[2] :])).sum()
    return float(-total / right.sum().clamp_(min=1))
