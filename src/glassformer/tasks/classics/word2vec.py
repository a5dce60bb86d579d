"""word2vec: vectors of words from the company they keep (Mikolov et al. 2013, arXiv 1301.3781 and
1310.4546).

    skip-gram   a word's vector guesses each word around it      CBOW   the mean of the words around guesses the word
    right pairs are told from pairs with noise words: sigmoid(input . output) goes to 1 and to 0

The gradient of a pair touches two rows of two tables, so this has its own loop: the trainer's
optimizers would move every row at every step. Rows of T neighbouring words are worked on together,
as small matrix products: the words of a row share their ``negative`` noise words (after Ji et al.
2016, 1604.04661).

B rows of a batch, T words of a row, O = T + 2 window words around it too, S noise words, D width, V
vocabulary.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.config.serial import PositiveFloat, PositiveInt, frozen
from ...core.errors import UserError
from .vectors import Vectors
from .word_index import Words

ROW = 24  # T at most
FAR = 1 << 14  # no two words of a row are so far apart, unless the window is wide
ROWS = 21  # B at most: some 500 words move the tables at once; 2,048 pushed frequent words too far
MOST_MOVED = 0.1  # rate times how often one word stands in a batch, about, at most
CHUNK = 1 << 22  # words of the text that are put in rows at once
# words whose windows and noise are made at once, by another thread while those before are learnt
AHEAD = 1 << 13
REPORT = 1 << 17  # words between two reports
LOWEST = 1e-4  # of the first rate: where it ends


@frozen
class Settings:
    """Settings of training. ``window`` is the farthest neighbour, ``negative`` the noise words a pair; a
    word whose share of the text is above ``sample`` is often skipped; ``rate`` falls linearly to
    nearly nothing over ``epochs``.
    """

    kind: Literal["skip-gram", "cbow"] = "skip-gram"
    dim: PositiveInt = 100
    window: PositiveInt = 5
    negative: PositiveInt = 5
    sample: PositiveFloat = 1e-3
    epochs: PositiveInt = 5
    rate: PositiveFloat = 0.025
    seed: int = 0


@dataclass
class EpochProgress:
    """Progress of training: ``done`` of all words, the mean ``loss`` of a pair with its noise words,
    the rate."""

    epoch: int
    done: float
    loss: float
    rate: float


class PairBatch(NamedTuple):
    """Some rows, with the pairs that are scored in them; made before the tables are read."""

    ids: Tensor  # (B, O)
    inner: Tensor  # (B, T)
    # whose outputs are held against the row's T vectors: window words and noise, or noise alone
    output_ids: Tensor
    weight: Tensor  # how much each such pair counts, right ones first
    near: Tensor  # (B, T, O), 1 where a word belongs to another's company
    mean: Tensor  # (B, T, O), the same so that each row sums to 1; CBOW's alone


class Word2Vec:
    """Two tables (V, D): ``inputs``, the vectors that are kept, and ``outputs``, what they are held
    against."""

    def __init__(self, text: Words, settings: Settings) -> None:
        self.text, self.settings = text, settings
        self.random = torch.Generator().manual_seed(settings.seed)
        size, dim = len(text.words), settings.dim
        self.inputs = (torch.rand(size, dim, generator=self.random) - 0.5) / dim
        self.outputs = torch.zeros(size, dim)
        frequencies = torch.from_numpy(text.frequencies).double()
        share = frequencies / frequencies.sum() / settings.sample
        # as the authors' program has it; above 1 is always
        self.keep = (share.rsqrt() + 1 / share).float()
        expected = frequencies * self.keep.clamp(max=1)
        most = expected.max() / expected.sum()
        # few, where there are few different words
        at_once = max(1, int(MOST_MOVED / (settings.rate * most)))
        self.row = min(ROW, at_once)
        self.batch = max(1, min(ROWS, at_once // ROW))
        noise = frequencies.pow(0.75)
        self.noise = (noise / noise.sum()).cumsum(0).float()

    def train(self) -> Iterator[EpochProgress]:
        """Go through the text ``epochs`` times; a TrainStep every 131,072 words (REPORT), and at the
        end."""
        settings = self.settings
        words = len(self.text)
        done = 0
        reported = 0
        total = settings.epochs * words
        for epoch in range(settings.epochs):
            for low in range(0, words, CHUNK):
                rows = self._rows(low, min(low + CHUNK, words))
                # words of the text a row stands for
                words_per_row = (min(low + CHUNK, words) - low) / len(rows[0])
                order = torch.randperm(len(rows[0]), generator=self.random)
                words_before = epoch * words + low
                for first, batch in self._batches(rows, order):
                    rate = settings.rate * max(LOWEST, 1 - done / total)
                    done = words_before + round(words_per_row * (first + len(batch.ids)))
                    report = done == total or done - reported >= REPORT
                    loss = self._learn(batch, rate, report)
                    if report:
                        reported = done
                        if not math.isfinite(loss):
                            raise UserError(
                                f"The vectors diverged; give a learning rate below {settings.rate}."
                            )
                        yield EpochProgress(epoch + 1, done / total, loss, rate)

    def vectors(self) -> Vectors:
        """The words and their input vectors, as they are now."""
        return Vectors(self.text.words, self.inputs.numpy().copy())

    def _rows(self, low: int, high: int) -> tuple[Tensor, Tensor, Tensor]:
        """Part of the text in rows of T words and ``window`` more on both sides, frequent words
        thinned out.

        Word numbers, positions (those of two sentences are more than ``window`` apart) and how far
        each word looks, drawn anew each time: near neighbours count more. All (rows, O); at both
        ends of the text it looks nowhere.
        """
        window = self.settings.window
        ids, sentence = (
            torch.from_numpy(column[low:high]).long()
            for column in (self.text.ids, self.text.sentence)
        )
        is_kept = torch.rand(len(ids), generator=self.random) < self.keep[ids]
        ids, sentence = ids[is_kept], sentence[is_kept]
        pos = torch.arange(len(ids)) + sentence * window
        reach = torch.randint(1, window + 1, (len(ids),), generator=self.random)
        padding = (window, window + max(-len(ids) % self.row, self.row * (len(ids) == 0)))
        columns = ((ids, 0), (pos, -(2**40)), (reach, -1))
        ids, pos, reach = (
            F.pad(column, padding, value=x).unfold(0, self.row + 2 * window, self.row)
            for column, x in columns
        )
        return ids, pos, reach

    def _batches(self, rows: tuple[Tensor, ...], order: Tensor) -> Iterator[tuple[int, PairBatch]]:
        """The rows in this order, a batch at a time, each with the number of its first; the same
        for any threads."""
        many = max(1, AHEAD // (self.row * self.batch)) * self.batch
        starts = range(0, len(order), many)

        def prepare(start: int) -> PairBatch:
            chosen = order[start : start + many]
            return self._prepare(*(column[chosen] for column in rows))

        with _helper_thread() as helper:
            ahead = helper.submit(prepare, 0) if helper else None
            for start in starts:
                block = ahead.result() if ahead else prepare(start)
                if helper and start + many in starts:
                    ahead = helper.submit(prepare, start + many)
                for first in range(0, len(block.ids), self.batch):
                    yield (
                        start + first,
                        PairBatch(*(tensor[first : first + self.batch] for tensor in block)),
                    )

    def _prepare(self, ids: Tensor, pos: Tensor, reach: Tensor) -> PairBatch:
        """All that is known of some rows before the tables are looked at."""
        settings = self.settings
        window = settings.window
        inner = ids[:, settings.window : -settings.window].contiguous()
        noise = torch.searchsorted(
            self.noise, torch.rand(len(ids), settings.negative, generator=self.random)
        )
        noise.clamp_(max=len(self.noise) - 1)
        # small numbers are fast, and FAR is never reached
        if (self.row + 2 * window) * (window + 1) < FAR:
            pos = (pos - pos[:, window, None]).clamp_(-FAR, FAR).short()
            reach = reach.short()
        far = (pos[:, window:-window, None] - pos[:, None]).abs_()
        if (
            settings.kind == "skip-gram"
        ):  # the words of the row are asked by each word that looks so far
            near = _off_diagonal(far <= reach[:, None], window).float()  # (B, T, O)
            against = near @ (ids[..., None] != noise[:, None]).float()
            return PairBatch(
                ids, inner, torch.cat((ids, noise), 1), torch.cat((near, against), 2), near, near
            )
        # the mean of the words around each word of the row is asked
        near = _off_diagonal(far <= reach[:, window:-window, None], window).float()
        count = near.sum(2, keepdim=True)
        has_context = (count > 0).float()
        against = (inner[..., None] != noise[:, None]).float().mul_(has_context)
        return PairBatch(
            ids,
            inner,
            noise,
            torch.cat((has_context, against), 2),
            near,
            near / count.clamp_(min=1),
        )

    def _learn(self, batch: PairBatch, rate: float, report: bool) -> float:
        """Move both tables along the gradient of these rows; the mean loss, where it is
        reported."""
        if self.settings.kind == "cbow":
            return self._cbow(batch, rate, report)
        centres, outputs = _take(self.inputs, batch.inner), _take(self.outputs, batch.output_ids)
        score, window = centres @ outputs.mT, batch.near.shape[2]
        loss = _loss(score, batch.weight, window) if report else math.nan
        grad = score.sigmoid_().mul_(batch.weight).neg_()
        grad[..., :window] += batch.near
        grad *= rate
        input_grad = grad @ outputs
        _add(self.outputs, batch.output_ids, grad.mT @ centres)
        _add(self.inputs, batch.inner, input_grad)
        return loss

    def _cbow(self, batch: PairBatch, rate: float, report: bool) -> float:
        context, targets = _take(self.inputs, batch.ids), _take(self.outputs, batch.inner)
        noise = _take(self.outputs, batch.output_ids)
        mean_context = batch.mean @ context
        right = (mean_context * targets).sum(2, keepdim=True)
        wrong = mean_context @ noise.mT
        loss = _loss(torch.cat((right, wrong), 2), batch.weight, 1) if report else math.nan
        right = right.neg_().sigmoid_().mul_(batch.weight[..., :1]).mul_(rate)
        wrong = wrong.sigmoid_().mul_(batch.weight[..., 1:]).mul_(-rate)
        input_grad = torch.baddbmm(right * targets, wrong, noise)
        _add(self.outputs, batch.inner, right * mean_context)
        _add(self.outputs, batch.output_ids, wrong.mT @ mean_context)
        # each word gets all of it, undivided, as in their program
        _add(self.inputs, batch.ids, batch.near.mT @ input_grad)
        return loss


@contextlib.contextmanager
def _helper_thread() -> Iterator[ThreadPoolExecutor | None]:
    """A thread beside this one, where more than one may work; each then works alone, on products
    too small to share."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield None
        return
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as executor:
            yield executor
    finally:
        torch.set_num_threads(threads)


def _off_diagonal(near: Tensor, window: int) -> Tensor:
    """A word is not its own neighbour."""
    near.diagonal(window, 1, 2).fill_(False)
    return near


def _take(table: Tensor, ids: Tensor) -> Tensor:
    return table.index_select(0, ids.flatten()).view(*ids.shape, -1)


def _add(table: Tensor, ids: Tensor, rows: Tensor) -> None:
    table.index_add_(0, ids.flatten(), rows.flatten(0, 1))


def _loss(score: Tensor, weight: Tensor, right: int) -> float:
    """The mean over the right pairs, which are the first ``right`` columns."""
    sign = torch.ones(score.shape[2])
    sign[right:] = -1
    total = (weight * F.logsigmoid(score * sign)).sum()
    return float(-total / weight[..., :right].sum().clamp_(min=1))
