"""Evaluation: a model held against text it has not seen, and against answers that are known."""

from .metrics import by_length, of_labels, of_numbers, of_texts, whole_words
from .score import Score, score

__all__ = ["Score", "by_length", "of_labels", "of_numbers", "of_texts", "score", "whole_words"]
