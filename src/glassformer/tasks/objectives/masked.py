"""Tokens that were hidden.

    text   Thank you for inviting me to your party last week
    mask   Thank you [M] inviting me to your apple last week        targets  for, party

B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.config import Encoder, Model
from ...core.config.objective import Tune
from ...core.config.serial import InnerShare, frozen
from ...core.errors import UserError
from .documents import ENCODER_SPECIALS, SomeTokens, documents

if TYPE_CHECKING:
    from .documents import Array, Batch, Tokenizer


@frozen
class Masked(SomeTokens):
    """The tokens that were hidden (Devlin et al. 2019): ``mask_rate`` of them are chosen, 80 %
    become the mask, 10 % another token, 10 % stay. ``whole_words`` chooses all pieces of a word
    together.
    """

    mask_rate: InnerShare = 0.15  # share of tokens that are chosen
    whole_words: bool = False  # choose all pieces of a word together

    shapes = (Encoder,)
    specials = ENCODER_SPECIALS

    def check(
        self, model: Model, tokenizer: Any = None, *, examples: bool, tune: Tune | None = None
    ) -> None:
        """UserError for a tokenizer without a mask too."""
        super().check(model, tokenizer, examples=examples)
        if tokenizer is not None:
            _mask_of(tokenizer)

    def prepare(
        self, batch: Batch, random: np.random.Generator, tokenizer: Tokenizer | None
    ) -> Batch:
        """Hide each token with probability ``mask_rate``, or each word; the targets are what was
        there.

        Special tokens and padding are never chosen. Raises UserError when the tokenizer has no
        mask.
        """
        import torch

        mask = _mask_of(tokenizer)
        assert tokenizer is not None
        ordinary, opens = _kinds(tokenizer)
        tokens = batch.tokens.numpy()
        batch_documents = documents(batch)
        may = ordinary[tokens] & (batch_documents.of >= 0)
        if self.whole_words:
            after = np.pad(may, ((0, 0), (1, 0)))[:, :-1]
            word = (
                (opens[tokens] | (batch_documents.place == 0) | ~may | ~after)
                .cumsum()
                .reshape(tokens.shape)
            )
            chosen = may & (random.random(word.max() + 1) < self.mask_rate)[word]
        else:
            chosen = may & (random.random(tokens.shape) < self.mask_rate)
        if not chosen.any() and may.any():
            chosen.flat[random.choice(np.flatnonzero(may))] = True  # a batch asks something
        fate, ordinary_ids = random.random(tokens.shape), np.flatnonzero(ordinary)
        inputs = np.where(chosen & (fate < 0.8), mask, tokens)
        inputs = np.where(
            chosen & (fate >= 0.9),
            ordinary_ids[random.integers(len(ordinary_ids), size=tokens.shape)],
            inputs,
        )
        targets = np.where(chosen, tokens, -1)
        return dataclasses.replace(
            batch, tokens=torch.from_numpy(inputs), targets=torch.from_numpy(targets)
        )


def _mask_of(tokenizer: Tokenizer | None) -> int:
    if tokenizer is None or tokenizer.mask is None:
        sentence = (
            "This tokenizer has no mask token to hide tokens with; use one that has, or "
            "train one with"
        )
        raise UserError(f'{sentence} "[MASK]".')
    return tokenizer.mask


@functools.lru_cache(maxsize=4)
def _kinds(tokenizer: Tokenizer) -> tuple[Array, Array]:
    """Two masks over the ids (V,): not a special token; begins a word (words are split at white
    space)."""
    special = set(tokenizer.specials.values())
    names = [tokenizer.token(id) for id in range(tokenizer.size)]
    ordinary = np.array([bool(name) and id not in special for id, name in enumerate(names)])
    prefix = json.loads(tokenizer.to_json())["model"].get("continuing_subword_prefix")
    if prefix:  # WordPiece marks what goes on instead
        return ordinary, np.array([not name.startswith(prefix) for name in names])
    return ordinary, np.array(
        [tokenizer.bytes_of(id)[:1].isspace() for id in range(tokenizer.size)]
    )
