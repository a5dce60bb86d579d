"""The table of names between a family's files and a model's parameters. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

Names: TypeAlias = Mapping[str, str]  # of layers, those of the files and ours
Pairs: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class NameRule:
    """The name of weights in a family's files, and those of the model's parameters that they fill.

    A {letter} on both sides repeats the rule; a {letter} in the file's name alone stacks along a
    new first axis; several parameters are the whole tensor's parts, as wide as in the model.
    ``transpose`` turns each matrix of the files. ``axes`` says how else its axes become the
    parameter's, as einops writes it, h being ``heads``:

        "h c d -> (h d) c"            a heads axis folded (TransformerLens' W_Q)
        "(h d 2) c -> (h 2 d) c"      rotary pairs of neighbours to halves (original Llama files)
        "1 v -> (1 v)"                one more axis, of 1, in front of the file's tensor

    ``groups``: the file deals the rows of several parameters out to so many groups (Falcon 40B: the
    queries, the key and the value of each key-value head lie together). ``numbers``: what the file
    holds of each number x, "1 + x" or "-exp(x)"; none: x.
    """

    file_name: str
    param_names: str | tuple[str, ...]
    transpose: bool = False
    axes: str = ""
    heads: int = 1
    groups: int = 1
    numbers: str = ""

    @property
    def params(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return (self.param_names,) if isinstance(self.param_names, str) else self.param_names


@dataclass(frozen=True)
class Table:
    """All the rules of a family (none: every name is our own), and what its files may hold besides.

    ``ignore``: names of constants that older files carry. ``copies``: (name, original), where a
    file may repeat a tied weight. ``prefix``: what files saved from the bare model leave away.
    ``renamed``: (end of a name in some files, what it is here). ``constants``: (name, what is true
    of its numbers), where the files may hold what the model computes.
    """

    rules: tuple[NameRule, ...]
    ignore: tuple[str, ...] = ()
    copies: Pairs = ()
    prefix: str = ""
    renamed: Pairs = ()
    constants: tuple[tuple[str, Callable[[Any], bool]], ...] = ()


def rules(
    layers: Names,
    file: str = "",
    place: str = "",
    suffixes: tuple[str, ...] = (".weight", ".bias"),
    transpose: bool = False,
    axes: str = "",
    **options: Any,
) -> tuple[NameRule, ...]:
    """A rule for weight and bias of each of our layers and theirs, ours after ``place`` and theirs
    after ``file``; of several of ours, "attn.q attn.k", theirs computes all together.

    ``transpose``, ``axes`` and ``options`` are those of a rule; a bias has no columns.
    """
    return tuple(
        NameRule(
            f"{file}{file_name}{suffix}",
            tuple(f"{place}{name}{suffix}" for name in names.split()),
            transpose and not suffix.endswith("bias"),
            axes.replace(" c", "") if suffix.endswith("bias") else axes,
            **options,
        )
        for names, file_name in layers.items()
        for suffix in suffixes
    )


def under(file_name: str, names: Names, place: str = "attn.") -> dict[str, str]:
    """The names of a layer's parameters, ours after ``place`` and theirs below ``file_name``."""
    return {f"{place}{target}": f"{file_name}.{name}" for target, name in names.items()}


def placed(layer_rules: Sequence[NameRule], places: Iterable[str]) -> tuple[NameRule, ...]:
    """The rules with those of a layer {i} for each layer of the files and its place among our
    blocks."""
    inner = [rule for rule in layer_rules if "{i}" in rule.file_name]
    outer = [rule for rule in layer_rules if rule not in inner]
    layers = (
        replace(
            rule,
            file_name=rule.file_name.replace("{i}", str(number)),
            param_names=tuple(name.replace("{i}", place) for name in rule.params),
        )
        for number, place in enumerate(places)
        for rule in inner
    )
    return (*outer, *layers)
