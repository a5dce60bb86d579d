"""Evaluation: a model held against text it has not seen."""

from .score import Score, score

__all__ = ["Score", "score"]
