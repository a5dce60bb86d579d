"""Entities in words labelled B-KIND, I-KIND and O: where they are, and how many were found (Tjong
Kim Sang 2002)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

Entity = tuple[int, int, str]  # first word, the word after its last, kind
_BIO = re.compile(r"O|[BI](-.+)?")


def are_bio(labels: Iterable[str]) -> bool:
    """True for labels of the BIO scheme: begin (B), inside (I), outside (O)."""
    labels = set(labels)
    return labels > {"O"} and all(map(_BIO.fullmatch, labels))


def entities(labels: Sequence[str]) -> list[Entity]:
    """The entities of one sentence, as conlleval reads them: one also begins at an I that goes on
    with no other."""
    spans: list[Entity] = []
    start, kind = 0, None
    for at, label in enumerate([*labels, "O"]):
        goes_on = label[0] == "I" and label[2:] == kind
        if kind is not None and not goes_on:
            spans.append((start, at, kind))
        if not goes_on:
            start = at
            kind = None if label == "O" else label[2:]
    return spans


def agreement(
    predicted: Iterable[Sequence[str]], right: Iterable[Sequence[str]]
) -> dict[str, float]:
    """Precision, recall and F1 of all sentences' entities, 0 to 1: only the same words and kind are
    right."""
    chosen, gold = (
        {(number, *span) for number, labels in enumerate(side) for span in entities(labels)}
        for side in (predicted, right)
    )
    matches = len(chosen & gold)
    return {
        "precision": matches / max(1, len(chosen)),
        "recall": matches / max(1, len(gold)),
        "f1": 2 * matches / max(1, len(chosen) + len(gold)),
    }
