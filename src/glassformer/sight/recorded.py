"""One recorded pass of a model, ours or not, as the instruments read it."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..core.nn import Model
from . import passes, streams
from .recording.trace import Trace


def record(
    model: nn.Module, tokenizer: Any, text: Any, source: Any = None, edits: Any = ()
) -> passes.RecordedPass:
    """A pass over a text (or a row of ids), recorded; ``edits`` of a model that is not ours are
    functions by address."""
    if not isinstance(model, Model):
        return passes.record_foreign(model, tokenizer, text, source, edits)
    inputs = streams.prepare(model, tokenizer, text, source, edits)
    trace = Trace(model, tokenizer, inputs.tokens, inputs.source, inputs.edits)
    return passes.RecordedPass(model, tokenizer, inputs.tokens, inputs.source, trace, inputs.edits)
