"""What is asked of a model rather than of one run: its heads' scores, one word in two contexts."""

from __future__ import annotations

from typing import Any

from ..errors import UserError, need
from .models import Check, Models
from .runs import one_text

MOST_CONTEXT = 10_000  # characters of a text that a word stands in


def heads(models: Models, name: str, check: Check) -> dict[str, Any]:
    """What each head of a model does on repeated random tokens, measured once. Raises UserError
    where it has none."""
    from ..inspection.heads import head_scores

    loaded = models[name].open(check)
    with loaded.held(check):
        if loaded.heads is None:
            loaded.heads = head_scores(loaded.model, loaded.tokenizer).to_dict()
        return loaded.heads


def contexts(models: Models, asked: dict[str, Any], check: Check) -> dict[str, Any]:
    """{model, word, texts: [one, another]} -> the word's cosine at each depth. UserError where a
    text lacks it."""
    from ..inspection.contexts import word_in_contexts

    entry = models[one_text(asked, "model", 200) or ""]
    word, given = one_text(asked, "word", 200) or "", asked.get("texts")
    need(isinstance(given, list) and len(given) == 2, "texts are two; give both.")
    first, second = (one_text({"text": one}, "text", MOST_CONTEXT) or "" for one in given or ())
    need(bool(word.strip()), "There is no word; give one that stands in both texts.")
    loaded = entry.open(check)
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        raise UserError("This model has no tokenizer, so it reads no words; take one that has.")
    with loaded.held(check):
        return word_in_contexts(loaded.model, tokenizer, word, first, second).to_dict()
