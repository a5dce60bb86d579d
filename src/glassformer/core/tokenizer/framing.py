"""Special tokens around a text: one page, so that training, generation and evaluation agree.

document          <s> t t t </s>      or t t t </s>, whose end opens the next one, where both are the same token
encoder           [CLS] a a [SEP] b [SEP]      as the tokenizer's own file says
encoder-decoder   source  s s s </s>           target  <s> t t t </s>, opened by the padding where there is no <s>
decoder           question and answer  <s> s s s [SEP] t t t </s>, parted by what opens a target without [SEP]
"""

from __future__ import annotations

from collections.abc import Sequence

from ..config import Model
from ..errors import UserError, need
from .tokenizer import Tokenizer


def document_start(tokenizer: Tokenizer) -> int | None:
    """The token that opens each document: ``bos``, unless ``eos`` of the one before does."""
    return None if tokenizer.bos == tokenizer.eos else tokenizer.bos


def text_start(tokenizer: Tokenizer) -> int | None:
    """The token before a text's first: ``bos``, or ``eos``, which closes the document before."""
    return tokenizer.eos if tokenizer.bos is None else tokenizer.bos


def target_start(tokenizer: Tokenizer | None, model: Model | None = None) -> list[int]:
    """First tokens of a decoder beside an encoder: the config's ``start``, else bos or pad (T5)."""
    ids = (getattr(tokenizer, name, None) for name in ("bos", "pad"))
    return [*getattr(model, "start", ())] or [id for id in ids if id is not None][:1]


def decoder_start(tokenizer: Tokenizer, model: Model | None = None) -> list[int]:
    """``target_start``; UserError where there is none."""
    start = target_start(tokenizer, model)
    missing = "This tokenizer has no bos and no pad token to begin a target with"
    need(start != [], f"{missing}; use one that has.")
    return start


def end_of_target(tokenizer: Tokenizer) -> int:
    """The token that closes a target; UserError where there is none."""
    if tokenizer.eos is None:
        raise UserError(
            "This tokenizer has no end-of-text token to end a target with; use one that has."
        )
    return tokenizer.eos


def source_frame(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Tokens before and after a source: the file's (BART, NLLB) if eos is one, else eos alone."""
    before, after = tokenizer.frame
    if tokenizer.eos in (*before, *after):
        return before, after
    return [], [] if tokenizer.eos is None else [tokenizer.eos]


def source(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Ids for an encoder beside a decoder; no ids stay none, to be refused."""
    before, after = source_frame(tokenizer)
    return [*before, *ids, *after] if ids else []


def question(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Ids that a decoder alone reads first: (bos) source, then sep or the target's first token."""
    bos = document_start(tokenizer)
    parted = decoder_start(tokenizer) if tokenizer.sep is None else [tokenizer.sep]
    return [*([] if bos is None else [bos]), *ids, *parted]
