"""What a model has read of each row: its cache, the encoder's memory, the next positions.

B rows, T tokens, S source tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ..cost import available_memory
from ..nn import Cache, EncoderDecoder, Memory, Model
from ..nn.packed import Copies, pack, packable, packed
from .prompt import pad_left

MANY = 32  # tokens that repay another look at the weights
LONG = 256  # and tokens of a prompt that do in bf16, where a packed copy gains less for many rows at once


@contextmanager
def at_rest(model: Model) -> Iterator[None]:
    """No gradients and no dropout meanwhile, even in the middle of a training."""
    training = model.training
    if training:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if training:
            model.train()


class Reading:
    """A batch of rows on their way through a model, one pass over the prompts and then one token at a time.

    ``pos`` (B, 1) tells each row's next position once rows differ; None while the cache's own count does.
    """

    def __init__(self, model: Model) -> None:
        self.model, self.cache = model, Cache(model)
        weight = next(model.parameters())
        self.device, self.repays = weight.device, LONG if weight.dtype == torch.bfloat16 else MANY
        self.memory: Memory | None = None
        self.pos: Tensor | None = None
        self.copies: Copies = {}  # packed weights, once they are worth it
        self.settled = False

    def settle(self, new: bool = True) -> None:
        """Prepare for many tokens: on a CPU, weights in the order its kernels read fastest, where memory has room.

        Without ``new`` only what an earlier reading left is checked and used. Not in the middle of a training, whose
        next step would undo it.
        """
        if self.device.type == "cpu" and not self.model.training and not self.settled:
            room = available_memory() if new else 0
            self.copies = pack(self.model, None if room is None else room // 2)
            self.settled = new or len(self.copies) == sum(1 for _ in packable(self.model))

    def begin(self, starts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None, samples: int) -> Tensor:
        """The logits (B, V) that follow each of ``starts``, every row ``samples`` times over.

        ``sources`` are what an encoder-decoder's encoder reads, one for each row.
        """
        tokens, pos = pad_left(starts, self.device)
        if tokens.numel() >= self.repays:
            self.settle(new=False)
        with at_rest(self.model):
            if sources is not None:
                assert isinstance(self.model, EncoderDecoder)
                source, source_pos = pad_left(sources, self.device)
                self.memory = self.model.encode(source, pos=source_pos)
            logits = self._pass(tokens, pos)
            self.pos = None if pos is None else pos[:, -1:] + 1
            if samples > 1:
                rows = torch.arange(len(starts), device=self.device).repeat_interleave(samples)
                self.keep(rows)
                logits = logits[rows]
        return logits

    def go_on(self, tokens: Tensor) -> Tensor:
        """The logits (B, V) after one more token per row, ``tokens`` (B,)."""
        with at_rest(self.model):
            logits = self._pass(tokens[:, None], self.pos)
        if self.pos is not None:
            self.pos = self.pos + 1
        return logits

    def keep(self, rows: Tensor, among_samples: bool = False) -> None:
        """Row i becomes what row ``rows[i]`` was; the others are let go.

        ``among_samples``: rows only change places with others of the same prompt, so the encoder's side can stay.
        """
        self.cache.reorder(rows, crossed=not among_samples)
        if self.pos is not None:
            self.pos = self.pos[rows]
        if self.memory is not None and not among_samples:
            hidden, pos = self.memory.hidden, self.memory.pos
            self.memory = Memory(hidden[rows], pos if pos.shape[0] == 1 else pos[rows], self.memory.contiguous)

    def _pass(self, tokens: Tensor, pos: Tensor | None) -> Tensor:
        """tokens (B, T) -> fp32 logits (B, V) after the last column."""
        encoded = {} if self.memory is None else {"memory": self.memory}
        with packed(self.copies):
            logits = self.model(tokens, pos=pos, cache=self.cache, logits="last", **encoded).logits
        last: Tensor = logits[:, -1].float()
        return last
