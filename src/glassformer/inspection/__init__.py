"""Inspection: what happens inside a model while it runs."""

from .look import describe, look, paths, summarise

__all__ = ["describe", "look", "paths", "summarise"]
