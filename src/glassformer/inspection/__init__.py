"""Inspection: what happens inside a model while it runs."""

from .look import describe, lines, look, paths

__all__ = ["describe", "lines", "look", "paths"]
