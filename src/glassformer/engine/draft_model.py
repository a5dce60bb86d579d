"""A small model that guesses for a large one, over pages of its own with the same numbers.

What it guesses decides nothing but speed, so its pages need no care: it reads a text from the
beginning whenever the text got new pages, and writes the same keys again where pages are shared.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import config
from ..errors import need
from ..nn import Model
from .continuation import Continuation, drawn
from .draft import PromptLookup
from .runner import PagedRunner
from .scheduler import Chunk, Text

SHARE = 0.3  # of guesses that have to be right, lately, for more of them to pay


class DraftModel:
    """Guesses by a model of the same vocabulary: drawn with the luck of the very places that are
    guessed."""

    def __init__(
        self, runner: PagedRunner, known: int | None, step_tokens: int, most: int = 4
    ) -> None:
        self.runner, self.known, self.step_tokens, self.most = runner, known, step_tokens, most
        # how many tokens of each text are in its pages
        self.size, self.read = 32, dict[Text, int]()

    def released(self, text: Text) -> None:
        """A text has no pages any more."""
        self.read.pop(text, None)

    def restart(self) -> None:
        """No text has pages any more."""
        self.read.clear()

    def propose(self, texts: Sequence[Text]) -> None:
        """Set ``draft`` of texts that are about to draw a token, where their pages have room."""
        chunks, left = list[Chunk](), self.step_tokens
        for text in texts:
            start = self.read.get(text, 0)
            count = min(left, len(text.tokens) - start)
            if count > 0 and len(text.tokens) <= min(
                len(text.pages) * self.size, self.runner.cache.context
            ):
                ready = start + count == len(text.tokens) and self._room(text) > 0
                chunks.append(Chunk(text, start, text.tokens[start : start + count], 0, ready))
                left -= count
        place = 0
        while chunks:
            logits = self.runner.read(chunks, [[len(chunk.tokens) - 1] for chunk in chunks])
            going, rows = [chunk for chunk in chunks if chunk.finishes], list[Continuation]()
            for chunk in chunks if place == 0 else ():
                self.read[chunk.text] = chunk.start + len(chunk.tokens)
            if not going:
                return
            rows = [chunk.text.owner for chunk in going]
            index = torch.tensor([place for place, chunk in enumerate(chunks) if chunk.finishes])
            for chunk, token in zip(
                going, drawn(rows, logits[index], self.known, place).tolist(), strict=True
            ):
                chunk.text.draft.append(token)
            place += 1
            chunks = [
                Chunk(
                    chunk.text, len(chunk.text.tokens) + place - 1, chunk.text.draft[-1:], 0, True
                )
                for chunk in going
                if self._room(chunk.text) > place
            ]

    def _room(self, text: Text) -> int:
        """How many tokens to guess: as many as fit in pages and answer, fewer where they were
        wrong."""
        row: Continuation = text.owner
        lookup: PromptLookup | None = row.lookup
        fits = min(len(text.pages) * self.size, self.runner.cache.context) - len(text.tokens) + 1
        most = self.most if lookup is None or lookup.share >= SHARE else 1
        return min(most, fits, row.room - len(row.tokens) - 1)


def check_draft(draft: Model, model: Model) -> None:
    """UserError for a model that cannot guess for the other."""
    cfg, ours = draft.config, model.config
    stack = (
        isinstance(cfg, config.Decoder)
        and isinstance(cfg.decoder, config.Stack)
        and cfg.head is not None
    )
    need(
        stack and isinstance(ours, config.Decoder),
        "A draft model is a decoder with attention, for another one.",
    )
    same = cfg.embed.vocab == ours.embed.vocab
    need(
        same,
        f"The draft model knows {cfg.embed.vocab} tokens and the model {ours.embed.vocab}; "
        "give one of its kind.",
    )
