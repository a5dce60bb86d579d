"""Inspection: what happens inside a model while it runs."""

from .alignment import alignments
from .looking import describe, look, paths, summarise, to_dict

__all__ = ["alignments", "describe", "look", "paths", "summarise", "to_dict"]
