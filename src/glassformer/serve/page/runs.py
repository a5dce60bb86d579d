"""LRU cache of traces, bounded in bytes; equal requests have equal ids."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...core.errors import UserError
from ...core.files import JsonObject
from ..asgi.replies import CancelCheck, not_found
from .fields import RunFields
from .models import Loaded, ModelEntry, Models

if TYPE_CHECKING:
    from ...sight.recording.module_trace import ModuleTrace

MAX_BYTES = 1 << 30  # bytes of all traces, and of models that are in memory for them alone
# of answers: another number makes other ids, so that no browser takes what it kept for the new
FORMAT = 1


@dataclass
class CachedTrace:
    """Cached trace with its id, model and response.

    ``read_args`` are the arguments with which the library reads the same input again: source ids
    and edits.
    """

    id: str
    entry: ModelEntry
    loaded: Loaded
    trace: ModuleTrace
    answer: JsonObject
    text: Any
    read_args: dict[str, Any]

    def measure_error(self, check: CancelCheck) -> JsonObject:
        """Largest difference between the traced and the plain forward pass, computed at first
        use."""
        with self.loaded.acquire(check):
            errors: JsonObject = self.answer["check"]
            if errors["captured_vs_fast_max_abs"] is None:
                errors["captured_vs_fast_max_abs"] = self.trace.check()
            return errors

    @property
    def bytes(self) -> int:
        """Size of recorded values."""
        return int(self.trace.kept_bytes)


class TraceCache:
    """Runs by id, the most recently used last."""

    def __init__(self, models: Models, max_bytes: int = MAX_BYTES) -> None:
        self.models = models
        self.max_bytes = max_bytes
        self._runs: OrderedDict[str, CachedTrace] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, id: str) -> CachedTrace:
        with self._lock:
            if id not in self._runs:
                raise not_found(
                    f'There is no run "{id[:40]}" any more; ask for it again by its text.'
                )
            self._runs.move_to_end(id)
            return self._runs[id]

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: CachedTrace) -> None:
        """Adds a run and evicts the oldest beyond the byte limit."""
        with self._lock:
            self._runs[run.id] = run
            self._runs.move_to_end(run.id)
            while self._bytes() > self.max_bytes and len(self._runs) > 1:
                self._runs.popitem(last=False)

    def _bytes(self) -> int:
        runs = self._runs.values()
        models = {run.loaded for run in runs if run.entry.loaded is not run.loaded}
        return sum(run.bytes for run in runs) + sum(model.bytes for model in models)

    def make(self, fields: RunFields, check: CancelCheck = lambda: None) -> JsonObject:
        """Returns the run of a text, cached or new. Raises UserError for invalid input."""
        entry = self.models[fields.model]
        loaded = entry.open(check)
        from ...sight.edits import apply

        edits = fields.parsed_edits()
        text, source, cut = fields.text, fields.source, fields.cut
        prompt = text if fields.ids is None else fields.ids
        tokens, text_truncated = loaded.encode(prompt, False, cut)
        source_ids, source_truncated = (
            (None, 0) if source is None else loaded.encode(source, True, cut)
        )
        id = _id(loaded, edits, tokens, source_ids)
        with self._lock:
            cached = self._runs.get(id)
        # the same run may be of a longer text
        truncation = truncation_report(
            ("text", tokens, text_truncated), ("source", source_ids, source_truncated)
        )
        if cached is not None:
            return {**self[id].answer, **truncation, "model": entry.id, "found": True}
        pair = entry.card()["abilities"]["source"]
        if pair != (source_ids is not None):
            raise UserError(
                "An encoder-decoder reads two texts; give the encoder's as source."
                if pair
                else "Only an encoder-decoder has a source; leave it out."
            )
        with loaded.acquire(check):
            hooks: Any = {}
            ids = tokens
            read_args = {"source": source_ids, "edits": edits}
            if edits:
                ids, source_ids, hooks = apply(
                    edits, loaded.model, tokens, source_ids, loaded.tokenizer
                )
            trace = loaded.trace(ids, source_ids, hooks, check)
        check()
        run = self._add_run(entry, loaded, id, trace, tokens, read_args, (text, source))
        run.answer |= truncation
        return run.answer

    def add_trace(
        self, entry: ModelEntry, trace: ModuleTrace, text: str | None, source: str | None
    ) -> None:
        """Adds a trace without edits that was made elsewhere."""
        loaded = entry.open()
        read_args: dict[str, Any] = {"source": trace.source, "edits": []}
        id = _id(loaded, [], trace.tokens, trace.source)
        self._add_run(entry, loaded, id, trace, trace.tokens, read_args, (text, source))

    def _add_run(
        self,
        entry: ModelEntry,
        loaded: Loaded,
        id: str,
        trace: ModuleTrace,
        tokens: Any,
        read_args: dict[str, Any],
        texts: tuple[str | None, str | None],
    ) -> CachedTrace:
        from ...sight import answers

        text, source = texts
        spans = answers.spans(loaded.tokenizer, tokens[0].tolist(), text)
        answer = {
            "model": entry.id,
            "digest": loaded.digest,
            **answers.run(trace, spans, source),
            "run": id,
            "edits": list(map(repr, read_args["edits"])),
            "check": {"captured_vs_fast_max_abs": None},
        }
        run = CachedTrace(id, entry, loaded, trace, answer, tokens, read_args)
        self.add(run)
        return run


def _id(loaded: Loaded, edits: list[Any], tokens: Any, source: Any) -> str:
    """Run id: a hash of model digest, edits and token ids."""
    source_ids = None if source is None else source.tolist()
    identity = [FORMAT, loaded.digest, list(map(repr, edits)), tokens.tolist(), source_ids]
    return f"r_{hashlib.sha256(repr(identity).encode()).hexdigest()[:16]}"


def truncation_report(*inputs: tuple[str, Any, int]) -> JsonObject:
    """Reports truncated inputs (name, ids, number of tokens left out), in words and numbers."""
    messages = [
        f"Of the {name} the first {ids.shape[1]:,} of {ids.shape[1] + truncated:,} tokens are read."
        for name, ids, truncated in inputs
        if truncated
    ]
    left_out = {
        "tokens" if name == "text" else "source_tokens": truncated for name, _, truncated in inputs
    }
    return {"cut": " ".join(messages) or None, "left_out": left_out}
