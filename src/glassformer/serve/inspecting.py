"""POST /v1/inspect, and ``"inspect": [...]`` on a completion: what the served weights compute for a
text.

Decoders with attention are looked into by the engine, in the steps in which the text is read and
continued: what its pages hold is not computed again, and nobody else's answer changes by a bit.
Other models (encoders, encoder-decoders, recurrent ones) make a pass of their own on the same
weights, in a thread, one at a time. A wish is

    lens             what each depth would say (the logit lens) at the positions
    top_tokens       for each token its log-probability and the likeliest tokens after it
    a path           any named value, or a pattern of names: decoder.blocks.0.attn.pattern, *.resid, *.ffn.chosen
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NotRequired, Self

from anyio import to_thread
from starlette.requests import Request as HttpRequest
from torch import Tensor
from typing_extensions import TypedDict

from .. import config
from ..engine import Event, Handle, Request, Seen
from ..engine.request import SQUARE, joined, token_axis
from ..inspection import edits, lens, looking, streams
from ..nn.editing import one_token
from .errors import refuse
from .following import Followers, alone, unless_gone
from .prompts import check_context, check_lengths, listed, prompts
from .registry import ServedModel
from .schemas import InspectRequest, Looked

MOST_MADE = 1 << 26  # numbers that a pass may keep
MOST_SENT = 1 << 18  # numbers of an answer
WORDS = ("lens", "top_tokens")
LENS = ["decoder.embed", "decoder.blocks.*.resid", "decoder.out"]  # what it is read from


class Value(TypedDict):
    """A named value without its batch, of the tokens at ``positions`` (null: all that were read for
    this part).

    Null is a number that is not finite, such as a masked score.
    """

    shape: list[int]
    dtype: str
    positions: list[int] | None
    values: Any


class Inspection(TypedDict):
    """What was asked for, beside the tokens that were read, from place ``start`` on; ``by`` says by
    what.

    A stream has a part with each of its pieces: first the prompt's tokens, then what was read
    since.
    """

    object: str
    model: str
    by: str
    start: int
    tokens: list[int]
    pieces: list[str]
    edits: list[str]
    source: NotRequired[dict[str, Any]]
    values: NotRequired[dict[str, Value]]
    lens: NotRequired[dict[str, Any]]
    top_tokens: NotRequired[list[dict[str, Any]]]


async def inspect(
    http: HttpRequest, served: ServedModel, asked: InspectRequest, followers: Followers, client: str
) -> Inspection:
    """Answer one request."""
    texts, source = listed(asked.prompt), None
    refuse(len(texts) != 1, "One text is inspected at a time; give one prompt.", "prompt")
    pair = isinstance(served.config, config.EncoderDecoder)
    refuse(
        not pair and asked.source is not None,
        "Only an encoder-decoder has a source; leave it out.",
        "source",
    )
    if pair:
        said = 'An encoder-decoder reads two texts; give what its encoder reads as "source".'
        refuse(asked.source is None, said, "source")
        source = await _read_by_pair(served, asked.source, False, "source")
        ids = await _read_by_pair(served, texts[0], True, "prompt")
    elif served.continues or isinstance(served.config, config.Decoder):
        (ids,) = await prompts(served, texts)
    else:
        ids = await _read_by_encoder(served, texts[0])
    if not paged(served):
        http.state.tally.model, http.state.tally.prompt = served.id, len(ids)
        return await unless_gone(http, alone(partial(inspected, served, ids, asked, source)))
    asked = asked.model_copy(update={"positions": _positions(asked.positions, len(ids))})
    request = watched(served, asked, Request(ids, max_new=0, client=client))
    handles = await unless_gone(http, followers.submitted(served, [request]))
    (events,) = await unless_gone(http, followers.results(handles, http.state.tally))
    return await unless_gone(http, alone(Inspector(served, asked, handles[0], 0).push(events).part))


async def _read_by_encoder(served: ServedModel, text: str | list[int]) -> list[int]:
    check_lengths([text], served.characters, served.context, "prompt")
    refuse(not text, "The prompt is empty; give a text, or token ids.", "prompt")
    if isinstance(text, str):
        text = (
            await to_thread.run_sync(partial(served.tokenizer.encode_pair, text, special=True))
        )[0]
    refuse(
        any(not 0 <= id < served.config.embed.vocab for id in text),
        "A token id is out of range.",
        "prompt",
    )
    check_context(served, text, 0, "prompt")
    return text


async def _read_by_pair(served: ServedModel, text: Any, second: bool, param: str) -> list[int]:
    """What the encoder of an encoder-decoder reads of a text, or its decoder (``second``), begun as
    it begins."""
    texts = listed(text)
    refuse(len(texts) != 1, "One text is inspected at a time; give one source.", param)
    check_lengths(texts, served.characters, served.context, param)
    ids: Any = partial(looking.token_ids, served.model, served.tokenizer, texts[0], second)
    return (await to_thread.run_sync(ids))[0].tolist()  # type: ignore[no-any-return]


def inspected(
    served: ServedModel, ids: Sequence[int], asked: Looked, source: Sequence[int] | None = None
) -> Inspection:
    """One pass over ``ids``, beside a ``source``. Raises UserError and ApiError for what is not
    there or too much."""
    model, tokenizer = served.model, served.tokenizer
    changes = [edits.parse(one) for one in asked.edits]
    wishes, read = asked.inspect or (), None if source is None else list(source)
    patterns = [one for one in wishes if one not in WORDS]
    positions = _positions(getattr(asked, "positions", None), len(ids))
    made: Inspection = {
        "object": "inspection",
        "model": served.id,
        "by": "a pass of its own on the same weights",
        "start": 0,
        "tokens": list(ids),
        "pieces": [tokenizer.token(id) for id in ids],
        "edits": asked.edits,
    }
    if source is not None:
        own = tokenizer.for_source
        made["source"] = {"tokens": read, "pieces": [own.token(id) for id in source]}
    if patterns:
        shapes = {path: tuple(value.shape) for path, value in one_token(model).items()}
        longest = max(len(ids), len(source or ()))
        _check_size(_size(shapes, patterns, longest, longest))
        found = looking.look(model, tokenizer, list(ids), *patterns, source=read, edits=changes)
        sides = {path: x for path, x in found.items() if source is not None and of_source(path)}
        made["values"] = _values(
            {path: x for path, x in found.items() if path not in sides}, positions
        )
        made["values"] |= _values(sides, None)
    if "lens" in wishes:
        how: dict[str, Any] = {
            "positions": positions,
            "track": asked.track,
            "top": asked.top,
            "edits": changes,
        }
        made["lens"] = lens.logit_lens(model, tokenizer, list(ids), source=read, **how).to_dict()
    if "top_tokens" in wishes:
        rows = looking.predictions(
            model, tokenizer, list(ids), asked.top, source=read, edits=changes
        )
        made["top_tokens"] = [{"position": n, **rows[n]} for n in (positions or range(len(rows)))]
    return made


def of_source(path: str) -> bool:
    """Whether a value of an encoder-decoder is of its source's tokens, not of those that its
    decoder reads."""
    return path.startswith(("encoder.", "source_embed.")) or path.endswith((".cross.k", ".cross.v"))


def _positions(asked: Sequence[int] | None, length: int) -> list[int] | None:
    if asked is None:
        return None
    wrong = next((one for one in asked if not -length <= one < length), None)
    refuse(
        wrong is not None,
        f"Position {wrong} is not there; the text has {length} tokens.",
        "positions",
    )
    return [one % length for one in asked]


def _size(
    paths: Mapping[str, Sequence[int]], patterns: Sequence[str], rows: int, length: int
) -> int:
    """How many numbers so many rows of a text of ``length`` tokens are."""
    found = [path for path in paths if any(fnmatchcase(path, pattern) for pattern in patterns)]
    square = (length if path.rpartition(".")[2] in SQUARE else 1 for path in found)
    return sum(math.prod(paths[path]) * rows * one for path, one in zip(found, square, strict=True))


def _check_size(total: int) -> None:
    """Refuse what would not fit, before anything is computed."""
    said = (
        f"That is {total:,} numbers, and a pass keeps {MOST_MADE:,} at most; name fewer "
        "values, or shorten the text."
    )
    refuse(total > MOST_MADE, said, "inspect")


def _values(found: dict[str, Tensor], positions: list[int] | None) -> dict[str, Value]:
    """As JSON holds them; only the rows of ``positions`` where they are given."""
    kept = {}
    for path, value in found.items():
        own = value[0]
        # (.., T, last)
        kept[path] = own if positions is None or own.ndim < 2 else own[..., positions, :]
    _check_sent(sum(one.numel() for one in kept.values()))
    told = looking.to_dict(kept)
    return {
        path: {
            "shape": one["shape"],
            "dtype": one["dtype"],
            "positions": positions,
            "values": one["values"],
        }
        for path, one in told.items()
    }


def _check_sent(total: int) -> None:
    said = (
        f"That is {total:,} numbers, and an answer has {MOST_SENT:,} at most; name fewer "
        "values, or give positions."
    )
    refuse(total > MOST_SENT, said, "inspect")


# ------------------------------------------------------------------------------------ by the engine


def paged(served: ServedModel) -> bool:
    """Whether the engine looks into this model: a decoder with attention, whose keys lie in
    pages."""
    return isinstance(served.config, config.Decoder) and isinstance(
        served.config.decoder, config.Stack
    )


def places(asked: Looked, prompt: int) -> tuple[int, list[int] | None]:
    """The first place to be seen, and which are (None: all from there on)."""
    wanted = getattr(asked, "positions", None)
    if wanted is None:
        only_lens = asked.inspect == ["lens"]
        return max(0, prompt - lens.MOST) if only_lens else 0, None
    return (prompt - 1, None) if wanted == "new" else (min(*wanted, prompt - 1), wanted)


def watched(served: ServedModel, asked: Looked, request: Request) -> Request:
    """``request`` with what it is to be asked inside. Raises ApiError for what is not there or too
    much."""
    if asked.inspect is None and not asked.edits:
        return request
    said = (
        "Edits of a completion need a decoder with attention; POST /v1/inspect edits what "
        f'"{served.id}" reads.'
    )
    refuse(bool(asked.edits) and not paged(served), said, "edits")
    wishes, length = asked.inspect or (), len(request.tokens)
    since, wanted = places(asked, length)
    end = length + max(
        0, (served.context - length + 1 if request.max_new is None else request.max_new) - 1
    )
    wrong = next((one for one in wanted or () if not 0 <= one < end), None)
    refuse(
        wrong is not None,
        f"Position {wrong} is not there; at most {end} tokens are read, 0 to {end - 1}.",
        "positions",
    )
    patterns = [one for one in wishes if one not in WORDS]
    size = partial(_size, served.engine.shapes, patterns)
    _check_size(request.n * size(end - since, end))
    _check_sent(request.n * size(end - since if wanted is None else len(wanted), end))
    if not paged(served):
        looking.must_match(patterns, [*served.engine.shapes])
    if "lens" in wishes:
        streams.needs_head(served.model, "it has no lens.")
    if "lens" in wishes and paged(served):
        patterns += LENS
        depth = served.config.decoder.depth  # type: ignore[union-attr]
        _check_size(request.n * (end - since) * served.config.dim * (depth + 2))
    for word in asked.track:
        streams.word_id(served.model, served.tokenizer, word)
    if not paged(served):
        return request  # Inspector makes a pass of its own
    if "top_tokens" in wishes:
        told = {"logprobs": max(asked.top, request.logprobs or 0)}
        told["prompt_logprobs"] = max(asked.top, request.prompt_logprobs or 0)
        request = replace(request, **told)  # type: ignore[arg-type]
    scored = request.prompt_logprobs is not None and "top_tokens" not in wishes
    changes = [edits.parse(one) for one in asked.edits]
    return replace(request, want=patterns, since=0 if scored else since, edits=changes)


class Inspector:
    """Makes the parts of one continuation's inspection from the engine's events."""

    def __init__(self, served: ServedModel, asked: Looked, handle: Handle, index: int) -> None:
        self.served, self.asked, self.handle, self.index = served, asked, handle, index
        self.tokens, self.told, self.drawn = [*handle.read], 0, list[int]()  # drawn: not read yet
        self.seen = list[Seen]()
        # by place
        self.own, self.next = dict[int, float | None](), dict[int, Sequence[tuple[int, float]]]()

    def push(self, events: Sequence[Event]) -> Self:
        """More of its events; those of others are passed over."""
        for event in events:
            if event.index != self.index:
                continue
            self.tokens += self.drawn
            self.next[len(self.tokens) - 1] = event.top
            self.drawn = [] if event.token is None else [event.token]
            self.own[len(self.tokens)] = event.logprob
            self.seen += [] if event.seen is None else [event.seen]
        return self

    @property
    def whole(self) -> bool:
        """Whether all that was read is told."""
        return self.told == len(self.tokens)

    def part(self) -> Inspection:
        """What was read since the last part."""
        begin, end, (since, wanted) = (
            self.told,
            len(self.tokens),
            places(self.asked, len(self.handle.read)),
        )
        asked, wishes, tokenizer = self.asked, self.asked.inspect or (), self.served.tokenizer
        some = [
            place for place in range(max(begin, since), end) if wanted is None or place in wanted
        ]
        read, self.told = self.tokens[begin:], end
        if not paged(self.served):
            return self._alone(begin, some)
        made: Inspection = {
            "object": "inspection",
            "model": self.served.id,
            "by": "the engine's own steps",
            "start": begin,
            "tokens": read,
            "pieces": [tokenizer.token(id) for id in read],
            "edits": asked.edits,
        }
        seen, self.seen = joined(self.seen) if self.seen else Seen(begin, {}), []
        patterns = [one for one in wishes if one not in WORDS]
        if patterns:
            own = {
                path: x
                for path, x in seen.values.items()
                if any(fnmatchcase(path, one) for one in patterns)
            }
            rows = [place - seen.start for place in some]
            cut = {
                path: x if len(some) == x.shape[token_axis(path)] else _rows(path, x, rows)
                for path, x in own.items()
            }
            made["values"] = _values(cut, None)
            for value in made["values"].values():
                value["positions"] = None if len(some) == end - begin else some
        if "lens" in wishes and some:
            made["lens"] = self._lens(seen, some if wanted is not None else some[-lens.MOST :])
        if "top_tokens" in wishes:
            made["top_tokens"] = [self._likely(place) for place in some]
        return made

    def _alone(self, begin: int, some: list[int]) -> Inspection:
        """The same of a model that the engine does not look into, by a pass over all that was
        read."""
        asked = self.asked.model_copy(update={"positions": some} if some else {"inspect": []})
        made = inspected(self.served, self.tokens, asked)
        made["start"], made["tokens"], made["pieces"] = (
            begin,
            made["tokens"][begin:],
            made["pieces"][begin:],
        )
        return made

    def _lens(self, seen: Seen, some: Sequence[int]) -> dict[str, Any]:
        rows = [place - seen.start for place in some]
        states = {
            path: x[0, rows]
            for path, x in seen.values.items()
            if any(fnmatchcase(path, one) for one in LENS)
        }
        out = states.pop(LENS[-1])
        model, tokenizer = self.served.model, self.served.tokenizer
        track = [streams.word_id(model, tokenizer, word) for word in self.asked.track]
        ids, end = [self.tokens[place] for place in some], len(self.tokens)
        told = (streams.States("decoder", states, out), ids, some, end)
        return lens.lens_of_states(
            model, tokenizer, *told, track=track, top=self.asked.top
        ).to_dict()

    def _likely(self, place: int) -> dict[str, Any]:
        """A token, how likely it was, and the likeliest after it."""
        for number, one in enumerate(self.handle.prompt_logprobs or ()):
            at = self.handle.request.since + number  # type: ignore[union-attr]
            self.own.setdefault(at, one.logprob)
            if number:
                self.next.setdefault(at - 1, one.top)
        named = self._named(self.tokens[place], self.own.get(place))
        likely = self.next.get(place, ())[: self.asked.top]
        return {"position": place, **named, "next": [self._named(*one) for one in likely]}

    def _named(self, token: int, logprob: float | None) -> dict[str, Any]:
        return {"token": token, "piece": self.served.tokenizer.token(token), "logprob": logprob}


def _rows(path: str, x: Tensor, rows: Sequence[int]) -> Tensor:
    return x[:, :, list(rows)] if token_axis(path) == 2 else x[:, list(rows)]
