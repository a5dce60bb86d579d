"""Measurements of a model rather than of one run: head scores, a word in two contexts."""

from __future__ import annotations

from ...core.errors import UserError, need
from ...core.files import JsonObject
from ..asgi.replies import CancelCheck
from .fields import ContextsFields, PageFields
from .models import Models


def heads(models: Models, fields: PageFields, check: CancelCheck, name: str) -> JsonObject:
    """Attention head scores on repeated random tokens, cached. Raises UserError for models without
    heads."""
    from ...sight.heads import head_scores

    entry = models[name]
    loaded = entry.open(check)
    with loaded.acquire(check):
        if entry.heads is None:
            entry.heads = head_scores(loaded.model, loaded.tokenizer).to_dict()
        return entry.heads


def contexts(models: Models, fields: ContextsFields, check: CancelCheck) -> JsonObject:
    """A word's cosine at each depth in two texts. UserError where a text lacks it."""
    from ...sight.contexts import word_in_contexts

    entry = models[fields.model]
    need(len(fields.texts) == 2, "texts are two; give both.")
    need(bool(fields.word.strip()), "There is no word; give one that stands in both texts.")
    loaded = entry.open(check)
    if loaded.tokenizer is None:
        raise UserError("This model has no tokenizer, so it reads no words; take one that has.")
    with loaded.acquire(check):
        texts = fields.texts
        return word_in_contexts(loaded.model, loaded.tokenizer, fields.word, *texts).to_dict()
