"""New special tokens for a trained model: the tokenizer grows, and the tables by a row for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..core.config.serial import change
from ..core.errors import need
from ..core.nn import Model
from ..core.tokenizer.tokenizer import Tokenizer
from ..fast.quantized import quantized
from .tokenizer_forms import added_token, tokenizer_of
from .weights import new_model

TABLES = ("embed.token.weight", "head.proj.weight", "head.proj.bias")
"""The parameters with a row for each token."""


def grow(tokenizer: Tokenizer, names: Sequence[str]) -> Tokenizer:
    """The tokenizer with more special tokens, behind all that it has. Raises UserError for one that
    it has already."""
    vocabulary = tokenizer.vocabulary()
    need(len({*names}) == len(names), "--add-tokens names a token twice; name each one once.")
    for name in names:
        need(bool(name.strip()), "--add-tokens has an empty name; give each token a name.")
        need(name not in vocabulary, f'The tokenizer has "{name}" already; leave it out.')
    added = [added_token(tokenizer.size + at, name) for at, name in enumerate(names)]
    spec = {**tokenizer.spec, "added_tokens": [*tokenizer.spec["added_tokens"], *added]}
    grown = tokenizer_of(spec, dict(tokenizer.roles))
    grown.ends, grown.chat_template = tokenizer.ends, tokenizer.chat_template
    return grown


def add_tokens(model: Model, tokenizer: Tokenizer, names: Sequence[str]) -> tuple[Model, Tokenizer]:
    """The model and the tokenizer with more special tokens; their rows begin as the mean of the
    others (Hewitt 2021).

    Raises UserError for quantized weights and for a source with a vocabulary of its own.
    """
    need(not quantized(model), "Quantized tables do not grow; add tokens before quantizing.")
    two_sided = model.config.source_embed is not None
    need(not two_sided, "A model with two vocabularies takes no more tokens.")
    grown = grow(tokenizer, names)
    rows = max(model.config.embed.vocab, grown.size)
    weight = next(model.parameters())
    cfg = change(model.config, {"embed.vocab": rows})
    wider = new_model(cfg, weight.dtype, weight.device, seed=0)
    wider.family = model.family
    before = dict(model.named_parameters())
    with torch.no_grad():
        for path, param in wider.named_parameters():
            if path in TABLES:
                trained = before[path][: tokenizer.size]
                param[: len(before[path])] = before[path]
                param[tokenizer.size :] = trained.float().mean(0).to(param.dtype)
            else:
                param.copy_(before[path])
    return wider.train(model.training), grown
