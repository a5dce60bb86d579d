"""Traces that are kept: the latest, within a bound of bytes; the same request has the same id."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from ..errors import UserError, need
from .models import Check, Entry, Loaded, Missing, Models

if TYPE_CHECKING:
    from ..inspection.tracing import Trace

KEPT = 1 << 30  # bytes of all traces
# of answers: another number makes other ids, so that no browser takes what it kept for the new
FORMAT = 1
MOST_TEXT = 1 << 20  # characters of a text


class Run:
    """One trace: its id, the model that it is of, and what was answered when it was made.

    ``asked`` is what others of the library need to read the same again: the text and source as ids,
    and the edits.
    """

    def __init__(
        self,
        id: str,
        loaded: Loaded,
        trace: Trace,
        answer: dict[str, Any],
        text: Any,
        asked: dict[str, Any],
    ) -> None:
        self.id, self.loaded, self.trace, self.answer, self.text, self.asked = (
            id,
            loaded,
            trace,
            answer,
            text,
            asked,
        )

    def checked(self, check: Check) -> dict[str, Any]:
        """How far the recorded pass is from one that nobody watches; computed when first asked
        for."""
        with self.loaded.held(check):
            told: dict[str, Any] = self.answer["check"]
            if told["captured_vs_fast_max_abs"] is None:
                told["captured_vs_fast_max_abs"] = self.trace.check()
            return told

    @property
    def bytes(self) -> int:
        """What it holds: recorded values and computed ones."""
        made = sum(one.numel() * one.element_size() for one in list(self.trace._made.values()))
        return self.trace.kept_bytes + made


class Runs:
    """Runs by id, the one used last at the end."""

    def __init__(self, models: Models, kept: int = KEPT) -> None:
        self.models, self.kept = models, kept
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._turn = threading.Lock()

    def __getitem__(self, id: str) -> Run:
        with self._turn:
            if id not in self._runs:
                raise Missing(
                    f'There is no run "{id[:40]}" any more; ask for it again by its text.'
                )
            self._runs.move_to_end(id)
            return self._runs[id]

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: Run) -> None:
        """Keep it; the oldest go where there is too much."""
        with self._turn:
            self._runs[run.id] = run
            self._runs.move_to_end(run.id)
            held = sum(one.bytes for one in self._runs.values())
            while held > self.kept and len(self._runs) > 1:
                _, old = self._runs.popitem(last=False)
                held -= old.bytes

    def make(self, asked: dict[str, Any], check: Check = lambda: None) -> dict[str, Any]:
        """The run of {model, text or ids, source?, edits?, cut?}, made or found.

        Raises UserError for what cannot be read.
        """
        entry = self.models[one_text(asked, "model", 200) or ""]
        loaded = entry.open(check)
        from ..inspection import answers
        from ..nn.editing import apply

        edits = [one_edit(line) for line in edit_lines(asked)]
        text, source = one_text(asked, "text"), one_text(asked, "source")
        cut = bool(asked.get("cut"))
        tokens, left = read(loaded, asked.get("ids", text), False, cut)
        given, source_left = (None, 0) if source is None else read(loaded, source, True, cut)
        id = _id(loaded, edits, tokens, given)
        with self._turn:
            known = self._runs.get(id)
        # the same run may be of a longer text
        over = beyond(("text", tokens, left), ("source", given, source_left))
        if known is not None:
            return {**self[id].answer, **over, "model": entry.id, "found": True}
        pair = entry.card()["abilities"]["source"]
        if pair != (given is not None):
            raise UserError(
                "An encoder-decoder reads two texts; give the encoder's as source."
                if pair
                else "Only an encoder-decoder has a source; leave it out."
            )
        with loaded.held(check):
            hooks: Any = {}
            ids = tokens
            how = {"source": given, "edits": edits}
            if edits:
                ids, given, hooks = apply(edits, loaded.model, tokens, given, loaded.tokenizer)
            trace = traced(loaded, ids, given, hooks, check)
        check()
        spans = answers.spans(loaded.tokenizer, tokens[0].tolist(), text)
        answer: dict[str, Any] = {"model": entry.id, "digest": loaded.digest}
        answer |= answers.run(trace, spans, source)
        answer |= {
            "run": id,
            "edits": list(map(repr, edits)),
            "check": {"captured_vs_fast_max_abs": None},
        }
        answer |= over
        self.add(Run(id, loaded, trace, answer, tokens, how))
        return answer

    def keep(self, entry: Entry, trace: Trace, text: str | None, source: str | None) -> None:
        """A trace without edits that was made elsewhere: whoever asks for its ids is answered from
        it."""
        from ..inspection import answers

        loaded, ids = entry.open(), trace.tokens
        id = _id(loaded, [], ids, trace.source)
        answer: dict[str, Any] = {"model": entry.id, "digest": loaded.digest}
        answer |= answers.run(trace, answers.spans(loaded.tokenizer, ids[0].tolist(), text), source)
        answer |= {"run": id, "edits": [], "check": {"captured_vs_fast_max_abs": None}}
        self.add(Run(id, loaded, trace, answer, ids, {"source": trace.source, "edits": []}))


def _id(loaded: Loaded, edits: list[Any], tokens: Any, source: Any) -> str:
    """The same model, edits and ids have the same run."""
    named = [list(map(repr, edits)), tokens.tolist(), None if source is None else source.tolist()]
    return f"r_{hashlib.sha256(repr([FORMAT, loaded.digest, *named]).encode()).hexdigest()[:16]}"


def beyond(*parts: tuple[str, Any, int]) -> dict[str, Any]:
    """What of (name, ids, tokens left out) was not read, in words and in numbers."""
    said = [
        f"Of the {what} the first {ids.shape[1]:,} of {ids.shape[1] + more:,} tokens are read."
        for what, ids, more in parts
        if more
    ]
    left = {"tokens" if what == "text" else "source_tokens": more for what, _, more in parts}
    return {"cut": " ".join(said) or None, "left_out": left}


def traced(loaded: Loaded, tokens: Any, source: Any, hooks: Any, check: Check) -> Trace:
    """The trace of a pass that ends where ``check`` raises, at the next value that it records."""
    from ..inspection.tracing import Trace

    asks = [check]

    class Watched(Trace):
        def _run(self, wanted: Any, records: Any, model: Any = None) -> None:
            def asked(path: str) -> bool:
                asks[0]()
                return bool(wanted(path))

            super()._run(asked, records, model)

    made = Watched(loaded.model, loaded.tokenizer, tokens, source, hooks)
    asks[0] = lambda: None  # who looks at it later has not gone
    return made


def read(loaded: Loaded, text: Any, source: bool, cut: bool) -> tuple[Any, int]:
    """The ids (1, T) of a text, or of ids, and how many tokens were left out beyond the context."""
    import torch

    from .. import config
    from ..inspection import streams
    from ..inspection.looking import token_ids

    model = loaded.model
    tokenizer = loaded.tokenizer
    second = isinstance(model.config, config.EncoderDecoder) and not source
    if isinstance(text, list):
        whole = len(text) <= MOST_TEXT and all(type(id) is int and abs(id) < 1 << 63 for id in text)
        need(whole, "ids are whole numbers of a vocabulary; give a list of them.")
        ids, context = torch.tensor([text], dtype=torch.long), model.config.context
        left = max(0, ids.shape[1] - context) if cut else 0
        return token_ids(model, tokenizer, ids[:, :context] if cut else ids, second=second), left
    if not isinstance(text, str):
        raise UserError('There is no text; give "text", or "ids".')
    if tokenizer is None:
        raise UserError(
            "This model has no tokenizer, so text cannot be read; give ids, or a model with one."
        )
    shown = text
    if isinstance(model.config, config.Encoder) and tokenizer.mask is not None:
        shown = text.replace(streams.BLANK, tokenizer.token(tokenizer.mask))
    try:
        if isinstance(model.config, config.Encoder):
            return streams.read_pair(model, tokenizer, shown)[0], 0
        return token_ids(model, tokenizer, text, second=second), 0
    except UserError:
        if not cut:
            raise
    reads = tokenizer.for_source if source else tokenizer
    every, context = _all_ids(loaded, shown, reads, second), model.config.context
    return read(loaded, every[:context], source, False)[0], max(0, len(every) - context)


def _all_ids(loaded: Loaded, text: str, tokenizer: Any, second: bool) -> list[int]:
    """A text's ids with what opens it, however long it is."""
    from .. import config
    from ..tokenizer.framing import document_start, target_start

    cfg = loaded.model.config
    opening = None
    if isinstance(cfg, config.Decoder) or second:
        opening = target_start(tokenizer) if second else document_start(tokenizer)
    elif isinstance(cfg, config.Encoder):
        opening = tokenizer.bos
    return ([] if opening is None else [opening]) + list(
        tokenizer.encode(text, special=isinstance(cfg, config.Encoder))
    )


def one_text(asked: dict[str, Any], key: str, most: int = MOST_TEXT) -> str | None:
    """A text of a request; None where it is not given. Raises UserError for what is none, or too
    long."""
    value = asked.get(key)
    if value is None:
        return None
    need(isinstance(value, str), f'"{key}" is a text; give one.')
    need(
        len(value) <= most,
        f'"{key}" has {len(value):,} characters and {most:,} are read; shorten it.',
    )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(
            f'"{key}" holds half a character (a lone surrogate); give whole ones.'
        ) from None
    return str(value)


def edit_lines(asked: dict[str, Any]) -> list[str]:
    """The edits of a request, as lines."""
    lines = asked.get("edits") or []
    need(isinstance(lines, list) and len(lines) <= 100, "edits are a list of texts, 100 at most.")
    for line in lines:
        need(
            isinstance(line, str) and len(line) <= 2000,
            "An edit is a text of 2,000 characters at most.",
        )
    return lines


def one_edit(line: str) -> Any:
    """The edit that a line says."""
    from ..inspection.edits import parse

    return parse(line)
