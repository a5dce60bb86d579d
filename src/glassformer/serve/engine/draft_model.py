"""A small model that guesses for a large one, over pages of its own with the same numbers.

What it guesses decides nothing but speed, so its pages need no care: it reads a sequence from the
beginning whenever the sequence got new pages, and writes the same keys again where pages are
shared.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...core import config
from ...core.errors import need
from ...core.nn import Model
from .draft import PromptLookup
from .generated_sequence import GeneratedSequence, sample
from .runner import PagedRunner
from .scheduler import Chunk, TokenSequence

SHARE = 0.3  # of guesses that have to be right, lately, for more of them to pay


class DraftModel:
    """Guesses by a model of the same vocabulary, drawn with the random numbers of the very places
    that are guessed."""

    def __init__(
        self, runner: PagedRunner, vocab_size: int | None, step_tokens: int, most: int = 4
    ) -> None:
        self.runner, self.vocab_size, self.step_tokens, self.most = (
            runner,
            vocab_size,
            step_tokens,
            most,
        )
        # how many tokens of each sequence are in its pages
        self.size, self.computed = 32, dict[TokenSequence, int]()

    def released(self, sequence: TokenSequence) -> None:
        """Forgets a sequence whose pages were freed."""
        self.computed.pop(sequence, None)

    def restart(self) -> None:
        """Forgets all sequences."""
        self.computed.clear()

    def propose(self, sequences: Sequence[TokenSequence]) -> None:
        """Set ``draft`` of sequences that are about to draw a token, where their pages have
        room."""
        chunks, tokens_left = list[Chunk](), self.step_tokens
        for sequence in sequences:
            start = self.computed.get(sequence, 0)
            count = min(tokens_left, len(sequence.tokens) - start)
            if count > 0 and len(sequence.tokens) <= min(
                len(sequence.pages) * self.size, self.runner.cache.context
            ):
                ready = start + count == len(sequence.tokens) and self._guess_count(sequence) > 0
                chunks.append(
                    Chunk(sequence, start, sequence.tokens[start : start + count], 0, ready)
                )
                tokens_left -= count
        place = 0
        while chunks:
            logits = self.runner.forward(chunks, [[len(chunk.tokens) - 1] for chunk in chunks])
            ready_chunks, rows = (
                [chunk for chunk in chunks if chunk.finishes],
                list[GeneratedSequence](),
            )
            for chunk in chunks if place == 0 else ():
                self.computed[chunk.sequence] = chunk.start + len(chunk.tokens)
            if not ready_chunks:
                return
            rows = [chunk.sequence.owner for chunk in ready_chunks]
            index = torch.tensor([place for place, chunk in enumerate(chunks) if chunk.finishes])
            for chunk, token in zip(
                ready_chunks,
                sample(rows, logits[index], self.vocab_size, place).tolist(),
                strict=True,
            ):
                chunk.sequence.draft.append(token)
            place += 1
            chunks = [
                Chunk(
                    chunk.sequence,
                    len(chunk.sequence.tokens) + place - 1,
                    chunk.sequence.draft[-1:],
                    0,
                    True,
                )
                for chunk in ready_chunks
                if self._guess_count(chunk.sequence) > place
            ]

    def _guess_count(self, sequence: TokenSequence) -> int:
        """Number of tokens to guess: as many as fit in pages and answer, fewer where guesses were
        wrong."""
        row: GeneratedSequence = sequence.owner
        lookup: PromptLookup | None = row.lookup
        fits = (
            min(len(sequence.pages) * self.size, self.runner.cache.context)
            - len(sequence.tokens)
            + 1
        )
        most = self.most if lookup is None or lookup.share >= SHARE else 1
        return min(most, fits, row.max_tokens - len(row.tokens) - 1)


def check_draft(draft: Model, model: Model) -> None:
    """UserError for a model that cannot guess for the other."""
    cfg, target_cfg = draft.config, model.config
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
