"""Tokenization in threads, so that a long text blocks no other request; a text that cannot fit is
rejected first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from anyio import to_thread

from ..core import config
from ..core.generation.prompt import encode
from ..core.tokenizer import Tokenizer
from .asgi.limits import MOST_CHARACTERS, MOST_TEXTS
from .asgi.replies import HttpError, refuse
from .fields import is_ids
from .registry import ServedModel


def as_list(texts: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """Wraps a single text, or a single list of ids, in a list."""
    if isinstance(texts, str):
        return [texts]
    return [texts] if is_ids(texts) else list(texts)  # type: ignore[list-item, arg-type]


def check_lengths(served: ServedModel, texts: Sequence[object], param: str) -> None:
    """Raises HttpError 400 for texts that cannot fit, by their characters alone."""
    check_count(texts, param)
    longest = max((len(text) for text in texts if isinstance(text, str)), default=0)
    message = (
        f"A text of {longest} characters cannot fit in the context of {served.context} tokens; "
        "shorten it."
    )
    refuse(longest > served.characters, message, param, "context_length_exceeded")


def check_count(texts: Sequence[object], param: str) -> None:
    """Raises HttpError 400 for more texts, or more characters of them, than a request may hold."""
    refuse(
        len(texts) > MOST_TEXTS,
        f"These are {len(texts)} texts; a request may hold {MOST_TEXTS}.",
        param,
    )
    total = sum(len(text) for text in texts if isinstance(text, str))
    refuse(
        total > MOST_CHARACTERS,
        f"The texts have {total} characters; {MOST_CHARACTERS} are read at most.",
        param,
    )


async def encode_prompts(
    served: ServedModel, texts: Sequence[str | list[int]], special: bool = True
) -> list[list[int]]:
    """Token ids of each prompt. Raises HttpError for prompts that are empty or too long."""
    check_lengths(served, texts, "prompt")
    encode_texts = partial(
        _encode_texts, served.tokenizer, served.config, bos=None if special else False
    )
    rows: list[list[int]] = await to_thread.run_sync(encode_texts, texts)
    for row in rows:
        check_context(served, row, 0, "prompt")
    return rows


def _encode_texts(
    tokenizer: Tokenizer, cfg: config.Model, texts: Sequence[str | list[int]], bos: bool | None
) -> list[list[int]]:
    refuse(
        any(not text for text in texts), "The prompt is empty; give a text, or token ids.", "prompt"
    )
    return [encode(text, tokenizer, cfg, bos, slide=True)[0] for text in texts]


def check_context(served: ServedModel, row: Sequence[int], new: int, param: str) -> None:
    """Raises HttpError 400 where a prompt with ``new`` tokens after it is longer than the context.

    The last token that is generated is never read, so it may lie just outside.
    """
    if len(row) + max(new - 1, 0) > served.context:
        requested = f" and {new} more are asked for" if new else ""
        message = (
            f"The prompt has {len(row)} tokens{requested}; the context is {served.context}. Shorten "
            "it, or ask for fewer."
        )
        raise HttpError(400, message, param, "context_length_exceeded")


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises HttpError 400 for ids outside the vocabulary."""
    is_known = all(0 <= id < vocab_size for id in ids)
    refuse(not is_known, f"Tokens are 0 to {vocab_size - 1}; {param} holds another.", param)
