"""The two shapes with an encoder: alone, as BERT is, and beside a decoder, as in the 2017 paper.

B batch, T tokens, S source tokens, C model dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import config as configs
from ..errors import UserError
from .build import build, builds
from .cache import Cache
from .flow import Memory, document_starts
from .hooks import Tape
from .model import Model, Output, Want, body


@builds(configs.Encoder)
class Encoder(Model):
    """head(encoder(embed(tokens))): every token sees every token."""

    config: configs.Encoder

    def __init__(self, cfg: configs.Encoder) -> None:
        super().__init__(cfg)
        self.encoder = body(cfg, "encoder")

    def forward(
        self,
        tokens: Tensor,
        *,
        pos: Tensor | None = None,
        document_ids: Tensor | None = None,
        segments: Tensor | None = None,
        tape: Tape | None = None,
        logits: Want = "all",
    ) -> Output:
        """tokens (B, T) -> Output; ``segments`` (B, T) as in BERT's sentence pairs."""
        flow = self.flow(tokens, pos, document_ids, None, tape)
        return self.finish(self.encoder(self.embed(tokens, flow, segments), flow), flow, logits)


def shifted(tokens: Tensor, pos: Tensor | None, start: tuple[int, ...]) -> Tensor:
    """tokens (B, T) one place later: each document begins with the first token of ``start``, with its
    own last token where there is none (mBART)."""
    if pos is None:
        pos = torch.arange(tokens.shape[1], device=tokens.device)
    pos = pos.expand_as(tokens)
    opens, behind = document_starts(pos), tokens.roll(1, 1)
    if start:
        return behind.masked_fill(opens, start[0])
    real = (pos >= 0).flatten().nonzero()[:, 0]
    first = opens.flatten()[real]
    last = torch.cat((first[1:], first.new_ones(1)))
    return behind.masked_scatter(opens, tokens.flatten()[real[last]])


@builds(configs.EncoderDecoder)
class EncoderDecoder(Model):
    """head(decoder(embed(tokens), memory=encoder(embed(source)))), as in the 2017 paper."""

    config: configs.EncoderDecoder

    def __init__(self, cfg: configs.EncoderDecoder) -> None:
        super().__init__(cfg)
        self.source_embed = (
            build(cfg.source_embed, cfg.embed_dim("encoder")) if cfg.source_embed else None
        )
        self.encoder = body(cfg, "encoder")
        self.decoder = body(cfg, "decoder")

    def encode(
        self,
        source: Tensor,
        *,
        pos: Tensor | None = None,
        document_ids: Tensor | None = None,
        tape: Tape | None = None,
    ) -> Memory:
        """source (B, S) -> what the decoder looks at."""
        flow = self.flow(source, pos, document_ids, tape=tape)
        flow.embed_path = "source_embed"
        embed = self.embed if self.source_embed is None else self.source_embed
        hidden = self.encoder(embed(source, flow), flow)
        alone = pos is None and document_ids is None
        return Memory(hidden, flow.pos, alone, document_ids, flow.aux, flow.metrics)

    def forward(
        self,
        tokens: Tensor,
        source: Tensor | None = None,
        *,
        pos: Tensor | None = None,
        document_ids: Tensor | None = None,
        source_pos: Tensor | None = None,
        source_document_ids: Tensor | None = None,
        memory: Memory | None = None,
        cache: Cache | None = None,
        tape: Tape | None = None,
        logits: Want = "all",
    ) -> Output:
        """tokens (B, T) and source (B, S), or the memory made of it -> Output.

        Packed pairs: ``document_ids`` and ``source_document_ids`` give a pair the same number on
        both sides.

        Without a source, a model that ends in labels reads ``tokens`` on both sides, the decoder one
        place behind the encoder (BART, T5).
        """
        if source is None and memory is None and (self.config.pool or self.config.token_head):
            source, source_pos, source_document_ids = tokens, pos, document_ids
            tokens = shifted(tokens, pos, self.config.start)
        if (source is None) == (memory is None):
            raise UserError(
                "an encoder-decoder takes either source tokens or a memory; give one of them."
            )
        if source is not None:
            memory = self.encode(
                source, pos=source_pos, document_ids=source_document_ids, tape=tape
            )
        flow = self.flow(tokens, pos, document_ids, cache, tape)
        flow.memory = memory
        if source is not None and source.shape == tokens.shape:
            flow.tokens = source  # the text that labels are of
        if memory is not None:
            flow.aux, flow.metrics = dict(memory.aux), dict(memory.metrics)
            if tape is not None and tape.place is not None:
                tape.place.source_pos = memory.pos
        return self.finish(
            self.decoder(self.embed(tokens, flow), flow, cache), flow, logits, cache is not None
        )
