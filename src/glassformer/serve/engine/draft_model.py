"""A small model that guesses for a large one, over pages of its own with the same numbers.

What it guesses decides nothing but speed, so its pages need no care: it reads a sequence from the
beginning whenever the sequence got new pages, and writes the same keys again where pages are
shared.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from ...core import config
from ...core.errors import need
from ...core.nn import Model
from ...fast.kernels import PAGE
from .runner import PagedRunner
from .sequence import Chunk, Sequence, sample

SHARE = 0.3  # of guesses that have to be right, lately, for more of them to pay


@dataclass
class DraftModel:
    """Guesses by a model of the same vocabulary, drawn with the random numbers of the very places
    that are guessed."""

    runner: PagedRunner
    vocab_size: int | None
    step_tokens: int
    most: int = 4
    # number of tokens of each sequence that are in its pages
    computed: dict[Sequence, int] = field(default_factory=dict)

    def released(self, sequence: Sequence) -> None:
        """Forgets a sequence whose pages were freed."""
        self.computed.pop(sequence, None)

    def restart(self) -> None:
        """Forgets all sequences."""
        self.computed.clear()

    def propose(self, sequences: Seq[Sequence]) -> None:
        """Set ``draft`` of sequences that are about to draw a token, where their pages have
        room."""
        chunks = list[Chunk]()
        tokens_left = self.step_tokens
        for sequence in sequences:
            start = self.computed.get(sequence, 0)
            count = min(tokens_left, len(sequence.ids) - start)
            if count > 0 and len(sequence.ids) <= self._room(sequence):
                ready = start + count == len(sequence.ids) and self._guess_count(sequence) > 0
                ids = sequence.ids[start : start + count]
                chunks.append(Chunk(sequence, start, ids, 0, ready, [count - 1]))
                tokens_left -= count
        number = 0
        while chunks:
            logits = self.runner.forward(chunks)
            if number == 0:
                for chunk in chunks:
                    self.computed[chunk.sequence] = chunk.start + len(chunk.tokens)
            index = [row for row, chunk in enumerate(chunks) if chunk.finishes]
            drawing = [chunks[row].sequence for row in index]
            if not drawing:
                return
            tokens = sample(drawing, logits[index], self.vocab_size, number).tolist()
            for sequence, token in zip(drawing, tokens, strict=True):
                sequence.draft.append(token)
            chunks = [
                Chunk(sequence, len(sequence.ids) + number, sequence.draft[-1:], 0, True, [0])
                for sequence in drawing
                if self._guess_count(sequence) > number + 1
            ]
            number += 1

    def _room(self, sequence: Sequence) -> int:
        """Number of tokens that its pages and the draft model's context hold."""
        return min(len(sequence.pages) * PAGE, self.runner.cache.context)

    def _guess_count(self, sequence: Sequence) -> int:
        """Number of tokens to guess: as many as fit in pages and answer, fewer where guesses were
        wrong."""
        fits = self._room(sequence) - len(sequence.ids) + 1
        lookup = sequence.lookup
        most = self.most if lookup is None or lookup.share >= SHARE else 1
        return min(most, fits, sequence.max_tokens - len(sequence.tokens) - 1)


def check_draft(draft: Model, model: Model) -> None:
    """UserError for a model that cannot guess for the other."""
    cfg = draft.config
    target_cfg = model.config
    stack = (
        isinstance(cfg, config.Decoder)
        and isinstance(cfg.decoder, config.Stack)
        and cfg.head is not None
    )
    need(
        stack and isinstance(target_cfg, config.Decoder),
        "A draft model is a decoder with attention, for another one.",
    )
    same_vocab = cfg.embed.vocab == target_cfg.embed.vocab
    need(
        same_vocab,
        f"The draft model knows {cfg.embed.vocab} tokens and the model {target_cfg.embed.vocab}; "
        "give one of its kind.",
    )
