"""POST /v1/inspect, and ``"inspect": [...]`` on a completion: what the served weights compute for a text.

It is a pass of its own on the same weights, in a thread, one at a time: the engine's steps take no part in it, so
nobody's answer changes by a bit. Only what is asked for is kept. A wish is

    lens             what each depth would say (the logit lens) at the positions
    top_tokens       for each token its log-probability and the likeliest tokens after it
    a path           any named value, or a pattern of names: decoder.blocks.0.attn.pattern, *.resid, *.ffn.chosen
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NotRequired

from anyio import to_thread
from starlette.requests import Request as HttpRequest
from torch import Tensor
from typing_extensions import TypedDict

from .. import config
from ..inspection import edits, lens, looking
from ..nn.editing import one_token
from .encoding import Encoding
from .errors import refuse
from .following import unless_gone
from .prompts import check_context, check_lengths, listed, prompts
from .registry import ServedModel
from .schemas import InspectRequest

MOST_MADE = 1 << 26  # numbers that a pass may keep
MOST_SENT = 1 << 18  # numbers of an answer
SQUARE = ("pattern", "scores")  # a number for each pair of tokens
WORDS = ("lens", "top_tokens")


class Value(TypedDict):
    """A named value without its batch; null is a number that is not finite, such as a masked score."""

    shape: list[int]
    dtype: str
    positions: list[int] | None
    values: Any


class Inspection(TypedDict):
    """What was asked for, beside the tokens that were read; ``by`` says which pass it comes from."""

    object: str
    model: str
    by: str
    tokens: list[int]
    pieces: list[str]
    edits: list[str]
    values: NotRequired[dict[str, Value]]
    lens: NotRequired[dict[str, Any]]
    top_tokens: NotRequired[list[dict[str, Any]]]


async def inspect(http: HttpRequest, served: ServedModel, asked: InspectRequest, encoding: Encoding) -> Inspection:
    """Answer one request."""
    refuse(served.translates, "Encoder-decoders are inspected by `glassformer look`, not over HTTP yet.", "model")
    texts = listed(asked.prompt)
    refuse(len(texts) != 1, "One text is inspected at a time; give one prompt.", "prompt")
    if served.continues or isinstance(served.config, config.Decoder):
        (ids,) = await prompts(served, texts)
    else:
        ids = await _read_by_encoder(served, texts[0])
    http.state.tally.model, http.state.tally.prompt = served.id, len(ids)
    return await unless_gone(http, encoding.alone(partial(inspected, served, ids, asked)))


async def _read_by_encoder(served: ServedModel, text: str | list[int]) -> list[int]:
    check_lengths([text], served.characters, served.context, "prompt")
    refuse(not text, "The prompt is empty; give a text, or token ids.", "prompt")
    if isinstance(text, str):
        text = (await to_thread.run_sync(partial(served.tokenizer.encode_pair, text, special=True)))[0]
    refuse(any(not 0 <= id < served.config.embed.vocab for id in text), "A token id is out of range.", "prompt")
    check_context(served, text, 0, "prompt")
    return text


def inspected(served: ServedModel, ids: Sequence[int], asked: InspectRequest) -> Inspection:
    """One pass over ``ids``. Raises UserError and ApiError for what is not there or too much."""
    model, tokenizer = served.model, served.tokenizer
    changes = [edits.parse(one) for one in asked.edits]
    patterns = [one for one in asked.inspect if one not in WORDS]
    positions = _positions(asked.positions, len(ids))
    made: Inspection = {
        "object": "inspection",
        "model": served.id,
        "by": "a pass of its own on the same weights",
        "tokens": list(ids),
        "pieces": [tokenizer.token(id) for id in ids],
        "edits": asked.edits,
    }
    if patterns:
        _check_size(model, patterns, len(ids))
        found = looking.look(model, tokenizer, list(ids), *patterns, edits=changes)
        made["values"] = _values(found, positions)
    if "lens" in asked.inspect:
        how: dict[str, Any] = {"positions": positions, "track": asked.track, "top": asked.top, "edits": changes}
        made["lens"] = lens.logit_lens(model, tokenizer, list(ids), **how).to_dict()
    if "top_tokens" in asked.inspect:
        rows = looking.predictions(model, tokenizer, list(ids), asked.top, edits=changes)
        made["top_tokens"] = [{"position": n, **rows[n]} for n in (positions or range(len(rows)))]
    return made


def _positions(asked: Sequence[int] | None, length: int) -> list[int] | None:
    if asked is None:
        return None
    wrong = next((one for one in asked if not -length <= one < length), None)
    refuse(wrong is not None, f"Position {wrong} is not there; the text has {length} tokens.", "positions")
    return [one % length for one in asked]


def _check_size(model: Any, patterns: Sequence[str], length: int) -> None:
    """Refuse what would not fit, before anything is computed."""
    total = 0
    for path, value in one_token(model).items():
        if any(fnmatchcase(path, pattern) for pattern in patterns):
            total += value.numel() * length * (length if path.rpartition(".")[2] in SQUARE else 1)
    said = f"That is {total:,} numbers, and a pass keeps {MOST_MADE:,} at most; name fewer values, or shorten the text."
    refuse(total > MOST_MADE, said, "inspect")


def _values(found: dict[str, Tensor], positions: list[int] | None) -> dict[str, Value]:
    """As JSON holds them; only the rows of ``positions`` where they are given."""
    kept = {}
    for path, value in found.items():
        own = value[0]
        kept[path] = own if positions is None or own.ndim < 2 else own[..., positions, :]  # (.., T, last)
    total = sum(one.numel() for one in kept.values())
    said = f"That is {total:,} numbers, and an answer has {MOST_SENT:,} at most; name fewer values, or give positions."
    refuse(total > MOST_SENT, said, "inspect")
    told = looking.to_dict(kept)
    return {
        path: {"shape": one["shape"], "dtype": one["dtype"], "positions": positions, "values": one["values"]}
        for path, one in told.items()
    }


async def of_completion(
    http: HttpRequest, served: ServedModel, rows: Sequence[Sequence[int]], wishes: list[str], encoding: Encoding
) -> list[Inspection]:
    """Of each choice, prompt and continuation together."""
    made = list[Inspection]()
    for row in rows:
        asked = InspectRequest(prompt=list(row), inspect=wishes, track=[], edits=[])
        work: Callable[[], Inspection] = partial(inspected, served, list(row)[: served.context], asked)
        made.append(await unless_gone(http, encoding.alone(work)))
    return made
