"""Sentences on what a function of PyTorch does to one number and what a value is, which
stand in wording.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.files import read_toml

TABLES: dict[str, dict[str, str]] = read_toml(Path(__file__).with_suffix(".toml"))
SENTENCES, LEAVES = TABLES["sentences"], TABLES["leaves"]


def sentence(name: str, count: int, numbers: dict[str, Any]) -> str:
    """The sentence about a function that read ``count`` numbers."""
    plain = f"The function {name} of {count} number{'s' * (count != 1)}."
    return SENTENCES.get(name, plain).format(**numbers, count=count)


def equation(name: str) -> str:
    """The equation of a function; its own name where it has none here."""
    return TABLES["equations"].get(name, f"{name}(..)")


def of_value(address: str, kind: str) -> str:
    """The words for a value, by its address, else by the kind of its operation."""
    return TABLES["values"].get(address.rpartition(".")[2], TABLES["kinds"].get(kind, kind))
