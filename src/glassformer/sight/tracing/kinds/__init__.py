"""The kinds of operation, a closed set: what each computes, and the arithmetic of one cell of
it."""

from ..plan import KINDS, Index, Kind, Line, Reader, Worked
from . import attention, closed, places, recurrent, sums

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
