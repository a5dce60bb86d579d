"""Recorded passes of models that are not ours, of ``transformers`` with their tokenizer or of any
module that reads token ids; and what is asked of every model before a pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import need
from ..core.nn import Model
from .recording.module_trace import ModuleTrace
from .recording.outside import Outside, is_pair


def record_foreign(
    module: nn.Module,
    tokenizer: Any,
    text: Any,
    source: Any = None,
    edits: Any = (),
) -> ModuleTrace:
    """A pass over a text (or rows of ids), recorded; ``edits`` of a model that is not ours are
    functions by address."""
    need(
        not edits or isinstance(edits, Mapping),
        "For a model from outside Glassformer, give edits as {address: function}.",
    )
    model = Outside(module, tokenizer)
    sentence = "An encoder-decoder reads two texts; give the encoder's as source."
    need(not model.is_pair or source is not None, sentence)
    need(model.is_pair or source is None, "Only an encoder-decoder has a source; leave it out.")
    tokens = model.ids(text, model.is_pair)
    source_ids = None if source is None else model.ids(source)
    trace = model.read(tokens, source_ids)
    trace = trace.edit(edits) if edits else trace
    trace.tokens, trace.source = tokens, source_ids
    return trace


def has_source(module: nn.Module) -> bool:
    """True for an encoder-decoder."""
    return module.config.has_source if isinstance(module, Model) else is_pair(module)


def limit(module: nn.Module) -> int:
    """The most tokens that a module reads; of one that does not say it nobody knows."""
    if isinstance(module, Model):
        return module.context
    return getattr(getattr(module, "config", None), "max_position_embeddings", None) or 1 << 20


def windows(
    module: nn.Module, tokenizer: Any, texts: Iterable[str], length: int | None = None
) -> Iterator[Tensor]:
    """Texts as rows of ids (1, T), in pieces of ``length`` tokens (None: what the module reads)."""
    most = min(limit(module), length or 512)
    model = Outside(module, tokenizer)
    for text in texts:
        ids = model.ids(text)
        yield from torch.split(ids, most, 1) if ids.shape[1] else ()
