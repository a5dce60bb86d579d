"""One pass of the shipped model over a sentence, which the numbers are read from."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import config as c
from ...nn.flow import Tape
from .. import models

TEXT = "The cat sat on the mat because it was tired"
AT = 7  # the token of it that activation patching changes


class Pass(NamedTuple):
    """One pass of the shipped model over TEXT."""

    model: Any
    tokenizer: Any
    ids: list[int]
    pieces: list[str]
    seen: dict[str, Tensor]  # every named value, without the batch

    @property
    def chance(self) -> Tensor:
        """What it says of the next token (V,)."""
        return self.seen["logits"][-1].softmax(-1)

    def word(self, id: int) -> str:
        return repr(self.tokenizer.decode([id]))


@functools.lru_cache(maxsize=1)
def shipped_pass() -> Pass:
    """The pass, made once."""
    model, tokenizer = models.real()
    ids, tape = tokenizer.encode(TEXT), Tape("*")
    with torch.no_grad():
        model(torch.tensor([ids]), tape=tape)
    seen: dict[str, Tensor] = {path: value[0] for path, value in tape.records.items()}
    return Pass(model, tokenizer, ids, [tokenizer.decode([id]) for id in ids], seen)


def value_of(block: int, name: str) -> Tensor:
    """What one block of the model has under a name, such as attn.pattern."""
    found: Tensor = shipped_pass().seen[f"decoder.blocks.{block}.{name}"]
    return found


def cache_bytes(model: c.Model) -> int:
    """Bytes a token in bf16."""
    body: Any = model.decoder  # type: ignore[union-attr]
    part = body.pattern[0].attention
    found: int = 2 * body.depth * (part.kv_heads or part.heads) * c.head_dim(part, model.dim) * 2
    return found
