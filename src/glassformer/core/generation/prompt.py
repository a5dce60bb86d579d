"""Prompts of a user's as rows of token ids."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import Tensor

from .. import config
from ..config.scaling import longer_hint
from ..errors import UserError, must_be_known, need
from ..tokenizer.framing import document_start, target_start, text_start
from ..tokenizer.framing import source as framed_source

if TYPE_CHECKING:
    from ..tokenizer.tokenizer import Tokenizer

Prompt: TypeAlias = (
    str
    | Sequence[str | None]
    | Sequence[int]
    | Sequence[Sequence[int]]
    | Tensor
    | np.ndarray[Any, Any]
    | None
)

Start: TypeAlias = int | Sequence[int] | None


def end_tokens(eos: int | Collection[int] | None, tokenizer: Tokenizer | None) -> frozenset[int]:
    """The ids that end a text: those given, or else the tokenizer's."""
    if eos is None:
        return frozenset() if tokenizer is None else tokenizer.end_ids
    return frozenset((eos,) if isinstance(eos, int) else eos)


def encode(
    prompt: Prompt,
    tokenizer: Tokenizer | None,
    cfg: config.Model,
    bos: bool | None = None,
    slide: bool = False,
) -> list[list[int]]:
    """The prompts as lists of ids that the model can take.

    For a decoder, ``bos`` None puts the tokenizer's bos before a text when it has one of its own
    (not the same as eos), and None as a prompt is the beginning: bos alone (or eos: in training it
    closes the document before). For an encoder-decoder the prompt is the source, closed by eos
    where there is one. Ids are taken as they are. Raises UserError for an empty prompt, an id out
    of range and a prompt longer than the context, unless that will ``slide``.
    """
    if isinstance(prompt, Tensor | np.ndarray):
        prompt = prompt.tolist()
    single = not isinstance(prompt, Sequence) or isinstance(prompt, str | bytes) or _are_ids(prompt)
    prompts: Sequence[object] = [prompt] if single else prompt  # type: ignore[assignment]
    source = cfg.has_source
    rows = [_encode_one(item, tokenizer, bos, source) for item in prompts]
    for ids in rows:
        check(ids, cfg.input_embed.vocab)
        if len(ids) > cfg.context and not slide:
            slides = (
                "" if source else (", or let the context slide (--slide), which reads those alone")
            )
            raise UserError(
                f"The prompt has {len(ids)} tokens and the model's context is {cfg.context}; "
                "shorten it, for example "
                f"to its last {max(cfg.context // 2, 1)} tokens{slides}.{longer_hint(cfg)}"
            )
    return rows


def check(ids: Sequence[int], vocab: int) -> None:
    """UserError unless there are ids, and each is one of the model's."""
    if not ids:
        raise UserError(
            "The prompt is empty; give some text, or leave it out to begin where the "
            "model's texts begin."
        )
    must_be_known(ids, vocab)


def first_tokens(tokenizer: Tokenizer | None, start: Start, cfg: config.Model) -> list[int]:
    """First tokens of an encoder-decoder's decoder: an id, or several (a language's tag)."""
    if start is None:
        start = target_start(tokenizer, cfg)
        need(start != [], "The decoder needs a token to begin with; give start=ID.")
    ids: list[Any] = list(start) if isinstance(start, list | tuple) else [start]
    integral = all(isinstance(id, Integral) and not isinstance(id, bool) for id in ids)
    need(
        integral and 0 < len(ids) <= cfg.context,
        f"start is {start!r}; give a token's id, or a list of at least one.",
    )
    check(ids, cfg.embed.vocab)
    return list(map(int, ids))


def _encode_one(
    prompt: object, tokenizer: Tokenizer | None, bos: bool | None, source: bool
) -> list[int]:
    if prompt is None and not source:
        opening = None if tokenizer is None else text_start(tokenizer)
        if opening is None:
            raise UserError(
                "There is no bos or eos token to begin with; give a prompt of at least one token."
            )
        return [opening]
    if isinstance(prompt, str):
        if tokenizer is None:
            raise UserError(
                "A text prompt needs a tokenizer; give one, or give the prompt as token ids."
            )
        first = not source and document_start(tokenizer) is not None if bos is None else bos
        if source and bos is None:
            return framed_source(tokenizer, tokenizer.encode(prompt))
        last = source and tokenizer.eos is not None
        return tokenizer.encode(prompt, bos=first, eos=last) if prompt else []
    if isinstance(prompt, Sequence) and _are_ids(prompt):
        return list(map(int, prompt))
    raise UserError(
        "The prompt is neither a text nor token ids; give a text, a list of ids, or a list of either."
    )


def _are_ids(prompt: Sequence[object]) -> bool:
    return not isinstance(prompt, bytes) and all(isinstance(token, Integral) for token in prompt)
