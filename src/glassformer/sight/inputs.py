"""A text as a model reads it: ids with the tokens before and after them, and what a tape changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from ..core import config
from ..core.errors import UserError, must_be_known, need
from ..core.nn import Model, Tape
from ..core.nn.encoders import shifted
from ..core.nn.finite import must_be_finite
from ..core.nn.hooks import Edit
from ..core.nn.model import inference
from ..core.tokenizer.framing import document_start, source_frame, target_start
from .reading import Edits, apply

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer

Text: TypeAlias = str | Sequence[int] | Tensor
BLANK = "___"  # an encoder's mask token, as `fill` takes it


def inputs(
    model: Model,
    tokenizer: Tokenizer | None,
    text: Text,
    source: Text | None,
    edits: Edits,
) -> tuple[Tensor, Tensor | None, Mapping[str, Edit]]:
    """Model inputs, (batch, length) of the text and of an encoder-decoder's source, and a
    tape's edits."""
    cfg: Any = model.config
    pair = cfg.has_source
    if pair and source is None and (cfg.pool or cfg.token_head):  # both sides read one text
        source = token_ids(model, tokenizer, text)
        text = shifted(source, None, cfg.start)
    need(
        not pair or source is not None,
        "An encoder-decoder reads two texts; give the encoder's as source (--source).",
    )
    need(pair or source is None, "Only an encoder-decoder has a source; leave it out.")
    tokens = token_ids(model, tokenizer, text, second=pair)
    source_ids = None if source is None else token_ids(model, tokenizer, source)
    return apply(edits, model, tokens, source_ids, tokenizer) if edits else (tokens, source_ids, {})


@dataclass(frozen=True)
class Read:
    """Inputs of a model: ids (1, T) and an encoder-decoder's source, and what a tape is to
    change."""

    tokens: Tensor
    source: Tensor | None
    edits: Mapping[str, Edit]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return (self.tokens,) if self.source is None else (self.tokens, self.source)

    def run(self, model: Model, tape: Tape) -> Any:
        """The output of one pass without logits; UserError where it is NaN."""
        with inference(model):
            output = model(*self.inputs, tape=tape, logits="none")
            must_be_finite(model, output.hidden)
        return output


def prepare(
    model: Model,
    tokenizer: Tokenizer | None,
    text: Text,
    source: Text | None = None,
    edits: Edits = (),
) -> Read:
    """The text as the model reads it; in an encoder's text ``___`` is its mask token.

    Raises UserError for what the model cannot read, for several texts at once, for a source that is
    missing or that nobody reads, and for an edit of what is not there.
    """
    text = blanks_masked(model, tokenizer, text)
    inputs_read = Read(*inputs(model, tokenizer, text, source, edits))
    for ids in inputs_read.inputs:
        need(len(ids) == 1, f"There are {len(ids)} texts; give one text at a time.")
    return inputs_read


def blanks_masked(model: Model, tokenizer: Tokenizer | None, text: Text) -> Text:
    """The ids of an encoder's text with ``___`` or mask tokens in it; anything else as it is."""
    encoder = model.config.main_body == "encoder"
    if encoder and isinstance(text, str) and tokenizer and tokenizer.mask is not None:
        mark = tokenizer.token(tokenizer.mask)
        text = text.replace(BLANK, mark)
        if mark in text:
            return tokenizer.encode_pair(text, special=True)[0]
    return text


def token_ids(
    model: Model,
    tokenizer: Tokenizer | None,
    text: Text,
    second: bool = False,
    truncate: bool = False,
) -> Tensor:
    """The text as (batch, length) ids, cut at the context if ``truncate``, else refused where it is
    longer.

    ``second`` is the text that a decoder writes beside a source.
    """
    cfg = model.config
    if isinstance(text, str):
        if tokenizer is None:
            raise UserError("A text needs a tokenizer; give one, or give the text as token ids.")
        reads, before, after = text_frame(cfg, tokenizer, second)
        tokens = torch.tensor([[*before, *reads.encode(text), *after]], dtype=torch.long)
    else:
        tokens = torch.atleast_2d(torch.as_tensor(text))  # type: ignore[no-untyped-call]
    if tokens.numel() == 0:
        raise UserError("The text is empty; give at least one token.")
    vocab = (cfg.embed if second else cfg.input_embed).vocab
    must_be_known(tokens.flatten().tolist(), vocab)
    tokens = tokens[:, : cfg.context] if truncate else tokens
    if tokens.shape[-1] > cfg.context:
        raise UserError(
            f"The text has {tokens.shape[-1]} tokens and the model's context is "
            f"{cfg.context}; shorten it."
        )
    return tokens.to(next(model.parameters()).device)


def text_frame(
    cfg: config.Model, tokenizer: Tokenizer, second: bool = False
) -> tuple[Tokenizer, list[int], list[int]]:
    """The tokenizer of a text, and the ids before and after it when a model reads it.

    ``second`` as in ``token_ids``.
    """
    if second:
        return tokenizer, target_start(tokenizer, cfg), []
    if cfg.has_source:
        return tokenizer.for_source, *source_frame(tokenizer.for_source)
    decoder = cfg.main_body == "decoder"
    first = document_start(tokenizer) if decoder else tokenizer.bos
    last = None if decoder else tokenizer.eos
    before, after = ([] if id is None else [id] for id in (first, last))
    return tokenizer, before, after
