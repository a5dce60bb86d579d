"""Modules of the mechanisms that only some families have; their configs need no torch."""
