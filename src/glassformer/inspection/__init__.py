"""Inspection: what happens inside a model while it runs."""

from .alignment import alignments, svg
from .looking import describe, foretold, look, paths, summarise, to_dict, tokens

__all__ = ["alignments", "describe", "foretold", "look", "paths", "summarise", "svg", "to_dict", "tokens"]
