"""One pass of the shipped model over a sentence, which the numbers are read from."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.core import config as c
from glassformer.core.nn.hooks import Tape
from glassformer.learn import real_model

TEXT = "The cat sat on the mat because it was tired"
AT = 7  # the token of it that activation patching changes


class Pass(NamedTuple):
    """One pass of the shipped model over TEXT."""

    model: Any
    tokenizer: Any
    ids: list[int]
    pieces: list[str]
    values: dict[str, Tensor]  # every named value, without the batch

    @property
    def chance(self) -> Tensor:
        """Probabilities of the next token (V,)."""
        return self.values["logits"][-1].softmax(-1)

    def word(self, id: int) -> str:
        return repr(self.tokenizer.decode([id]))


@functools.lru_cache(maxsize=1)
def shipped_pass() -> Pass:
    """The pass, made once."""
    model, tokenizer = real_model.real()
    ids, tape = tokenizer.encode(TEXT), Tape("*")
    with torch.no_grad():
        model(torch.tensor([ids]), tape=tape)
    values: dict[str, Tensor] = {path: value[0] for path, value in tape.records.items()}
    return Pass(model, tokenizer, ids, [tokenizer.decode([id]) for id in ids], values)


def value_of(block: int, name: str) -> Tensor:
    """A taped value of one block, by its name, such as attn.pattern."""
    value: Tensor = shipped_pass().values[f"decoder.blocks.{block}.{name}"]
    return value


def cache_bytes(model: c.Model) -> int:
    """Bytes a token in bf16."""
    body: Any = model.decoder  # type: ignore[union-attr]
    attention = body.pattern[0].attention
    size: int = (
        2 * body.depth * (attention.kv_heads or attention.heads) * attention.width(model.dim) * 2
    )
    return size
