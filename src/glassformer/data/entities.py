"""Entities in words labelled B-KIND, I-KIND and O: where they are, and how many were found (Tjong
Kim Sang 2002)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

Entity = tuple[int, int, str]  # first word, the word after its last, kind
_BIO = re.compile(r"O|[BI](-.+)?")


def are_bio(labels: Iterable[str]) -> bool:
    """Whether these labels tell where entities begin (B), go on (I) and are not (O)."""
    labels = set(labels)
    return labels > {"O"} and all(map(_BIO.fullmatch, labels))


def entities(labels: Sequence[str]) -> list[Entity]:
    """The entities of one sentence, as conlleval reads them: one also begins at an I that goes on
    with no other."""
    found: list[Entity] = []
    begin, kind = 0, None
    for at, label in enumerate([*labels, "O"]):
        goes_on = label[0] == "I" and label[2:] == kind
        if kind is not None and not goes_on:
            found.append((begin, at, kind))
        if not goes_on:
            begin, kind = at, None if label == "O" else label[2:]
    return found


def agreement(told: Iterable[Sequence[str]], right: Iterable[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 of all sentences' entities, 0 to 1: only the same words and kind are
    right."""
    both = said = there = 0
    for one, other in zip(told, right, strict=True):
        found, wanted = set(entities(one)), set(entities(other))
        both, said, there = both + len(found & wanted), said + len(found), there + len(wanted)
    shares = {"precision": both / max(1, said), "recall": both / max(1, there)}
    return {**shares, "f1": 2 * both / max(1, said + there)}
