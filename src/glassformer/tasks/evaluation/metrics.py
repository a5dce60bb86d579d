"""Metrics of what a model wrote or chose, against what was right: each by the library that
papers use for it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ...core.errors import need
from ..correlation import correlations
from ..entities import agreement, are_bio

TEXTS = ("bleu", "chrf", "rouge1", "rouge2", "rougeL", "exact")
"""Figures of written texts, in per cent."""
LABELS = ("accuracy", "matthews", "f1")
"""Figures of chosen labels; ``matthews`` runs from -1 to 1, the others are in per cent."""


def of_texts(
    written: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    names: Sequence[str] = ("bleu", "chrf"),
    *,
    lower: bool = False,
    tokenised: bool = False,
) -> dict[str, float]:
    """Figures of written texts against one reference each, or several: a list for each text.

    BLEU (Papineni et al. 2002) and chrF (Popovic 2015) by sacrebleu, ROUGE (Lin 2004; F1, stemmed,
    the best reference counts) by rouge-score, ``exact``: how many are the same to the letter.
    ``tokenised`` texts are already parted at white space, as older papers report BLEU; ``lower``
    ignores capitals. Raises UserError for unequal numbers.
    """
    several = [[right] if isinstance(right, str) else list(right) for right in references]
    need(
        len(written) == len(several),
        f"There are {len(written)} texts and {len(several)} references; give as many references "
        "as texts.",
    )
    need(bool(written), "There is nothing to score; give at least one text.")
    figures: dict[str, float] = {}
    for name in names:
        if name == "exact":
            pairs = zip(written, several, strict=True)
            same = str.lower if lower else str
            figures[name] = 100 * fmean(
                same(text.strip()) in (same(r.strip()) for r in right) for text, right in pairs
            )
        elif name in ("bleu", "chrf"):
            library = _library("sacrebleu")
            turned = [
                [right[min(n, len(right) - 1)] for right in several]
                for n in range(max(map(len, several)))
            ]
            if name == "bleu":
                metric = library.BLEU(
                    lowercase=lower, tokenize="none" if tokenised else "13a", force=tokenised
                )
            else:
                metric = library.CHRF(lowercase=lower)
            figures[name] = float(metric.corpus_score(list(written), turned).score)
        else:
            need(
                name in TEXTS,
                f'There is no figure "{name}" for texts; known are {", ".join(TEXTS)}.',
            )
            figures[name] = _rouge(written, several, name)
    return figures


def _rouge(written: Sequence[str], references: Sequence[Sequence[str]], name: str) -> float:
    scorer = _library("rouge_score.rouge_scorer").RougeScorer([name], use_stemmer=True)
    pairs = zip(written, references, strict=True)
    return 100 * fmean(
        float(scorer.score_multi(list(right), text)[name].fmeasure) for text, right in pairs
    )


def of_labels(chosen: Sequence[int], right: Sequence[int]) -> dict[str, float]:
    """Accuracy, macro F1 and Matthews' correlation (1975) of labels, by scikit-learn."""
    need(
        len(chosen) == len(right) > 0,
        f"There are {len(chosen)} answers to {len(right)} labels; give as many answers as labels.",
    )
    library = _library("sklearn.metrics")
    return {
        "accuracy": 100 * float(library.accuracy_score(right, chosen)),
        "f1": 100 * float(library.f1_score(right, chosen, average="macro")),
        "matthews": float(library.matthews_corrcoef(right, chosen)),
    }


def of_tags(chosen: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> dict[str, float]:
    """Accuracy of words; of labels B-KIND, I-KIND and O also precision, recall and F1 of entities
    (conlleval)."""
    pairs = [
        pair for sentence in zip(chosen, right, strict=True) for pair in zip(*sentence, strict=True)
    ]
    need(bool(pairs), "There is nothing to score; give at least one sentence.")
    shares = {"accuracy": sum(predicted == true for predicted, true in pairs) / len(pairs)}
    if are_bio(label for pair in pairs for label in pair):
        shares |= agreement(chosen, right)
    return {name: 100 * share for name, share in shares.items()}


def of_numbers(guessed: Sequence[float], right: Sequence[float]) -> dict[str, float]:
    """Pearson's and Spearman's correlations; 0 where all answers, or all right ones, are the
    same."""
    need(
        len(guessed) == len(right) > 1,
        f"There are {len(guessed)} answers to {len(right)} numbers; give two or more.",
    )
    return correlations(guessed, right)


def whole_words(text: str) -> str:
    """A text whose words were cut in pieces that end in @@ (subword-nmt), whole again."""
    return (text + " ").replace("@@ ", "").strip()


def by_length(texts: Sequence[str], borders: Sequence[int]) -> Mapping[str, list[int]]:
    """The numbers of the texts of each length in words: up to the first border, up to the second,
    and so on."""
    groups: dict[str, list[int]] = {}
    edges = [0, *borders]
    for low, high in zip(edges, [*borders, 10**9], strict=True):
        name = f"{low + 1}-{high}" if high < 10**9 else f"{low + 1}+"
        groups[name] = [n for n, text in enumerate(texts) if low < len(text.split()) <= high]
    return groups


def installed(library: str) -> None:
    """UserError unless this library, which figures of a kind come from, is installed."""
    name = library.split(".")[0]
    package = {"sklearn": "scikit-learn", "rouge_score": "rouge-score"}.get(name, name)
    is_installed = importlib.util.find_spec(name) is not None
    need(
        is_installed,
        f"Figures by {package} need it: pip install rouge-score sacrebleu scikit-learn.",
    )


def _library(name: str) -> Any:
    installed(name)
    return importlib.import_module(name)
