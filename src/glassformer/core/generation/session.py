"""A batch of rows on its way through a model: prefill, decode, select.

B rows, T tokens, S source tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ...fast.fused import FusedStack, fuse, supports_model
from ...fast.page_pool import PagePool
from ...fast.paged_rows import PagedRows
from ...fast.prepacked import View, prepack
from .. import config
from ..cost import available_memory
from ..nn import Cache, EncoderDecoder, Memory, Model, Tape
from ..nn.inference import inference
from .captured import CapturedStep
from .prompt import pad_left

PREPACK_AFTER = 32  # tokens that repay another look at the weights
PREPACK_AFTER_BF16 = (
    # and tokens of a prompt that do in bf16, where prepacked weights gain less for many rows at
    # once
    256
)

CAPTURE = False
"""Whether decoding on a GPU plays recorded steps (``CapturedStep``). Not run on a GPU yet, hence
off."""

ROOM = 512  # columns of a captured step's cache at first


Reader: TypeAlias = Callable[[Model, Tensor, Tensor | None], tuple[Tensor, Cache]]
"""(model, tokens (B, T), positions or None) -> logits (B, V) after the last column, and the cache
of all of them."""


class Session:
    """A model with its cache, the encoder's memory and each row's next position.

    ``pos`` (B, 1) holds each row's next position once rows differ; None while the cache's own count
    does. A ``tape`` edits what the model computes; a ``reader`` reads prompts instead of the model
    alone (scale/prefill.py). Pages come from ``kept`` where there is one.
    """

    def __init__(
        self,
        model: Model,
        tape: Tape | None = None,
        reader: Reader | None = None,
        page_pool: PagePool | None = None,
    ) -> None:
        self.reader, self.page_pool = reader, page_pool
        self.model, self.cache, self.tape = model, Cache(model.config), tape
        self.memory: Memory | None = None
        self.source_of: list[int] = []  # of each row, where there is a memory
        self.pos: Tensor | None = None
        self.view: View[Model] | None = None  # with prepacked weights, once they are worth it
        plain = tape is None and reader is None and not model.config.embed.previous_token_embeddings
        self.fits = plain and supports_model(model)
        self.one_shape = plain and isinstance(model.config.decoder, config.Stack)  # type: ignore[union-attr]
        self.captured: CapturedStep | None = None  # on a GPU, once CAPTURE is set
        self.read, self.room = 0, 0  # columns that captured steps have filled, and those they have
        self.paged: PagedRows | None = None  # what the cache held, where the blocks in C go on

    def prefill(
        self, starts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None, samples: int
    ) -> Tensor:
        """The logits (B, V) that follow each of ``starts``, every row ``samples`` times over.

        ``sources`` are what an encoder-decoder's encoder reads, one for each row.
        """
        weight = next(self.model.parameters())
        tokens, pos = pad_left(starts, weight.device)
        if tokens.numel() >= (
            PREPACK_AFTER_BF16 if weight.dtype == torch.bfloat16 else PREPACK_AFTER
        ):
            self.prepack(new=False)
        if sources is not None:
            assert isinstance(self.model, EncoderDecoder)
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
            rows = [row for row in range(len(starts)) for _ in range(samples)]
            self.select(rows)
            logits = logits[rows]
        return logits

    def decode(self, tokens: Tensor) -> Tensor:
        """The logits (B, V) after one more token per row, ``tokens`` (B,)."""
        if self.paged is not None:
            with inference(self.model):
                return self.paged.decode(self._computing(), tokens).float()
        if self.captured is not None:
            if self.read >= self.room:
                self.capture()
            self.read += 1
            return self.captured(tokens[:, None])
        logits = self._last_logits(tokens[:, None], self.pos)
        if self.pos is not None:
            self.pos = self.pos + 1
        return logits

    def capture(self) -> None:
        """Decode from now on in steps of one shape, which a GPU records once and plays again.

        The room doubles when it is full, and each time the step is recorded anew.
        """
        # the cache does not see the steps that are played
        self.read = max(self.read, self.cache.length)
        self.room = 2 * max(ROOM // 2, self.room, self.read)
        self.cache.fix(self.room)
        self.pos = None  # the cache's own count does
        self.captured = CapturedStep(lambda tokens: self._last_logits(tokens, None))

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

    def prepack(self, new: bool = True, steps: int = 0) -> None:
        """Prepare for many tokens: on a CPU, weights in the order its kernels read fastest, where
        memory has room.

        Without ``new`` only what an earlier session left is compared and used. With ``steps``,
        after the prompt: so many tokens at most follow. Not in the middle of a training, whose next
        step would undo it.
        """
        if self.model.training:
            return
        if next(self.model.parameters()).device.type != "cpu":
            if CAPTURE and steps and self.one_shape:
                self.capture()
            return
        if self.view is None or not self.view.complete:
            room = available_memory() if new else 0
            self.view = prepack(self.model, None if room is None else room // 2, exact=self.fits)
        if steps and self.fits and self.paged is None:
            fused = fuse(self.view.model)
            if isinstance(fused.decoder, FusedStack):
                self.view = replace(self.view, model=fused)
                rows = len(self.cache.layers[0][0].k)
                after = (
                    torch.full((rows,), self.cache.length) if self.pos is None else self.pos[:, 0]
                )
                args = fused, self.cache, after, steps, self.memory, self.source_of, self.page_pool
                self.paged, self.cache = PagedRows(*args), Cache(self.model.config)
                self.memory = None

    def _computing(self) -> Model:
        """The view with prepacked weights, as long as these are the model's."""
        return self.view.model if self.view is not None and self.view.current() else self.model

    def _last_logits(self, tokens: Tensor, pos: Tensor | None) -> Tensor:
        """tokens (B, T) -> fp32 logits (B, V) after the last column."""
        extras: dict[str, Any] = {} if self.memory is None else {"memory": self.memory}
        with inference(self.model):
            logits: Tensor = self._computing()(
                tokens, pos=pos, cache=self.cache, tape=self.tape, logits="last", **extras
            ).logits
        return logits[:, -1].float()
