"""``glassformer classify``: the label of each text, or of each word, and how sure the model is."""

from __future__ import annotations

import argparse
from typing import Any

from .common import (
    computing,
    counting,
    editing,
    edits_of,
    emit,
    model_and_tokenizer,
    reading,
    texts,
    truncating,
)

EXAMPLES = (
    'glassformer classify out/labels "a film to see twice"',
    'glassformer classify out/names "Ann saw Rome ." # a word and its label a line',
)


def options(one: argparse.ArgumentParser) -> None:
    reading(one)
    one.add_argument(
        "--second",
        action="append",
        metavar="TEXT",
        help="the other text, where the model reads two",
    )
    truncating(one)
    editing(one)
    computing(one)
    one.add_argument(
        "--json", action="store_true", help="every label's probability as JSON, a text a line"
    )


def run(given: argparse.Namespace) -> None:
    from .. import generation
    from ..errors import need

    first = texts(given, given.text)
    second = given.second
    unequal = f"There are {len(first)} texts and {len(second or ())} second ones; give as many."
    need(second is None or len(second) == len(first), unequal)
    need(given.batch >= 1, f"batch is {given.batch}; give 1 or more.")
    given.edit = edits_of(given)
    model, tokenizer = model_and_tokenizer(given)
    if generation.tags(model.config):
        need(
            second is None,
            "This model gives each word its label and reads one text; leave --second out.",
        )
        tags(given, model, tokenizer, [text.split() for text in first])
        return
    pairs = first if second is None else list(zip(first, second, strict=True))
    how = {
        "truncate": given.truncate,
        "batch": given.batch,
        "progress": counting("texts"),
        "edits": given.edit,
    }
    found = generation.classify(model, tokenizer, pairs, **how)
    names = labels_of(given.model, found.shape[1])
    for text, row in zip(first, found.tolist(), strict=True):
        if given.json:
            emit(
                {
                    "text": text,
                    **(dict(zip(names, row, strict=True)) if len(row) > 1 else {"value": row[0]}),
                }
            )
        elif len(row) == 1:
            print(f"{row[0]:10.4f}  {text}")
        else:
            best = max(range(len(row)), key=row.__getitem__)
            print(f"{names[best]:12} {row[best]:.4f}  {text}")


def tags(given: argparse.Namespace, model: Any, tokenizer: Any, sentences: list[list[str]]) -> None:
    """The label of each word, a word a line as CoNLL has it, or a sentence a line as JSON."""
    from .. import generation

    names = labels_of(given.model, model.config.token_head.labels)
    how = {"batch": given.batch, "progress": counting("texts"), "edits": given.edit}
    found = generation.tag(model, tokenizer, sentences, **how)
    for words, rows in zip(sentences, found, strict=True):
        labels = [names[best] for best in rows.argmax(1).tolist()]
        if given.json:
            emit({"tokens": words, "labels": labels, "probabilities": rows.amax(1).tolist()})
        else:
            print("".join(f"{word}\t{label}\n" for word, label in zip(words, labels, strict=True)))


def labels_of(name: str, count: int) -> list[str]:
    """The labels' names that were saved with a model, or their numbers."""
    from ..checkpoints import Checkpoint

    return list(Checkpoint.open(name).labels) or [str(number) for number in range(count)]
