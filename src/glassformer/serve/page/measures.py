"""Measurements of a model rather than of one run: head scores, a word in two contexts."""

from __future__ import annotations

from ...core.errors import UserError, need
from ...core.files import JsonObject
from ..asgi.replies import CancelCheck
from .models import Models
from .runs import text_field

MOST_CONTEXT = 10_000  # characters of a text that a word stands in


def heads(models: Models, fields: JsonObject, check: CancelCheck, name: str) -> JsonObject:
    """Attention head scores on repeated random tokens, cached. Raises UserError for models without
    heads."""
    from ...sight.heads import head_scores

    loaded = models[name].open(check)
    with loaded.acquire(check):
        if loaded.heads is None:
            loaded.heads = head_scores(loaded.model, loaded.tokenizer).to_dict()
        return loaded.heads


def contexts(models: Models, payload: JsonObject, check: CancelCheck) -> JsonObject:
    """{model, word, texts: [one, another]} -> the word's cosine at each depth. UserError where a
    text lacks it."""
    from ...sight.contexts import word_in_contexts

    entry = models[text_field(payload, "model", 200) or ""]
    word = text_field(payload, "word", 200) or ""
    texts = payload.get("texts")
    need(isinstance(texts, list) and len(texts) == 2, "texts are two; give both.")
    first, second = (text_field({"text": text}, "text", MOST_CONTEXT) or "" for text in texts or ())
    need(bool(word.strip()), "There is no word; give one that stands in both texts.")
    loaded = entry.open(check)
    if loaded.tokenizer is None:
        raise UserError("This model has no tokenizer, so it reads no words; take one that has.")
    with loaded.acquire(check):
        return word_in_contexts(loaded.model, loaded.tokenizer, word, first, second).to_dict()
