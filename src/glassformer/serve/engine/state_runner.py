"""Chunks through models whose decoders keep states rather than pages: recurrent cells, mixers of a user's own, or
elsewhere than on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from ...core.nn import Cache, EncoderDecoder, Memory, Model, Output
from ...core.nn.model import inference
from .runner import Runner, keep_records, packed_tape
from .sequence import Chunk


class StateRunner(Runner[Memory]):
    """A decoder of recurrent cells, or with token mixers that keep states: a cache and a pass of
    its own for each sequence."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.caches: dict[int, Cache] = {}  # by page

    def forward(self, chunks: Seq[Chunk]) -> Tensor:
        return torch.cat([self._forward(chunk) for chunk in chunks])

    def _forward(self, chunk: Chunk) -> Tensor:
        sequence = chunk.sequence
        page = chunk.sequence.pages[0]
        before = list[int]()
        # none is kept while it is computed: a pass that fails leaves it unusable
        cache = self.caches.pop(page, None)
        if cache is None or cache.length != chunk.start:
            cache = Cache(self.model.config)
            before = sequence.ids[: chunk.start]
        memory = self.source_of(sequence)
        extras = {} if memory is None else {"memory": memory}
        first = len(before)
        tape = packed_tape([chunk], [(first, first + len(chunk.tokens))])
        columns = self.row([first + place for place in chunk.places])
        with inference(self.model):
            out: Output = self.model(
                self.row([before + chunk.tokens]),
                cache=cache,
                tape=tape,
                logits=columns,
                **extras,
            )
        keep_records([chunk], tape)
        self.caches[page] = cache
        return out.logits[0].float()

    def copy(self, source: int, target: int) -> None:
        self.caches[target] = copy.deepcopy(self.caches[source])

    def read(self, source: tuple[int, ...]) -> Memory:
        """The encoder's output."""
        assert isinstance(self.model, EncoderDecoder)
        with inference(self.model):
            return self.model.encode(self.row([source]))

    def restart(self) -> None:
        super().restart()
        self.caches.clear()
