"""POST /v1/inspect, and ``"inspect": [...]`` on a completion: what the served weights compute for a
text.

Decoders are looked into by the engine, in the steps in which the text is read and continued: what
its pages hold is not computed again, and nobody else's answer changes by a bit. Other models
(encoders, encoder-decoders, decoders that end in labels) make a pass of their own on the same
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
from typing import Any, NamedTuple, NotRequired, TypeVar

import torch
from torch import Tensor
from typing_extensions import TypedDict

from ..core.files import JsonObject
from ..core.nn.encoders import shifted
from ..sight import lens, looking, streams
from ..sight.axes import keyed
from ..sight.inputs import token_ids
from .asgi.limits import FLOAT_BYTES
from .asgi.replies import refuse
from .engine import Event, RecordedValues, Request, RequestHandle
from .engine.recording import concatenate, token_axis
from .engine.sequence import first_outside
from .schemas import InspectNames, InspectOptions, Positions, Texts, example
from .served_models import Context, ServedModel

V = TypeVar("V")
MAX_COMPUTED = 1 << 26  # numbers that a pass may keep
MAX_RETURNED = 1 << 18  # numbers of an answer
SUMMARIES = ("lens", "top_tokens")
LENS_VALUES = [*streams.depths("decoder"), "decoder.out"]  # what it is read from


class InspectRequest(InspectOptions):
    """POST /v1/inspect: one text, beside the ``source`` of an encoder-decoder, and what is to be
    seen of it."""

    model_config = example(prompt="The cat", inspect=["top_tokens"], positions=[-1], top=2)

    prompt: Texts
    source: Texts | None = None
    inspect: InspectNames
    positions: Positions | None = None


class NamedValue(TypedDict):
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
    source: NotRequired[JsonObject]
    values: NotRequired[dict[str, NamedValue]]
    lens: NotRequired[JsonObject]
    top_tokens: NotRequired[list[JsonObject]]


async def inspect(context: Context, body: InspectRequest) -> Inspection:
    """Named values, the logit lens and top tokens of one forward pass, optionally edited."""
    served = context.served
    cfg: Any = served.config
    source = None
    text = single_text(body.prompt, "prompt")
    pair = cfg.has_source
    if body.source is not None:
        refuse(not pair, "Only an encoder-decoder has a source; leave it out.", "source")
        source = await _encode_pair(context, single_text(body.source, "source"), False, "source")
    if pair and source is None and (cfg.pool or cfg.token_head):  # both sides read one text
        source = await _encode_pair(context, text, False, "prompt")
        ids = shifted(torch.tensor([source]), None, cfg.start)[0].tolist()
    elif pair:
        message = 'An encoder-decoder reads two texts; give what its encoder reads as "source".'
        refuse(source is None, message, "source")
        ids = await _encode_pair(context, text, True, "prompt")
    else:
        (ids,) = await context.encode_prompts([text])
    if not cfg.is_decoder or cfg.head is None:
        context.tally.model = served.id
        context.tally.prompt_tokens = len(ids)
        return await context.run_heavy(run_inspection, served, ids, body, source)
    body = body.model_copy(update={"positions": _positions(body.positions, len(ids))})
    request = Request(ids, max_new=0, client=context.client)
    handles = await context.submit(await with_inspection(context, body, [request]))
    (events,) = await context.results(handles)
    inspector = Inspector(served, body, handles[0])
    for event in events:
        inspector.push(event)
    return await context.run_heavy(inspector.drain)


def single_text(texts: Sequence[str | list[int]], param: str) -> str | list[int]:
    """The only text. Raises HttpError for several."""
    message = f"One text is inspected at a time; give one {param}."
    refuse(len(texts) != 1, message, param)
    return texts[0]


async def _encode_pair(
    context: Context, text: str | list[int], is_target: bool, param: str
) -> list[int]:
    """Token ids of an encoder-decoder's source, or of its target (``is_target``) with the start
    token."""
    served = context.served
    served.check_lengths([text], param)
    encode: Any = token_ids
    ids = await context.run(len(text), encode, served.model, served.tokenizer, text, is_target)
    return ids[0].tolist()  # type: ignore[no-any-return]


def _head(
    served: ServedModel, body: InspectOptions, method: str, start: int, tokens: Sequence[int]
) -> Inspection:
    return {
        "object": "inspection",
        "model": served.id,
        "by": method,
        "start": start,
        "tokens": list(tokens),
        "pieces": [served.tokenizer.token(id) for id in tokens],
        "edits": body.edits,
    }


def value_patterns(body: InspectOptions) -> list[str]:
    """Requested paths, without the summaries."""
    return [name for name in body.inspect or () if name not in SUMMARIES]


def run_inspection(
    served: ServedModel,
    ids: list[int],
    body: InspectOptions,
    source: list[int] | None = None,
    returned: int = 0,
) -> Inspection:
    """Runs one forward pass over ``ids`` and an optional ``source``. Raises UserError and HttpError
    for unknown names and for too many values, with those ``returned`` by the same answer before."""
    model = served.model
    tokenizer = served.tokenizer
    outputs = body.inspect or ()
    patterns = value_patterns(body)
    positions = _positions(getattr(body, "positions", None), len(ids))
    returned += summary_size(served, body, len(ids if positions is None else positions))
    _check_returned(returned)
    inspection = _head(served, body, "a pass of its own on the same weights", 0, ids)
    if source is not None:
        pieces = [tokenizer.for_source.token(id) for id in source]
        inspection["source"] = {"tokens": source, "pieces": pieces}
    options: dict[str, Any] = {"source": source, "edits": served.parse_edits(body)}
    if patterns:
        longest = max(len(ids), len(source or ()))
        _check_computed(_size(served.engine.shapes, patterns, longest, longest))
        values = looking.look(model, tokenizer, ids, *patterns, **options)
        source_paths = [path for path in values if source is not None and is_source_value(path)]
        source_values = {path: values.pop(path) for path in source_paths}
        inspection["values"] = _values(values, positions, returned)
        returned += _numbers(inspection["values"])
        inspection["values"] |= _values(source_values, None, returned)
    if "lens" in outputs:
        choices: Any = {"positions": positions, "track": body.track, "top": body.top}
        depths = lens.logit_lens(model, tokenizer, ids, **choices, **options)
        inspection["lens"] = depths.to_dict()
    if "top_tokens" in outputs:
        rows = looking.predictions(model, tokenizer, ids, body.top, **options)
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
    resolved = [position + length if position < 0 else position for position in positions]
    missing = first_outside(resolved, length)
    position = None if missing is None else positions[resolved.index(missing)]
    message = f"Position {position} is not there; the text has {length} tokens."
    refuse(missing is not None, message, "positions")
    return resolved


def _size(
    paths: Mapping[str, Sequence[int]], patterns: Sequence[str], rows: int, length: int
) -> int:
    """Number of elements of the matching values for ``rows`` tokens of a text of ``length``."""
    return rows * sum(
        math.prod(shape) * (length if keyed(path) else 1)
        for path, shape in matching(paths, patterns).items()
    )


def _check_computed(total: int) -> None:
    """Rejects requests whose values would not fit in memory, before the forward pass."""
    message = (
        f"That is {total:,} numbers, and a pass keeps {MAX_COMPUTED:,} at most; name fewer "
        "values, or shorten the text."
    )
    refuse(total > MAX_COMPUTED, message, "inspect")


def matching(values: Mapping[str, V], patterns: Sequence[str]) -> dict[str, V]:
    """Values whose path matches a pattern."""
    return {
        path: value
        for path, value in values.items()
        if any(fnmatchcase(path, pattern) for pattern in patterns)
    }


def _numbers(values: Mapping[str, NamedValue]) -> int:
    return sum(math.prod(value["shape"]) for value in values.values())


def answer_size(served: ServedModel, body: InspectOptions, inspection: Inspection) -> int:
    """Numbers of an inspection by ``run_inspection``."""
    positions = getattr(body, "positions", None)
    count = len(inspection["tokens"] if positions is None else positions)
    return _numbers(inspection.get("values", {})) + summary_size(served, body, count)


def _values(
    tensors: dict[str, Tensor], positions: list[int] | None, returned: int = 0
) -> dict[str, NamedValue]:
    """Values as JSON, restricted to ``positions`` if given."""
    selected = {}
    for path, value in tensors.items():
        is_cut = positions is not None and value.ndim > 2
        selected[path] = value[0][..., positions, :] if is_cut else value[0]  # (.., T, last)
    _check_returned(returned + sum(tensor.numel() for tensor in selected.values()))
    entries: JsonObject = looking.to_dict(selected)
    for entry in entries.values():
        entry["positions"] = positions
    return entries


def _check_returned(total: int) -> None:
    """Rejects answers of too many numbers."""
    message = (
        f"That is {total:,} numbers, and an answer has {MAX_RETURNED:,} at most; name fewer "
        "values, or give positions."
    )
    refuse(total > MAX_RETURNED, message, "inspect")


# ------------------------------------------------------------------------------------ by the engine


def inspected_positions(body: InspectOptions, prompt: int) -> tuple[int, list[int] | None]:
    """First position to inspect, and the list of positions (None: all from there on)."""
    positions = getattr(body, "positions", None)
    if positions is None:
        only_lens = body.inspect == ["lens"]
        return max(0, prompt - lens.MOST) if only_lens else 0, None
    if positions == "new":
        return (prompt - 1, None)
    return (min(*positions, prompt - 1), positions)


async def with_inspection(
    context: Context, body: InspectOptions, requests: Sequence[Request]
) -> list[Request]:
    """Adds the values to capture and the edits to the engine requests of one body. Raises HttpError
    for unknown names, for too many values of all of them together, and where the server holds as
    many as it may."""

    def plan() -> list[PlannedLook]:
        return [_plan_look(context.served, body, request) for request in requests]

    looks = await context.run_heavy(plan)
    returned = sum(look.returned for look in looks)
    computed = sum(look.computed for look in looks)
    _check_returned(returned)
    _check_computed(computed)
    context.hold(4 * computed + FLOAT_BYTES * returned)
    return [look.request for look in looks]


class PlannedLook(NamedTuple):
    """An engine request that is looked into; how many numbers it keeps, and answers."""

    request: Request
    computed: int
    returned: int


def _plan_look(served: ServedModel, body: InspectOptions, request: Request) -> PlannedLook:
    outputs = body.inspect or ()
    patterns = value_patterns(body)
    length = len(request.tokens)
    since, positions = inspected_positions(body, length)
    max_new = served.context - length + 1 if request.max_new is None else request.max_new
    end = length + max(0, max_new - 1)
    missing = first_outside(positions or (), end)
    message = f"Position {missing} is not there; at most {end} tokens are read, 0 to {end - 1}."
    refuse(missing is not None, message, "positions")
    shapes = served.engine.shapes
    count = end - since if positions is None else len(positions)
    returned = _size(shapes, patterns, count, end) + summary_size(served, body, count)
    for word in body.track:
        streams.word_id(served.model, served.tokenizer, word)
    if "lens" in outputs:
        streams.needs_head(served.model, "it has no lens.")
        patterns += [name for name in LENS_VALUES if matching(shapes, [name])]
    computed = _size(shapes, patterns, end - since, end)
    if "top_tokens" in outputs:
        request = replace(
            request,
            logprobs=max(body.top, request.logprobs or 0),
            prompt_logprobs=max(body.top, request.prompt_logprobs or 0),
        )
    elif request.prompt_logprobs is not None:
        since = 0
    edits = served.parse_edits(body)
    looked = replace(request, want=patterns, since=since, edits=edits)
    return PlannedLook(looked, request.n * computed, request.n * returned)


def summary_size(served: ServedModel, body: InspectOptions, positions: int) -> int:
    """Numbers of the lens and of top_tokens at so many positions: an id and a probability for each
    token that they name; of the lens at each depth, with the entropy and the divergence."""
    outputs = body.inspect or ()
    size = 2 * positions * (1 + body.top) if "top_tokens" in outputs else 0
    if "lens" in outputs:
        if getattr(body, "positions", None) is None and not getattr(body, "stream", False):
            positions = min(positions, lens.MOST)
        depths = len(matching(served.engine.shapes, LENS_VALUES))
        size += 2 * positions * depths * (1 + body.top + len(body.track))
    return size


class Inspector:
    """Builds the inspections of one continuation from the engine's events."""

    def __init__(self, served: ServedModel, body: InspectOptions, handle: RequestHandle) -> None:
        self.served = served
        self.body = body
        self.handle = handle
        self.tokens = [*handle.prompt]
        self.drained = 0
        self.pending = list[int]()  # drawn and not read
        self.captures = list[RecordedValues]()
        # by position
        self.logprobs = dict[int, float | None]()
        self.top_logprobs = dict[int, Sequence[tuple[int, float]]]()

    def push(self, event: Event) -> None:
        """Adds an event of the continuation."""
        self.tokens += self.pending
        self.top_logprobs[len(self.tokens) - 1] = event.top
        self.pending = [] if event.token is None else [event.token]
        self.logprobs[len(self.tokens)] = event.logprob
        self.captures += [] if event.records is None else [event.records]

    @property
    def is_drained(self) -> bool:
        """True if every computed token has been reported."""
        return self.drained == len(self.tokens)

    def drain(self) -> Inspection:
        """Inspection of the tokens computed since the last call."""
        start = self.drained
        end = len(self.tokens)
        since, requested = inspected_positions(self.body, len(self.handle.prompt))
        positions = [
            position
            for position in range(max(start, since), end)
            if requested is None or position in requested
        ]
        self.drained = end
        outputs = self.body.inspect or ()
        patterns = value_patterns(self.body)
        inspection = _head(
            self.served, self.body, "the engine's own steps", start, self.tokens[start:]
        )
        nothing = RecordedValues(start, {})
        capture = concatenate(self.captures) if self.captures else nothing
        self.captures = []
        if patterns:
            rows = torch.tensor(positions, dtype=torch.long) - capture.start
            selected = {}
            for path, x in matching(capture.values, patterns).items():
                selected[path] = x.index_select(token_axis(path), rows.to(x.device))
            inspection["values"] = _values(selected, None)
            for value in inspection["values"].values():
                value["positions"] = None if len(positions) == end - start else positions
        if "lens" in outputs and positions:
            inspection["lens"] = self._lens(
                capture, positions if requested is not None else positions[-lens.MOST :]
            )
        if "top_tokens" in outputs:
            self._add_prompt_logprobs()
            inspection["top_tokens"] = [self._top_tokens(position) for position in positions]
        return inspection

    def _add_prompt_logprobs(self) -> None:
        since = self.handle.request.since  # type: ignore[union-attr]
        for position, entry in enumerate(self.handle.prompt_logprobs or (), since):
            self.logprobs.setdefault(position, entry.logprob)
            if position > since:
                self.top_logprobs.setdefault(position - 1, entry.top)

    def _lens(self, capture: RecordedValues, positions: Sequence[int]) -> JsonObject:
        rows = [position - capture.start for position in positions]
        states = {path: x[0, rows] for path, x in matching(capture.values, LENS_VALUES).items()}
        # of a recurrent model the last cell's state is what the head reads
        out = states.pop(LENS_VALUES[-1], None)
        out = states[[*states][-1]] if out is None else out
        model = self.served.model
        tokenizer = self.served.tokenizer
        track = [streams.word_id(model, tokenizer, word) for word in self.body.track]
        ids = [self.tokens[position] for position in positions]
        end = len(self.tokens)
        states_args = (streams.States("decoder", states, out), ids, positions, end)
        return lens.lens_of_states(
            model, tokenizer, *states_args, track=track, top=self.body.top
        ).to_dict()

    def _top_tokens(self, position: int) -> JsonObject:
        """Token at a position, its log-probability, and the top tokens after it."""
        named = self._scored_token(self.tokens[position], self.logprobs.get(position))
        likely = self.top_logprobs.get(position, ())[: self.body.top]
        return {
            "position": position,
            **named,
            "next": [self._scored_token(*candidate) for candidate in likely],
        }

    def _scored_token(self, token: int, logprob: float | None) -> JsonObject:
        return {"token": token, "piece": self.served.tokenizer.token(token), "logprob": logprob}
