"""How good answers are, beyond their loss: correlations of two lists of numbers or of labels."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def matthews(said: Tensor, right: Tensor) -> float:
    """Matthews' correlation of two lists of labels 0 and 1 (Matthews 1975); 0 where one of them never changes."""
    return pearson(said, right)  # of two binary variables it is Pearson's


def pearson(x: Tensor, y: Tensor) -> float:
    """The linear correlation of two lists, -1 to 1; 0 where one of them never changes."""
    x, y = (v.double() - v.double().mean() for v in (x, y))
    spread = math.sqrt(float(x.square().sum() * y.square().sum()))
    return float((x * y).sum()) / spread if spread else 0.0


def ranks(x: Tensor) -> Tensor:
    """Each number's place in order, from 1; equal numbers share the mean of their places."""
    _, which, count = torch.unique(x, return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    place: Tensor = last - (count - 1) / 2
    return place[which]


def correlations(said: Tensor, right: Tensor) -> dict[str, float]:
    """Pearson's correlation of the numbers and Spearman's, which is that of their ranks."""
    return {"pearson": pearson(said, right), "spearman": pearson(ranks(said), ranks(right))}
