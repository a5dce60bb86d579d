"""Evaluation: a model held against text it has not seen, and against answers that are known."""

# ruff: noqa: F401
# mypy: implicit-reexport
from .likelihood import Likelihood, likelihoods
from .metrics import by_length, of_labels, of_numbers, of_tags, of_texts, whole_words
from .score import Score, score
