"""Spans that were cut out of running text, for an encoder-decoder.

text     Thank you for inviting me to your party last week
source   Thank you <0> me to your party <1> week        targets  <0> for inviting <1> last </s>
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.config import EncoderDecoder, Model
from ...core.config.objective import Tune
from ...core.config.serial import InnerShare, PositiveFloat, frozen
from ...core.errors import UserError, need
from .documents import SomeTokens, documents

if TYPE_CHECKING:
    from .documents import Array, Batch, Tokenizer

# tokens of a document out of which a span is cut: with a sentinel and an end on both sides it fits
SHORTEST = 4


@frozen
class Span(SomeTokens):
    """The spans that were cut out (Raffel et al. 2020, 3.1.4): ``corruption_rate`` of the tokens.

    ``length`` is a span's on average. Each is a sentinel in the source; the target is every
    sentinel and what it stands for.
    """

    corruption_rate: InnerShare = 0.15  # share of tokens that are cut out
    length: PositiveFloat = 3.0  # tokens of a span, on average

    shapes = (EncoderDecoder,)
    specials = ("<pad>", "</s>", "<unk>", *(f"<extra_id_{number}>" for number in range(100)))

    def check(
        self, model: Model, tokenizer: Any = None, *, examples: bool, tune: Tune | None = None
    ) -> None:
        """UserError for a tokenizer without sentinels too."""
        super().check(model, tokenizer, examples=examples)
        if tokenizer is not None:
            _sentinels_of(tokenizer)

    def prepare(
        self, batch: Batch, random: np.random.Generator, tokenizer: Tokenizer | None
    ) -> Batch:
        """Cut spans out of each document: a sentinel stands for each in the source, the decoder
        writes what was there.

        Fewer and longer ones where there are not enough sentinels. Documents below four tokens are
        left out. Raises UserError when the tokenizer lacks sentinels or an end, or when no document
        is long enough.
        """
        from ...core.tokenizer.framing import decoder_start, end_of_target
        from ..encoded import Encoded, Side
        from ..example_batches import batch_of

        sentinels = np.array(_sentinels_of(tokenizer))
        assert tokenizer is not None
        eos, start = end_of_target(tokenizer), decoder_start(tokenizer)
        rows, context = batch.tokens.shape
        sources: list[Array] = []
        targets: list[Array] = []
        row: list[int] = []  # in which each stands
        flat, batch_documents = batch.tokens.flatten().numpy(), documents(batch)
        for first, length in zip(batch_documents.starts, batch_documents.lengths, strict=True):
            ids = flat[first : first + length]
            ids = ids[int(ids[0] == tokenizer.bos) : length - int(ids[-1] == eos)]
            if len(ids) >= SHORTEST:
                source, target = cut_out(ids, random, self.corruption_rate, self.length, sentinels)
                sources.append(np.append(source, eos))
                targets.append(np.append(target, eos))
                row.append(first // context)
        if not sources:
            raise UserError(
                f"No document of a batch has the {SHORTEST} tokens that Span needs; "
                "give longer documents."
            )
        written = [np.append(start, target[:-1]) for target in targets]
        pos, source_pos = ([np.arange(len(ids)) for ids in side] for side in (written, sources))
        sides = (
            Side.of(tokens=written, targets=targets, pos=pos),
            Side.of(source=sources, source_pos=source_pos),
        )
        places = [np.flatnonzero(np.array(row) == number) for number in range(rows)]
        return batch_of(Encoded("spans", sides), places, context, full="source")


def _sentinels_of(tokenizer: Tokenizer | None) -> list[int]:
    sentinels = [] if tokenizer is None else tokenizer.sentinels
    sentence = (
        "This tokenizer has no sentinels (<extra_id_0> ...) to stand for spans; use one "
        "that has, as T5's, or"
    )
    need(bool(sentinels), f'{sentence} train one with "<extra_id_0>" and on.')
    return sentinels


def cut_out(
    ids: Array, random: np.random.Generator, rate: float, length: float, sentinels: Array
) -> tuple[Array, Array]:
    """A document with sentinels for spans, and every sentinel with its span; both, with an end, no
    longer than it.

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
