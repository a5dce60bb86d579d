"""Inspection: what happens inside a model while it runs."""

from .looking import describe, look, paths, summarise, to_dict

__all__ = ["describe", "look", "paths", "summarise", "to_dict"]
