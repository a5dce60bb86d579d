"""A bag of words: how often each word stands in a text, whatever the order; counts or TF-IDF, by
scikit-learn.

N texts, V words.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ...core.errors import UserError, need
from .word_index import Array, split

Weigh = Literal["counts", "tfidf"]
WEIGHTS = ("counts", "tfidf")

ORDER_LOST = ("the dog bites the man", "the man bites the dog")
"""Two sentences of other meaning and the same bag."""
MEANING_LOST = ("a fast car", "one quick automobile")
"""Two sentences of one meaning that share no word."""


class Bag:
    """N texts as rows of a sparse table (N, V), each of length 1 or 0, so that products are
    cosines.

    "counts" are as they are; "tfidf" weighs a word by how few texts have it (Sparck Jones 1972).
    Raises UserError for texts without a word, and without scikit-learn.
    """

    def __init__(self, texts: Sequence[str], weigh: Weigh = "tfidf") -> None:
        need(
            weigh in WEIGHTS,
            f'Words cannot be weighed by "{weigh}"; choose one of {", ".join(WEIGHTS)}.',
        )
        need(any(map(split, texts)), "The texts hold no words; give some with words in them.")
        library = _library("sklearn.feature_extraction.text")
        self.texts = list(texts)
        kind = library.CountVectorizer if weigh == "counts" else library.TfidfVectorizer
        self._reader = kind(analyzer=split, dtype=np.float64)
        self._unit = _library("sklearn.preprocessing").normalize
        self.table = self._unit(self._reader.fit_transform(self.texts))

    @property
    def words(self) -> list[str]:
        """The words of the columns."""
        return [str(word) for word in self._reader.get_feature_names_out()]

    def of(self, texts: Sequence[str]) -> Any:
        """Other texts in the same columns; words that are not among them are lost too."""
        return self._unit(self._reader.transform(texts))

    def cosines(self) -> Array:
        """Cosine of each pair of texts (N, N), from 0 to 1."""
        table: Array = (self.table @ self.table.T).toarray()
        return table

    def search(self, text: str, most: int = 10) -> list[tuple[int, float]]:
        """The texts that share most with a text: their numbers and cosines, none without a word of
        it."""
        score = (self.table @ self.of([text]).T).toarray()[:, 0]
        best = np.argsort(-score, kind="stable")[:most]
        return [(int(i), float(score[i])) for i in best if score[i] > 0]


class BagClassifier:
    """Logistic regression over a bag: a weight for each word and label. Raises UserError with fewer
    than two labels."""

    def __init__(
        self,
        texts: Sequence[str],
        labels: Sequence[int],
        weigh: Weigh = "tfidf",
        strength: float = 4.0,
    ) -> None:
        need(
            len(set(labels)) > 1,
            "All texts have the same label, so there is nothing to learn; give texts with other "
            "labels too.",
        )
        self.bag = Bag(texts, weigh)
        self._model = _library("sklearn.linear_model").LogisticRegression(C=strength, max_iter=1000)
        self._model.fit(self.bag.table, labels)

    def predict(self, texts: Sequence[str]) -> list[int]:
        """The likeliest label of each text."""
        return [int(label) for label in self._model.predict(self.bag.of(texts))]

    def loss(self, texts: Sequence[str], labels: Sequence[int]) -> float:
        """The mean of -ln(probability of the right label), in nats."""
        chances = self._model.predict_proba(self.bag.of(texts))
        column = {label: place for place, label in enumerate(self._model.classes_)}
        return float(
            -np.mean(
                [np.log(row[column[label]]) for row, label in zip(chances, labels, strict=True)]
            )
        )

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return int(self._model.coef_.size + self._model.intercept_.size)

    def strongest(self, most: int = 10) -> tuple[list[str], list[str]]:
        """The words with the largest weights for the first label, and for the second (of two)."""
        order = np.argsort(self._model.coef_[0])
        words = self.bag.words
        return [words[i] for i in order[:most]], [words[i] for i in order[::-1][:most]]


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError("A bag of words needs scikit-learn: pip install scikit-learn.") from None
