"""The kinds of operation, a closed set: what each computes, and the arithmetic of one cell of
it."""

from . import attention, closed, places, recurrent, sums
from .base import KINDS, Index, Kind, Line, Reader, Worked

__all__ = [
    "KINDS",
    "Index",
    "Kind",
    "Line",
    "Reader",
    "Worked",
    "attention",
    "closed",
    "places",
    "recurrent",
    "sums",
]
