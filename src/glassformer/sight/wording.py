"""Sentences on what a function of PyTorch does to one number and what a value is, which
stand in wording.toml."""

from __future__ import annotations

from pathlib import Path

from ..core.files import read_toml

TABLES: dict[str, dict[str, str]] = read_toml(Path(__file__).with_suffix(".toml"))
SENTENCES, EQUATIONS, LEAVES = TABLES["sentences"], TABLES["equations"], TABLES["leaves"]


def of_value(address: str, kind: str) -> str:
    """The words for a value, by its address, else by the kind of its operation."""
    return TABLES["values"].get(address.rpartition(".")[2], TABLES["kinds"].get(kind, kind))
