"""One recorded pass of any model, as the instruments read it: of ours, of ``transformers`` with its
tokenizer, or of any module that reads token ids.

T tokens, V vocabulary, C model dim.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.errors import need
from ..core.nn import Model, Tape
from .labels import display_texts
from .recording.module_trace import ModuleTrace
from .recording.operations import Operation
from .recording.outside import Outside, is_pair
from .recording.rules import MOVES
from .recording.structure import Structure

OWN_TABLES = re.compile(r"(source_)?embed\.(token|lag\.\d+)")


@dataclass
class RecordedPass:
    """A pass of a module over ``tokens`` (B, T), beside the ``source`` of an encoder-decoder."""

    module: nn.Module
    tokenizer: Any
    tokens: Tensor
    source: Tensor | None
    trace: ModuleTrace
    edits: Any = ()  # of the tape of a model of ours

    @cached_property
    def structure(self) -> Structure:
        return Structure(self.trace)

    @property
    def logits(self) -> Tensor:
        """The answer: (B, T, V), or (B, V) of a classifier."""
        return self.trace.outputs[self.structure.name]

    def lookups(self) -> dict[str, tuple[int, Operation]]:
        """The tables that the tokens are looked up in: ``embed.token``, ``source_embed.token``, ours
        by their own names; which of the pass's look-ups each is."""
        tables = {}
        operations = [op for op in self.trace.operations if op.name == "embedding"]
        sides = {"embed.token": self.tokens, "source_embed.token": self.source}
        for number, operation in enumerate(operations):
            if OWN_TABLES.fullmatch(name := operation.outputs[0].address):
                tables[name] = number, operation
            ids = operation.inputs[0]
            while ids.operation is not None and ids.operation.name in MOVES:
                ids = ids.operation.inputs[0]
            for name, tokens in sides.items():
                if tokens is None or ids.tensor is None or ids.kind != "input":
                    continue
                if torch.equal(ids.tensor, tokens):
                    tables.setdefault(name, (number, operation))
        return tables

    def again(self, rows: Mapping[int, Tensor], count: int, position: int) -> Any:
        """The answer to ``count`` texts at once with other ``rows`` (B, T, C) of look-ups, by their
        number in the pass; of a model of ours logits at a position alone."""

        def widened(x: Any) -> Any:
            return x.expand(count, *x.shape[1:]) if isinstance(x, Tensor) else x

        kwargs = {name: widened(x) for name, x in self.trace.kwargs.items()}
        if isinstance(self.module, Model):
            place = torch.tensor([position], device=self.tokens.device)
            kwargs = {"tape": Tape(edits=self.edits), "logits": place}
        with _OtherRows(rows):
            return self.module(*map(widened, self.trace.args), **kwargs)

    @property
    def words(self) -> list[str]:
        return display_texts(self.tokenizer, self.tokens[0].tolist())

    @property
    def source_words(self) -> list[str] | None:
        if self.source is None:
            return None
        return display_texts(self.trace.source_tokenizer, self.source[0].tolist())


class _OtherRows(TorchFunctionMode):
    """Gives other rows than a table would, by the number of the look-up."""

    def __init__(self, rows: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.rows, self.count = rows, -1

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kw: Any = None) -> Any:
        if function is nn.functional.embedding:
            self.count += 1
            if self.count in self.rows:
                return self.rows[self.count]
        return function(*args, **(kw or {}))


def record_foreign(
    module: nn.Module,
    tokenizer: Any,
    text: Any,
    source: Any = None,
    edits: Any = (),
) -> RecordedPass:
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
    return RecordedPass(module, model.tokenizer, tokens, source_ids, trace)


def has_source(module: nn.Module) -> bool:
    """True for an encoder-decoder."""
    return module.config.has_source if isinstance(module, Model) else is_pair(module)


def limit(module: nn.Module) -> int:
    """The most tokens that a module reads; of one that does not say it nobody knows."""
    if isinstance(module, Model):
        return int(min(module.config.context, module.limit))
    return getattr(getattr(module, "config", None), "max_position_embeddings", None) or 1 << 20


def windows(
    module: nn.Module, tokenizer: Any, texts: Iterable[str], length: int | None = None
) -> Iterator[Tensor]:
    """Texts as rows of ids (1, T), in pieces of ``length`` tokens (None: what the module reads)."""
    most, model = min(limit(module), length or 512), Outside(module, tokenizer)
    for text in texts:
        ids = model.ids(text)
        yield from torch.split(ids, most, 1) if ids.shape[1] else ()
