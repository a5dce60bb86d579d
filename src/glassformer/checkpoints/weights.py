"""Weights by name: a two-way table from a published checkpoint's names to ours.

    theirs (files)                       rule                          ours (the model's parameters)
    h.0.attn.c_attn.weight  --flip--> [ one whole tensor ] --split-->  blocks.0.attn.q.weight  .k.weight  .v.weight
    experts.0.w1, .1.w1, .. --stack-> [ one whole tensor ] ---------->  blocks.0.ffn.gate

Loading runs a rule left to right and saving the same rule right to left, one tensor at a time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from .. import config
from ..errors import UserError, need
from ..nn.finite import is_finite
from ..recipes.recipe import Rule, Table
from .headers import Entry, Shape, short
from .tensors import DTYPES, Files, Piece

# ------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Link:
    """One rule with its letters filled in: these tensors of theirs are those of ours."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    rule: Rule

    def load(self, theirs: Sequence[Tensor], shapes: Sequence[Shape]) -> Sequence[Tensor]:
        """Our tensors, of ``shapes``, made of theirs."""
        if self.rule.unsqueeze:
            theirs = [tensor[0] for tensor in theirs]
        # each as a whole, so that the parts are views of one tensor
        if self.rule.transpose or self.rule.axes:
            theirs = [self._turn(tensor).contiguous() for tensor in theirs]
        whole = self._join(theirs, self._stacks("theirs"))
        if self._stacks("ours"):
            return whole.unbind()
        if len(shapes) == 1:
            return [whole]
        return torch.split(whole, [shape[self.rule.axis] for shape in shapes], self.rule.axis)

    def save(self, ours: Sequence[Tensor]) -> Sequence[Tensor]:
        """Their tensors made of ours."""
        whole = self._join(ours, self._stacks("ours"))
        if self._stacks("theirs"):
            parts: Sequence[Tensor] = whole.unbind()
        elif len(self.theirs) == 1:
            parts = [whole]
        else:
            widths = self.rule.parts or (1,) * len(self.theirs)
            unit = whole.shape[self.rule.axis] // sum(widths)
            parts = torch.split(whole, [unit * width for width in widths], self.rule.axis)
        parts = [self._turn_back(part) for part in parts]
        return [part[None] for part in parts] if self.rule.unsqueeze else parts

    def _turn(self, tensor: Tensor) -> Tensor:
        source, _, target = self.rule.axes.partition("->")
        tensor = tensor.transpose(-1, -2) if self.rule.transpose else tensor
        return _rearrange(tensor, source, target, self.rule.heads) if target else tensor

    def _turn_back(self, tensor: Tensor) -> Tensor:
        source, _, target = self.rule.axes.partition("->")
        tensor = _rearrange(tensor, target, source, self.rule.heads) if target else tensor
        return tensor.transpose(-1, -2) if self.rule.transpose else tensor

    def _join(self, parts: Sequence[Tensor], stack: bool) -> Tensor:
        if len(parts) == 1 and not stack:
            return parts[0]
        # PyTorch's own joining of shapes imports its compiler, which takes seconds
        if parts[0].is_meta:
            shape = list(parts[0].shape)
            shape[self.rule.axis] = sum(part.shape[self.rule.axis] for part in parts)
            return parts[0].new_empty([len(parts), *parts[0].shape] if stack else shape)
        if stack:
            return torch.stack(list(parts))
        return torch.cat(list(parts), self.rule.axis)

    def _stacks(self, side: str) -> bool:
        other = "ours" if side == "theirs" else "theirs"
        return bool(_letters(getattr(self.rule, side)) - _letters(getattr(self.rule, other)))


def shapes(model: config.Model) -> dict[str, Shape]:
    """The name and shape of every parameter that a config describes; UserError for what no machine
    could hold."""
    found = config.model.shapes(model)
    most = max(map(math.prod, found.values()), default=0)  # torch counts bytes in 64 bits
    need(
        most < 1 << 60,
        "The config describes a tensor larger than any machine could hold; fix its sizes.",
    )
    return found


def links(table: Table, ours: Mapping[str, Shape]) -> list[Link]:
    """The table driven from our side: one link for each of our names or group of names, none left
    out.

    Raises UserError for a parameter the table does not know.
    """
    if not table.rules:
        return [Link((name,), (name,), Rule(name, name)) for name in ours]
    found: list[Link] = []
    linked: set[str] = set()
    for name in ours:
        if name not in linked:
            link = _link(table, name, ours)
            found.append(link)
            linked.update(link.ours)
    return found


def _link(table: Table, name: str, ours: Mapping[str, Shape]) -> Link:
    for rule in table.rules:
        for pattern in _as_tuple(rule.ours):
            match = _regex(pattern).fullmatch(name)
            if match is None:
                continue
            theirs, mine = _letters(rule.theirs), _letters(rule.ours)
            shared = {letter: int(match[letter]) for letter in theirs & mine}
            their_numbers = range(ours[name][0]) if theirs - mine else range(0)
            our_numbers = range(_count(pattern, shared, ours)) if mine - theirs else range(0)
            return Link(
                _fill(rule.theirs, shared, next(iter(theirs - mine), None), their_numbers),
                _fill(rule.ours, shared, next(iter(mine - theirs), None), our_numbers),
                rule,
            )
    raise UserError(
        f"The table of weight names has no rule for {name}; save it in the "
        "glassformer layout instead."
    )


def _count(pattern: str, shared: Mapping[str, int], names: Iterable[str]) -> int:
    """How many of the names fit the pattern with these letters."""
    matches = (_regex(pattern).fullmatch(name) for name in names)
    return sum(
        1
        for match in matches
        if match and all(int(match[letter]) == n for letter, n in shared.items())
    )


def _fill(
    names: str | tuple[str, ...], bound: Mapping[str, int], stack: str | None, count: range
) -> tuple[str, ...]:
    if stack is None:
        return tuple(name.format(**bound) for name in _as_tuple(names))
    return tuple(name.format(**bound, **{stack: i}) for i in count for name in _as_tuple(names))


def _as_tuple(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


@cache
def _letters(names: str | tuple[str, ...]) -> frozenset[str]:
    return frozenset(
        letter for name in _as_tuple(names) for letter in re.findall(r"\{(\w)\}", name)
    )


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w)\}", pattern)
    return re.compile(
        "".join(rf"(?P<{part}>\d+)" if i % 2 else re.escape(part) for i, part in enumerate(parts))
    )


def _rearrange(tensor: Tensor, source: str, target: str, heads: int) -> Tensor:
    """The tensor whose axes ``source`` names in the order of ``target``; each group is one axis,
    "h" is ``heads``."""
    before, after = _axes(source), _axes(target)
    known = {
        name: int(name) if name.isdigit() else heads
        for group in before
        for name in group
        if name in "h0123456789"
    }
    sizes: list[int] = []
    for group, whole in zip(before, tensor.shape, strict=True):
        # of the one whose size nobody says
        rest = whole // math.prod(known.get(name, 1) for name in group)
        sizes += [known.get(name, rest) for name in group]
    names = [name for group in before for name in group]
    turned = tensor.reshape(sizes).permute([names.index(name) for group in after for name in group])
    by_name = dict(zip(names, sizes, strict=True))
    return turned.reshape([math.prod(by_name[name] for name in group) for group in after])


@cache
def _axes(side: str) -> list[tuple[str, ...]]:
    """``(h d) c`` -> [(h, d), (c,)]"""
    return [tuple(re.findall(r"\w", group)) for group in re.findall(r"\([^)]*\)|\w", side)]


# -------------------------------------------------------------------------------------- loading


def check(
    table: Table, ours: Mapping[str, Shape], files: Files, optional: Iterable[str] = ()
) -> list[Link]:
    """The links that fill ``ours`` from the files, every name and shape compared and nothing read
    yet.

    The names of ours that are ``optional`` need not be in the files. Raises UserError that names
    what is missing, what is left over and which shape differs, on both sides.
    """
    optional = set(optional)
    found = links(table, ours)
    wanted = {name for link in found for name in link.theirs}
    _accept_bare_names(table, wanted, files)
    present = files.entries
    missing = [link for link in found if not all(name in present for name in link.theirs)]
    needed = [link for link in missing if not optional.issuperset(link.ours)]
    left_over = [
        name for name in present if name not in wanted and not _may_remain(table, name, files)
    ]
    if needed or left_over:
        raise UserError(_unmatched(files.folder, needed, left_over, present))
    kept = [link for link in found if link not in missing]
    for link in kept:
        expected = link.save([torch.empty(ours[name], device="meta") for name in link.ours])
        for name, tensor in zip(link.theirs, expected, strict=True):
            entry = present[name]
            if entry.shape != tuple(tensor.shape):
                raise UserError(
                    f"{files.folder}: {name} has shape {entry.shape}, but {', '.join(link.ours)} "
                    "of the model "
                    f"needs {tuple(tensor.shape)}; {_fix(files.folder)}"
                )
            dtype = DTYPES[entry.dtype]
            if not dtype.is_floating_point or dtype.itemsize < 2:
                raise UserError(
                    f"{files.folder}: {name} holds {entry.dtype} numbers; fetch weights that are "
                    "not quantised."
                )
    return kept


def fill(
    found: Iterable[Link], files: Files, ours: Mapping[str, Tensor], shapes: Mapping[str, Shape]
) -> list[str]:
    """Give ``ours`` the links' tensors, one link at a time; a name that ours lacks must hold zeros.

    What is read must be finite; the names are those that lie mapped, which nobody has read yet.
    """
    with torch.no_grad():
        return [name for link in found for name in _fill_one(link, files, ours, shapes)]


def _fill_one(
    link: Link, files: Files, ours: Mapping[str, Tensor], shapes: Mapping[str, Shape]
) -> Iterator[str]:
    parts = link.load(
        [files.take(name) for name in link.theirs], [shapes[name] for name in link.ours]
    )
    mapped = any(map(files.lies_mapped, link.theirs))
    for name, part in zip(link.ours, parts, strict=True):
        mine = ours.get(name)
        if mine is None:
            if part.any():
                zero = f'{", ".join(link.theirs)} is not zero, but config.json says "bias": false'
                raise UserError(f"{files.folder}: {zero}; fix config.json.")
            continue
        ready = mine.device.type == "cpu" and part.is_contiguous() and part.dtype == mine.dtype
        if mine.device.type != "cpu":
            mine.copy_(part)
        else:
            mine.data = (
                part
                if ready
                else torch.empty(part.shape, dtype=mine.dtype, device="cpu").copy_(part)
            )
        if ready and mapped:
            yield name
        elif not is_finite(mine):
            raise UserError(
                f"{files.folder}: {', '.join(link.theirs)} holds numbers that are NaN, infinite "
                "or too large for "
                f"{str(mine.dtype).removeprefix('torch.')}; download it again or load another "
                "checkpoint."
            )
    files.release(link.theirs)


def _accept_bare_names(table: Table, wanted: set[str], files: Files) -> None:
    """Give old names their new ones, and names saved from the bare model the prefix that the
    table's names have."""
    for name in list(files.entries):
        for old, new in table.renamed:
            if name.endswith(old) and name.removesuffix(old) + new not in files.entries:
                files.entries[name.removesuffix(old) + new] = files.entries.pop(name)
                break
    known = wanted | {name for name, _ in table.copies}
    for name in list(files.entries):
        full = table.prefix + name
        belongs = full in known or any(_regex(pattern).fullmatch(full) for pattern in table.ignore)
        if table.prefix and belongs and name not in known and full not in files.entries:
            files.entries[full] = files.entries.pop(name)


def _may_remain(table: Table, name: str, files: Files) -> bool:
    if any(_regex(pattern).fullmatch(name) for pattern in table.ignore):
        return True
    original = dict(table.copies).get(name)
    if original is None or original not in files.entries:
        return False
    if not files.same(name, original):
        raise UserError(
            f"{files.folder}: config.json ties {name} to {original}, but the files hold two "
            "different tables; "
            f'set "tie_word_embeddings" to false in config.json, or remove {name}.'
        )
    return True


def _unmatched(
    folder: Path, missing: Sequence[Link], left_over: Sequence[str], present: Mapping[str, Entry]
) -> str:
    absent = [
        f"{t} (for {', '.join(link.ours)})"
        for link in missing
        for t in link.theirs
        if t not in present
    ]
    parts = [f"the files lack {short(absent)}"] if absent else []
    parts += [f"the model has no place for {short(left_over)}"] if left_over else []
    return f"{folder}: {', and '.join(parts)}; {_fix(folder)}"


def _fix(folder: Path) -> str:
    """What to do about weights that are not those of their config; ``folder`` may be a GGUF
    file."""
    alone = folder.suffix == ".gguf" and folder.is_file()
    return (
        "copy or convert it again."
        if alone
        else ("fix config.json or fetch the weights that belong to it.")
    )


# --------------------------------------------------------------------------------------- saving


def pieces(
    table: Table, ours: Mapping[str, Tensor], shapes: Mapping[str, Shape], bare: bool = False
) -> Iterator[Piece]:
    """What saving ``ours`` by their names writes; a name in ``shapes`` that ours lacks is written
    as zeros.

    ``bare`` leaves the table's prefix away.
    """
    dtype = next(iter(ours.values())).dtype
    for link in links(table, shapes):

        def tensors(link: Link = link) -> list[Tensor]:
            return [
                ours[n].detach() if n in ours else torch.zeros(shapes[n], dtype=dtype)
                for n in link.ours
            ]

        sketch = link.save([torch.empty_like(tensor, device="meta") for tensor in tensors()])
        for i, (name, part) in enumerate(zip(link.theirs, sketch, strict=True)):
            make = lambda i=i, link=link, tensors=tensors: link.save(tensors())[i]  # noqa: E731
            yield Piece(
                name.removeprefix(table.prefix) if bare else name,
                part.dtype,
                tuple(part.shape),
                make,
            )
