"""Correlations of two lists, of guesses and of what is right: numbers, or labels 0 and 1."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def pearson(x: Any, y: Any) -> float:
    """The linear correlation of two lists of numbers, -1 to 1; 0 where one of them never
    changes."""
    # a mean of equal numbers need not be that number; they differ by nothing all the same
    x, y = ((v - v.mean()) * (v != v[:1]).any() for v in (_array(x), _array(y)))
    spread = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float(x @ y) / spread if spread else 0.0


matthews = pearson  # of two lists of labels 0 and 1 it is Matthews' correlation (Matthews 1975)


def ranks(x: Any) -> Array:
    """Each number's place in order, from 1; equal numbers share the mean of their places."""
    _, which, count = np.unique(_array(x), return_inverse=True, return_counts=True)
    place: Array = (count.cumsum() - (count - 1) / 2)[which]
    return place


def correlations(x: Any, y: Any) -> dict[str, float]:
    """Pearson's correlation of the numbers and Spearman's, which is that of their ranks."""
    return {"pearson": pearson(x, y), "spearman": pearson(ranks(x), ranks(y))}


def _array(x: Any) -> Array:
    # a tensor of any device and dtype
    return np.asarray(x.tolist() if hasattr(x, "tolist") else x, np.float64)
