"""Prompts and texts as token ids, made in a thread: a long text holds nobody else up, and one that
cannot fit is refused before it is read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from anyio import to_thread

from .. import config
from ..generation.prompt import encode
from ..tokenizer import Tokenizer
from .errors import ApiError, refuse
from .fields import is_ids
from .limits import MOST_CHARACTERS, MOST_TEXTS
from .registry import ServedModel


def listed(given: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """One or several texts, or ids, as a list."""
    if isinstance(given, str):
        return [given]
    return [given] if is_ids(given) else list(given)  # type: ignore[list-item, arg-type]


def check_lengths(texts: Sequence[object], most: int, context: int, param: str) -> None:
    """Raise ApiError 400 for texts that cannot fit, by their characters alone."""
    refuse(
        len(texts) > MOST_TEXTS,
        f"These are {len(texts)} texts; a request may hold {MOST_TEXTS}.",
        param,
    )
    lengths = [len(one) for one in texts if isinstance(one, str)]
    total = sum(lengths)
    refuse(
        total > MOST_CHARACTERS,
        f"The texts have {total} characters; {MOST_CHARACTERS} are read at most.",
        param,
    )
    longest = max(lengths, default=0)
    said = (
        f"A text of {longest} characters cannot fit in the context of {context} tokens; shorten it."
    )
    refuse(longest > most, said, param, "context_length_exceeded")


async def prompts(
    served: ServedModel, given: Sequence[str | list[int]], special: bool = True
) -> list[list[int]]:
    """What the model begins with, for each prompt. Raises ApiError for what it cannot take."""
    check_lengths(given, served.characters, served.context, "prompt")
    read = partial(_read, served.tokenizer, served.config, bos=None if special else False)
    rows: list[list[int]] = await to_thread.run_sync(read, given)
    for row in rows:
        check_context(served, row, 0, "prompt")
    return rows


def _read(
    tokenizer: Tokenizer, cfg: config.Model, given: Sequence[str | list[int]], bos: bool | None
) -> list[list[int]]:
    refuse(
        any(not one for one in given), "The prompt is empty; give a text, or token ids.", "prompt"
    )
    return [encode(one, tokenizer, cfg, bos, slide=True)[0] for one in given]


def check_context(served: ServedModel, row: Sequence[int], new: int, param: str) -> None:
    """Raise ApiError 400 where a prompt with ``new`` tokens after it is longer than the context.

    The last token that is generated is never read, so it may lie just outside.
    """
    if len(row) + max(new - 1, 0) > served.context:
        wanted = f" and {new} more are asked for" if new else ""
        said = (
            f"The prompt has {len(row)} tokens{wanted}; the context is {served.context}. Shorten "
            "it, or ask for fewer."
        )
        raise ApiError(400, said, param, "context_length_exceeded")


async def in_thread(
    tokenizer: Tokenizer, texts: Sequence[str], special: bool = False
) -> list[list[int]]:
    """The ids of plain texts."""
    return await to_thread.run_sync(partial(tokenizer.encode_batch, texts, special=special))
