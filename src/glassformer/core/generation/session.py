"""A batch of rows on its way through a model: prefill, decode, select.

B rows, T tokens, S source tokens, V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .. import registry
from ..errors import need
from ..memory import available_memory, gibibytes
from ..nn import Cache, Memory, Model, Tape
from ..nn.model import inference
from .sample import random_generator

MANY = 32  # tokens that repay copies of the weights in another order
MANY_BF16 = 256  # of a prompt in bf16: prepacked weights gain less there for many rows at once

Reader: TypeAlias = Callable[[Model, Tensor, Tensor | None], tuple[Tensor, Cache]]
"""(model, tokens (B, T), positions or None) -> logits (B, V) of the last column, and the cache."""


class Session:
    """A model with its cache, the encoder's memory and each row's next position.

    ``pos`` (B, 1) holds each row's next position once rows differ; None while the cache's own count
    does. A ``tape`` edits what the model computes; a ``reader`` reads prompts instead of the model
    alone (scale/prefill.py). In a ``search`` rows may double. ``prepare`` sets ``view``, whose
    ``model`` computes in the model's place while it is ``current()``, and ``paged``: the rows, once
    their keys and values have left the cache.
    """

    def __init__(
        self,
        model: Model,
        tape: Tape | None = None,
        reader: Reader | None = None,
        search: bool = False,
    ) -> None:
        self.reader = reader
        self.search = search
        self.model, self.cache, self.tape = model, Cache(model.config), tape
        self.memory: Memory | None = None
        self.source_of: list[int] = []  # of each row, where there is a memory
        self.pos: Tensor | None = None
        self.plain = (
            tape is None and reader is None and not model.config.embed.previous_token_embeddings
        )
        self.view: Any = None
        self.paged: Any = None

    def prefill(
        self, starts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None, samples: int
    ) -> Tensor:
        """The logits (B, V) that follow each of ``starts``, every row ``samples`` times over.

        ``sources`` are what an encoder-decoder's encoder reads, one for each row.
        """
        weight = next(self.model.parameters())
        tokens, pos = pad_left(starts, weight.device)
        self.prepare(tokens.numel())
        if sources is not None:
            source, source_pos = pad_left(sources, weight.device)
            with inference(self.model):
                self.memory = self.model.encode(source, pos=source_pos, tape=self.tape)
            self.source_of = [*range(len(sources))]
        if self.reader is None:
            logits = self._last_logits(tokens, pos)
        else:
            logits, self.cache = self.reader(self.model, tokens, pos)
        self.pos = None if pos is None else pos[:, -1:] + 1
        if samples > 1:
            self._must_fit(samples, logits)
            rows = [row for row in range(len(starts)) for _ in range(samples)]
            self.select(rows)
            logits = logits[rows]
        return logits

    def _must_fit(self, samples: int, logits: Tensor) -> None:
        """UserError where memory has no room for so many rows of each prompt: two copies of the
        cache, and the logits, their log-probabilities and a choice of them."""
        states = [value for pair in self.cache.layers for x in pair for value in vars(x).values()]
        tensors = [x for value in states for x in (value if type(value) is tuple else (value,))]
        cached = sum(x.nbytes for x in tensors if isinstance(x, Tensor))
        needed, free = samples * (2 * cached + 3 * logits.nbytes), available_memory(logits.device)
        need(
            free is None or needed <= free,
            f"{samples:,} continuations of each prompt take {gibibytes(needed)} and "
            f"{gibibytes(free or 0)} are free; take fewer, or fewer prompts at once.",
        )

    def decode(self, tokens: Tensor) -> Tensor:
        """The logits (B, V) after one more token per row, ``tokens`` (B,)."""
        if self.paged is not None:
            with inference(self.model):
                logits: Tensor = self.paged.decode(self._computing(), tokens).float()
                return logits
        logits = self._last_logits(tokens[:, None], self.pos)
        if self.pos is not None:
            self.pos = self.pos + 1
        return logits

    def select(self, rows: Sequence[int], same_prompts: bool = False) -> None:
        """Row i becomes what row ``rows[i]`` was; the others are left out.

        ``same_prompts``: rows only change places with others of the same prompt, so the encoder's
        side can stay.
        """
        if self.paged is not None:
            self.paged.select(rows)
            return
        if self.memory is not None:
            self.source_of = [self.source_of[row] for row in rows]
        index = torch.tensor(rows, device=next(self.model.parameters()).device)
        self.cache.select(index, cross=not same_prompts)
        if self.tape is not None:
            self.tape.select(index)
        if self.pos is not None:
            self.pos = self.pos[index]
        if self.memory is not None and not same_prompts:
            hidden, pos = self.memory.hidden, self.memory.pos
            self.memory = Memory(
                hidden[index], pos if pos.shape[0] == 1 else pos[index], self.memory.contiguous
            )

    def prepare(self, tokens: int, steps: int = 0) -> None:
        """Prepare for so many ``tokens`` by what rooms register (fast/acceleration.py): those of a
        prompt, or all that may come in ``steps`` after it.

        Not in the middle of a training, whose next step would undo it.
        """
        is_bf16 = next(self.model.parameters()).dtype == torch.bfloat16
        many = MANY_BF16 if is_bf16 and not steps else MANY
        if tokens >= many and not self.model.training:
            for room in registry.load("acceleration"):
                room.prepare(self, steps)

    def close(self) -> None:
        if self.paged is not None:
            self.paged.close()

    def _computing(self) -> Model:
        """The view with prepared weights, as long as these are the model's."""
        return self.view.model if self.view is not None and self.view.current() else self.model

    def _last_logits(self, tokens: Tensor, pos: Tensor | None) -> Tensor:
        """tokens (B, T) -> fp32 logits (B, V) after the last column."""
        extras: dict[str, Any] = {} if self.memory is None else {"memory": self.memory}
        with inference(self.model):
            logits: Tensor = self._computing()(
                tokens, pos=pos, cache=self.cache, tape=self.tape, logits="last", **extras
            ).logits
        return logits[:, -1].float()


def pad_left(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The rows as one batch that ends in one column: tokens and positions (B, T), -1 for none.

    Positions are None when no row needs padding.
    """
    longest = max(map(len, rows))
    gaps = [longest - len(row) for row in rows]
    tokens = torch.tensor(
        [[0] * gap + list(row) for gap, row in zip(gaps, rows, strict=True)], device=device
    )
    if not any(gaps):
        return tokens, None
    places = torch.arange(longest, device=device) - torch.tensor(gaps, device=device)[:, None]
    return tokens, places.clamp(min=-1)


def closing_ranks(alive: Sequence[bool]) -> list[int]:
    """The places that are alive, the last ones moved into the gaps: few rows of a cache move."""
    last = [place for place in range(len(alive)) if alive[place]]
    return [place if alive[place] else last.pop() for place in range(len(last))]


def uniform_numbers(rows: Sequence[Any], seed: int, length: int) -> Tensor:
    """Random numbers of each row's draws (B, length), by seed, prompt and number of the prompt's."""
    equals: Counter[tuple[int, ...]] = Counter()
    uniform = []
    for row in rows:
        ids = tuple(row.prompt)
        uniform.append(torch.rand(length, generator=random_generator(seed, equals[ids], ids)))
        equals[ids] += 1
    return torch.stack(uniform)
