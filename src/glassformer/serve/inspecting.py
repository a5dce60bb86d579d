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
from .following import RequestTracker, run_exclusively, until_disconnect
from .prompts import as_list, check_context, check_lengths, encode_prompts
from .registry import ServedModel
from .schemas import InspectOptions, InspectRequest

MAX_COMPUTED = 1 << 26  # numbers that a pass may keep
MAX_RETURNED = 1 << 18  # numbers of an answer
SUMMARIES = ("lens", "top_tokens")
LENS_VALUES = ["decoder.embed", "decoder.blocks.*.resid", "decoder.out"]  # what it is read from


class Value(TypedDict):
    """Named value without the batch axis, at ``positions`` (null: every position of this part).

    Null entries of ``values`` are not finite, such as masked scores.
    """

    shape: list[int]
    dtype: str
    positions: list[int] | None
    values: Any


class Inspection(TypedDict):
    """Requested values and the tokens of the pass from position ``start`` on; ``by`` names the pass
    that computed them.

    Each chunk of a stream has a part: first the prompt's tokens, then those computed since the
    last.
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
    http: HttpRequest,
    served: ServedModel,
    body: InspectRequest,
    followers: RequestTracker,
    client: str,
) -> Inspection:
    """Answers one inspection request."""
    texts, source = as_list(body.prompt), None
    refuse(len(texts) != 1, "One text is inspected at a time; give one prompt.", "prompt")
    pair = isinstance(served.config, config.EncoderDecoder)
    refuse(
        not pair and body.source is not None,
        "Only an encoder-decoder has a source; leave it out.",
        "source",
    )
    if pair:
        message = 'An encoder-decoder reads two texts; give what its encoder reads as "source".'
        refuse(body.source is None, message, "source")
        source = await _encode_pair(served, body.source, False, "source")
        ids = await _encode_pair(served, texts[0], True, "prompt")
    elif served.continues or isinstance(served.config, config.Decoder):
        (ids,) = await encode_prompts(served, texts)
    else:
        ids = await _encode_input(served, texts[0])
    if not paged(served):
        http.state.tally.model, http.state.tally.prompt = served.id, len(ids)
        return await until_disconnect(
            http, run_exclusively(partial(run_inspection, served, ids, body, source))
        )
    body = body.model_copy(update={"positions": _positions(body.positions, len(ids))})
    request = with_inspection(served, body, Request(ids, max_new=0, client=client))
    handles = await until_disconnect(http, followers.submit_async(served, [request]))
    (events,) = await until_disconnect(http, followers.results(handles, http.state.tally))
    return await until_disconnect(
        http, run_exclusively(Inspector(served, body, handles[0], 0).push(events).drain)
    )


async def _encode_input(served: ServedModel, text: str | list[int]) -> list[int]:
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


async def _encode_pair(served: ServedModel, text: Any, is_target: bool, param: str) -> list[int]:
    """Token ids of an encoder-decoder's source, or of its target (``is_target``) with the start
    token."""
    texts = as_list(text)
    refuse(len(texts) != 1, "One text is inspected at a time; give one source.", param)
    check_lengths(texts, served.characters, served.context, param)
    ids: Any = partial(looking.token_ids, served.model, served.tokenizer, texts[0], is_target)
    return (await to_thread.run_sync(ids))[0].tolist()  # type: ignore[no-any-return]


def run_inspection(
    served: ServedModel,
    ids: Sequence[int],
    body: InspectOptions,
    source: Sequence[int] | None = None,
) -> Inspection:
    """Runs one forward pass over ``ids`` and an optional ``source``. Raises UserError and ApiError
    for unknown names and for too many values."""
    model, tokenizer = served.model, served.tokenizer
    changes = [edits.parse(spec) for spec in body.edits]
    outputs, source_ids = body.inspect or (), None if source is None else list(source)
    patterns = [name for name in outputs if name not in SUMMARIES]
    positions = _positions(getattr(body, "positions", None), len(ids))
    inspection: Inspection = {
        "object": "inspection",
        "model": served.id,
        "by": "a pass of its own on the same weights",
        "start": 0,
        "tokens": list(ids),
        "pieces": [tokenizer.token(id) for id in ids],
        "edits": body.edits,
    }
    if source is not None:
        source_tokenizer = tokenizer.for_source
        inspection["source"] = {
            "tokens": source_ids,
            "pieces": [source_tokenizer.token(id) for id in source],
        }
    if patterns:
        shapes = {path: tuple(value.shape) for path, value in one_token(model).items()}
        longest = max(len(ids), len(source or ()))
        _check_size(_size(shapes, patterns, longest, longest))
        values = looking.look(
            model, tokenizer, list(ids), *patterns, source=source_ids, edits=changes
        )
        source_values = {
            path: x for path, x in values.items() if source is not None and is_source_value(path)
        }
        inspection["values"] = _values(
            {path: x for path, x in values.items() if path not in source_values}, positions
        )
        inspection["values"] |= _values(source_values, None)
    if "lens" in outputs:
        options: dict[str, Any] = {
            "positions": positions,
            "track": body.track,
            "top": body.top,
            "edits": changes,
        }
        inspection["lens"] = lens.logit_lens(
            model, tokenizer, list(ids), source=source_ids, **options
        ).to_dict()
    if "top_tokens" in outputs:
        rows = looking.predictions(
            model, tokenizer, list(ids), body.top, source=source_ids, edits=changes
        )
        inspection["top_tokens"] = [
            {"position": n, **rows[n]} for n in (positions or range(len(rows)))
        ]
    return inspection


def is_source_value(path: str) -> bool:
    """True for values at source positions of an encoder-decoder (encoder, cross-attention keys and
    values)."""
    return path.startswith(("encoder.", "source_embed.")) or path.endswith((".cross.k", ".cross.v"))


def _positions(positions: Sequence[int] | None, length: int) -> list[int] | None:
    if positions is None:
        return None
    missing = next((position for position in positions if not -length <= position < length), None)
    refuse(
        missing is not None,
        f"Position {missing} is not there; the text has {length} tokens.",
        "positions",
    )
    return [position % length for position in positions]


def _size(
    paths: Mapping[str, Sequence[int]], patterns: Sequence[str], rows: int, length: int
) -> int:
    """Number of elements of the matching values for ``rows`` tokens of a text of ``length``."""
    matches = [path for path in paths if any(fnmatchcase(path, pattern) for pattern in patterns)]
    factors = (length if path.rpartition(".")[2] in SQUARE else 1 for path in matches)
    return sum(
        math.prod(paths[path]) * rows * factor
        for path, factor in zip(matches, factors, strict=True)
    )


def _check_size(total: int) -> None:
    """Rejects requests whose values would not fit in memory, before the forward pass."""
    message = (
        f"That is {total:,} numbers, and a pass keeps {MAX_COMPUTED:,} at most; name fewer "
        "values, or shorten the text."
    )
    refuse(total > MAX_COMPUTED, message, "inspect")


def _values(tensors: dict[str, Tensor], positions: list[int] | None) -> dict[str, Value]:
    """Values as JSON, restricted to ``positions`` if given."""
    selected = {}
    for path, value in tensors.items():
        tensor = value[0]
        # (.., T, last)
        selected[path] = (
            tensor if positions is None or tensor.ndim < 2 else tensor[..., positions, :]
        )
    _check_sent(sum(tensor.numel() for tensor in selected.values()))
    json_values = looking.to_dict(selected)
    return {
        path: {
            "shape": entry["shape"],
            "dtype": entry["dtype"],
            "positions": positions,
            "values": entry["values"],
        }
        for path, entry in json_values.items()
    }


def _check_sent(total: int) -> None:
    message = (
        f"That is {total:,} numbers, and an answer has {MAX_RETURNED:,} at most; name fewer "
        "values, or give positions."
    )
    refuse(total > MAX_RETURNED, message, "inspect")


# ------------------------------------------------------------------------------------ by the engine


def paged(served: ServedModel) -> bool:
    """True if the engine can capture values of this model: a decoder with a paged KV cache."""
    return isinstance(served.config, config.Decoder) and isinstance(
        served.config.decoder, config.Stack
    )


def inspected_positions(body: InspectOptions, prompt: int) -> tuple[int, list[int] | None]:
    """First position to inspect, and the list of positions (None: all from there on)."""
    positions = getattr(body, "positions", None)
    if positions is None:
        only_lens = body.inspect == ["lens"]
        return max(0, prompt - lens.MOST) if only_lens else 0, None
    return (prompt - 1, None) if positions == "new" else (min(*positions, prompt - 1), positions)


def with_inspection(served: ServedModel, body: InspectOptions, request: Request) -> Request:
    """Adds the values to capture and the edits to an engine request. Raises ApiError for unknown
    names and for too many values."""
    if body.inspect is None and not body.edits:
        return request
    message = (
        "Edits of a completion need a decoder with attention; POST /v1/inspect edits what "
        f'"{served.id}" reads.'
    )
    refuse(bool(body.edits) and not paged(served), message, "edits")
    outputs, length = body.inspect or (), len(request.tokens)
    since, positions = inspected_positions(body, length)
    end = length + max(
        0, (served.context - length + 1 if request.max_new is None else request.max_new) - 1
    )
    missing = next((position for position in positions or () if not 0 <= position < end), None)
    refuse(
        missing is not None,
        f"Position {missing} is not there; at most {end} tokens are read, 0 to {end - 1}.",
        "positions",
    )
    patterns = [name for name in outputs if name not in SUMMARIES]
    size = partial(_size, served.engine.shapes, patterns)
    _check_size(request.n * size(end - since, end))
    _check_sent(request.n * size(end - since if positions is None else len(positions), end))
    if not paged(served):
        looking.must_match(patterns, [*served.engine.shapes])
    if "lens" in outputs:
        streams.needs_head(served.model, "it has no lens.")
    if "lens" in outputs and paged(served):
        patterns += LENS_VALUES
        depth = served.config.decoder.depth  # type: ignore[union-attr]
        _check_size(request.n * (end - since) * served.config.dim * (depth + 2))
    for word in body.track:
        streams.word_id(served.model, served.tokenizer, word)
    if not paged(served):
        return request  # Inspector makes a pass of its own
    if "top_tokens" in outputs:
        logprobs = {"logprobs": max(body.top, request.logprobs or 0)}
        logprobs["prompt_logprobs"] = max(body.top, request.prompt_logprobs or 0)
        request = replace(request, **logprobs)  # type: ignore[arg-type]
    scored = request.prompt_logprobs is not None and "top_tokens" not in outputs
    changes = [edits.parse(spec) for spec in body.edits]
    return replace(request, want=patterns, since=0 if scored else since, edits=changes)


class Inspector:
    """Builds the inspections of one continuation from the engine's events."""

    def __init__(
        self, served: ServedModel, body: InspectOptions, handle: Handle, index: int
    ) -> None:
        self.served, self.body, self.handle, self.index = served, body, handle, index
        self.tokens, self.drained, self.pending = (
            [*handle.read],
            0,
            list[int](),
        )  # drawn: not read yet
        self.captures = list[Seen]()
        # by place
        self.logprobs, self.top_logprobs = (
            dict[int, float | None](),
            dict[int, Sequence[tuple[int, float]]](),
        )

    def push(self, events: Sequence[Event]) -> Self:
        """Adds events; those of other continuations are ignored."""
        for event in events:
            if event.index != self.index:
                continue
            self.tokens += self.pending
            self.top_logprobs[len(self.tokens) - 1] = event.top
            self.pending = [] if event.token is None else [event.token]
            self.logprobs[len(self.tokens)] = event.logprob
            self.captures += [] if event.seen is None else [event.seen]
        return self

    @property
    def is_drained(self) -> bool:
        """True if every computed token has been reported."""
        return self.drained == len(self.tokens)

    def drain(self) -> Inspection:
        """Inspection of the tokens computed since the last call."""
        start, end, (since, requested) = (
            self.drained,
            len(self.tokens),
            inspected_positions(self.body, len(self.handle.read)),
        )
        body, outputs, tokenizer = self.body, self.body.inspect or (), self.served.tokenizer
        positions = [
            place
            for place in range(max(start, since), end)
            if requested is None or place in requested
        ]
        tokens, self.drained = self.tokens[start:], end
        if not paged(self.served):
            return self._separate_pass(start, positions)
        inspection: Inspection = {
            "object": "inspection",
            "model": self.served.id,
            "by": "the engine's own steps",
            "start": start,
            "tokens": tokens,
            "pieces": [tokenizer.token(id) for id in tokens],
            "edits": body.edits,
        }
        capture, self.captures = joined(self.captures) if self.captures else Seen(start, {}), []
        patterns = [name for name in outputs if name not in SUMMARIES]
        if patterns:
            values = {
                path: x
                for path, x in capture.values.items()
                if any(fnmatchcase(path, pattern) for pattern in patterns)
            }
            rows = [place - capture.start for place in positions]
            selected = {
                path: x if len(positions) == x.shape[token_axis(path)] else _rows(path, x, rows)
                for path, x in values.items()
            }
            inspection["values"] = _values(selected, None)
            for value in inspection["values"].values():
                value["positions"] = None if len(positions) == end - start else positions
        if "lens" in outputs and positions:
            inspection["lens"] = self._lens(
                capture, positions if requested is not None else positions[-lens.MOST :]
            )
        if "top_tokens" in outputs:
            inspection["top_tokens"] = [self._top_tokens(place) for place in positions]
        return inspection

    def _separate_pass(self, start: int, positions: list[int]) -> Inspection:
        """Inspection by a separate forward pass over all tokens, for models that the engine cannot
        capture."""
        body = self.body.model_copy(
            update={"positions": positions} if positions else {"inspect": []}
        )
        inspection = run_inspection(self.served, self.tokens, body)
        inspection["start"], inspection["tokens"], inspection["pieces"] = (
            start,
            inspection["tokens"][start:],
            inspection["pieces"][start:],
        )
        return inspection

    def _lens(self, capture: Seen, positions: Sequence[int]) -> dict[str, Any]:
        rows = [place - capture.start for place in positions]
        states = {
            path: x[0, rows]
            for path, x in capture.values.items()
            if any(fnmatchcase(path, pattern) for pattern in LENS_VALUES)
        }
        out = states.pop(LENS_VALUES[-1])
        model, tokenizer = self.served.model, self.served.tokenizer
        track = [streams.word_id(model, tokenizer, word) for word in self.body.track]
        ids, end = [self.tokens[place] for place in positions], len(self.tokens)
        states_args = (streams.States("decoder", states, out), ids, positions, end)
        return lens.lens_of_states(
            model, tokenizer, *states_args, track=track, top=self.body.top
        ).to_dict()

    def _top_tokens(self, place: int) -> dict[str, Any]:
        """Token at a position, its log-probability, and the top tokens after it."""
        for number, entry in enumerate(self.handle.prompt_logprobs or ()):
            at = self.handle.request.since + number  # type: ignore[union-attr]
            self.logprobs.setdefault(at, entry.logprob)
            if number:
                self.top_logprobs.setdefault(at - 1, entry.top)
        named = self._scored_token(self.tokens[place], self.logprobs.get(place))
        likely = self.top_logprobs.get(place, ())[: self.body.top]
        return {
            "position": place,
            **named,
            "next": [self._scored_token(*candidate) for candidate in likely],
        }

    def _scored_token(self, token: int, logprob: float | None) -> dict[str, Any]:
        return {"token": token, "piece": self.served.tokenizer.token(token), "logprob": logprob}


def _rows(path: str, x: Tensor, rows: Sequence[int]) -> Tensor:
    return x[:, :, list(rows)] if token_axis(path) == 2 else x[:, list(rows)]
