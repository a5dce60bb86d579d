"""Texts to try a model on: several lengths, from its tokenizer or drawn, continued greedily where
it can."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import config
from ..core.errors import UserError
from ..core.nn import Cache, Model
from ..core.tokenizer.framing import document_start, target_start
from ..core.tokenizer.tokenizer import Tokenizer
from . import passes
from .layouts import DocumentReader, Documents

# tokens of the longer texts: enough for every way to read, few enough for all of them in a minute
LENGTH = 40
# the lengths of the texts: two that are equal, for a batch without padding, and a shorter one
SHARES = (1.0, 1.0, 0.5)
TEXTS = (
    "The old lighthouse stood at the end of the road. Every evening Anna climbed its stairs with "
    "a lamp in her hand, ",
    "In the year 1905 the town had 3,200 people and two bridges. A train came twice a day, and "
    "it was always late. ",
    "What do you see when you look through a glass of water? The table, the window and the sky, "
    "but upside down. ",
)


def draw(
    model: Model, tokenizer: Tokenizer | None, new: int, seed: int = 0
) -> tuple[Documents, int]:
    """Three texts, and how many tokens at the end of each are its greedy continuation by the model
    itself.

    They are of TEXTS where there is a tokenizer that can write them, else drawn with ``seed``; an
    encoder's, and those of a model without a head, have no continuation. Raises UserError where the
    context has no room for one.
    """
    cfg = model.config
    draws = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    causal = cfg.main_body == "decoder"
    grows = causal and cfg.head is not None
    limit = passes.limit(model)
    ahead = max(1, Cache(cfg).prefix_length) if causal else 1
    longest = min(limit, max(LENGTH, ahead + 2 * new))
    lengths = [max(ahead + 1, round(share * longest)) for share in SHARES]
    if grows:
        new = min(new, min(lengths) - ahead)
    if max(lengths) > limit or new < 1:
        raise UserError(
            f"A context of {limit} has no room for {ahead} tokens and one more; give a model "
            "with a longer context."
        )

    def rows(
        vocab: int, lengths: list[int], tokenizer_of_side: Tokenizer | None, second: bool
    ) -> list[Tensor]:
        written = _written(tokenizer_of_side, vocab, lengths, cfg if second else None)
        drawn = [torch.randint(0, vocab, (length,), generator=draws) for length in lengths]
        return [row.to(device) for row in written or drawn]

    two = cfg.has_source
    starts = rows(cfg.embed.vocab, [length - new * grows for length in lengths], tokenizer, two)
    sources = None
    if two:
        short = [max(1, min(limit, round(0.6 * length))) for length in lengths]
        sources = rows(cfg.input_embed.vocab, short, tokenizer and tokenizer.for_source, False)
    documents = Documents(starts, sources)
    if grows:
        return (Documents(continued(model, documents, new), sources), new)
    return (documents, 0)


def _written(
    tokenizer: Tokenizer | None, vocab: int, lengths: list[int], pair: config.Model | None
) -> list[Tensor] | None:
    """TEXTS in tokens, repeated and cut to these lengths; None where the tokenizer cannot write
    them."""
    if tokenizer is None:
        return None
    bos = document_start(tokenizer)
    opening = target_start(tokenizer, pair) if pair else [] if bos is None else [bos]
    rows = []
    for text, length in zip(TEXTS, lengths, strict=True):
        try:
            ids = tokenizer.encode(text)
        except UserError:  # a vocabulary without these characters
            return None
        if not ids or max(ids) >= vocab:
            return None
        ids_of_row = opening + ids * (1 + length // len(ids))
        rows.append(torch.tensor(ids_of_row[:length]))
    return rows


def continued(model: Model, documents: Documents, new: int) -> list[Tensor]:
    """Each text with the ``new`` tokens that its plain passes, without a cache, would have it
    continue with greedily."""
    continuations = []
    for number, row in enumerate(documents.tokens):
        source = documents.sources and [documents.sources[number]]
        for _ in range(new):
            draft = Documents([row], source)
            logits = DocumentReader(model, draft).read(draft.alone(0))[0]["logits"]
            row = torch.cat((row, logits[-1:].argmax(-1)))
        continuations.append(row)
    return continuations
