"""The glossary: each term in a sentence, with its formula, its line of code and a number of a
model.

from glassformer.learn import glossary

glossary.terms()                 # every Term, in the order of the road; needs no torch
glossary.find("MQA")             # by its name or another of its names
glossary.names()                 # what is linked in a text -> the term: {"causal mask": ..., "look-ahead mask": ...}
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UserError, nearest
from ..core.files import read_toml
from .exercise import ROAD

PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Code:
    """A piece of the package's source: ``module`` (``core.nn.attention``) and the ``text`` that
    stands in it."""

    module: str
    text: str

    @property
    def path(self) -> str:
        """The file, from the package's folder: ``core/nn/attention.py``."""
        return f"{self.module.replace('.', '/')}.py"

    @property
    def line(self) -> int:
        """The line on which it begins; UserError where it no longer stands there."""
        source = (PACKAGE / self.path).read_text(encoding="utf-8")
        before, separator, _ = source.partition(self.text)
        if not separator:
            raise UserError(
                f"{self.path} no longer has {self.text!r}; point the glossary at the line that has."
            )
        return before.count("\n") + 1


@dataclass(frozen=True)
class Term:
    """One word of the field.

    ``road`` is its page of the road, ``exercise`` the one that writes it by hand, or "". ``live`` is
    a sentence with a number of a real model, the shipped one or a small one of the family.
    """

    name: str
    sentence: str
    formula: str
    code: Code
    road: int
    live: str
    also: Sequence[str] = ()
    related: Sequence[str] = ()
    exercise: str = ""

    @property
    def key(self) -> str:
        """The name as an anchor or a function: ``causal_mask``."""
        return re.sub(r"\W+", "_", self.name.lower())

    @property
    def page(self) -> str:
        """The title of its page of the road."""
        return ROAD[self.road - 1]

    def to_dict(self) -> dict[str, Any]:
        code = {"path": self.code.path, "line": self.code.line}
        return dict(vars(self)) | {"code": vars(self.code) | code, "page": self.page}


@functools.lru_cache(maxsize=1)
def terms() -> tuple[Term, ...]:
    """Every term, in the order of the road."""
    entries: list[dict[str, Any]] = read_toml(Path(__file__).parent / "glossary.toml")["term"]
    glossary = [Term(**entry | {"code": Code(*entry["code"])}) for entry in entries]
    return tuple(sorted(glossary, key=lambda term: term.road))


def names() -> dict[str, Term]:
    """Every name by which a term goes, as it is written in the middle of a sentence."""
    return {name: term for term in terms() for name in (term.name, *term.also)}


def find(name: str) -> Term:
    """The term of that name, capitals, hyphens and plurals aside; UserError with the nearest where
    there is none."""
    terms_by_name = {_plain(alias): term for alias, term in names().items()}
    requested = _plain(name)
    if match := terms_by_name.get(requested) or terms_by_name.get(requested.removesuffix("s")):
        return match
    spelt = {_plain(alias).replace(" ", "_"): alias for alias in names()}
    hint = nearest(requested.replace(" ", "_"), spelt)
    for plain, alias in spelt.items():
        hint = hint.replace(f'"{plain}"', f'"{alias}"')
    raise UserError(f'The glossary has no "{name}".{hint} glassformer define lists the terms.')


def _plain(name: str) -> str:
    return " ".join(re.sub(r"[-_]", " ", name.lower()).split())
