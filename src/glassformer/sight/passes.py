"""One recorded pass of any model, as the instruments read it: of ours, of ``transformers`` with its
tokenizer, or of any module that reads token ids.

T tokens, V vocabulary, C model dim.
"""

from __future__ import annotations

import inspect
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
from .recording.module_trace import KEEP, ModuleTrace
from .recording.operations import Operation
from .recording.rules import MOVES
from .recording.structure import Structure

OWN_TABLES = re.compile(r"(source_)?embed\.(token|lag\.\d+)")


class ForeignTokenizer:
    """A tokenizer of ``transformers``, called as ours are."""

    def __init__(self, tokenizer: Any) -> None:
        self.library = tokenizer
        self.size = len(tokenizer)
        self.mask: int | None = tokenizer.mask_token_id
        self.pad: int | None = tokenizer.pad_token_id
        ids = tokenizer.all_special_ids
        self.specials = dict(zip(tokenizer.all_special_tokens, ids, strict=True))
        self.for_source = self

    def token(self, number: int) -> str:
        return str(self.library.convert_ids_to_tokens(number))

    def id(self, name: str) -> int | None:
        number: int | None = self.library.get_vocab().get(name)
        return number

    def hides(self, number: int) -> bool:
        return number in self.specials.values()

    def bytes_of(self, number: int) -> bytes:
        name = self.token(number)
        text = name.replace("▁", " ") if "▁" in name else self.library.decode([number])
        return str(text).encode()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.library(text, add_special_tokens=False)["input_ids"]
        return ids

    def offsets(self, text: str) -> list[tuple[int, int]]:
        plain = self.library(text, add_special_tokens=False, return_offsets_mapping=True)
        return [(int(start), int(end)) for start, end in plain["offset_mapping"]]


def tokenizer_of(tokenizer: Any) -> Any:
    """A tokenizer as the instruments call it; None and ours as they are."""
    return ForeignTokenizer(tokenizer) if hasattr(tokenizer, "all_special_ids") else tokenizer


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
        reads = self.tokenizer and self.tokenizer.for_source
        return display_texts(reads, self.source[0].tolist())


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
    keep: int = KEEP,
) -> RecordedPass:
    """A pass over a text (or rows of ids), recorded; ``edits`` of a model that is not ours are
    functions by address."""
    tokenizer = tokenizer_of(tokenizer)
    need(
        not edits or isinstance(edits, Mapping),
        "Edits of a model that is not ours are functions by address: {address: function}.",
    )
    names = inspect.signature(module.forward).parameters
    pair = has_source(module)
    sentence = "An encoder-decoder reads two texts; give the encoder's as source."
    need(not pair or source is not None, sentence)
    need(pair or source is None, "Only an encoder-decoder has a source; leave it out.")
    first = _inputs(tokenizer, source if pair else text)
    tokens, source_ids = first["input_ids"], None
    if pair:
        source_ids = tokens
        tokens = _inputs(tokenizer, text, getattr(module, "config", None))["input_ids"]
        first["decoder_input_ids"] = tokens
    need(tokens.numel() > 0, "The text is empty; give at least one token.")
    if "input_ids" in names or any(x.kind == x.VAR_KEYWORD for x in names.values()):
        fields = {name: x for name, x in first.items() if name in names or name == "input_ids"}
        trace = ModuleTrace(module, (), fields, keep)
    else:
        trace = ModuleTrace(module, (tokens,), {}, keep)
    trace = trace.edit(edits) if edits else trace
    return RecordedPass(module, tokenizer, tokens, source_ids, trace)


def has_source(module: nn.Module) -> bool:
    """True for an encoder-decoder."""
    if isinstance(module, Model):
        return module.config.has_source
    return "decoder_input_ids" in inspect.signature(module.forward).parameters


def _inputs(tokenizer: Any, text: Any, decoder: Any = None) -> dict[str, Tensor]:
    """The arguments of a module for a text: all that its tokenizer makes of it; a decoder's begins with
    its own token."""
    if not isinstance(text, str):
        return {"input_ids": torch.atleast_2d(torch.as_tensor(text))}  # type: ignore[no-untyped-call]
    need(
        tokenizer is not None, "A text needs a tokenizer; give one, or give the text as token ids."
    )
    if decoder is not None:
        start = getattr(decoder, "decoder_start_token_id", None)
        opening = [] if start is None else [start]
        return {"input_ids": torch.tensor([[*opening, *tokenizer.encode(text)]])}
    return dict(tokenizer.library(text, return_tensors="pt"))


def limit(module: nn.Module) -> float:
    """The most tokens that a module reads; of one that does not say it nobody knows."""
    if isinstance(module, Model):
        return min(module.config.context, module.limit)
    return getattr(getattr(module, "config", None), "max_position_embeddings", None) or 1 << 20


def windows(
    module: nn.Module, tokenizer: Any, texts: Iterable[str], length: int | None = None
) -> Iterator[Tensor]:
    """Texts as rows of ids (1, T), in pieces of ``length`` tokens (None: what the module reads)."""
    most = int(min(limit(module), length or 512))
    for text in texts:
        ids = _inputs(tokenizer, text)["input_ids"]
        yield from torch.split(ids, most, 1) if ids.shape[1] else ()
