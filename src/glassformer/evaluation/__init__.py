"""Evaluation: a model held against text it has not seen, and against answers that are known."""

from .likelihood import Likelihood, likelihoods
from .metrics import by_length, of_labels, of_numbers, of_tags, of_texts, whole_words
from .score import Score, score

__all__ = [
    "Likelihood",
    "Score",
    "by_length",
    "likelihoods",
    "of_labels",
    "of_numbers",
    "of_tags",
    "of_texts",
    "score",
    "whole_words",
]
