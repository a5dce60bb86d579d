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
from .headers import Shape, TensorEntry, short
from .recipe import NameRule, Table
from .tensors import DTYPES, Files, PendingTensor

# ------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Link:
    """One rule with its letters filled in: these tensors of theirs are those of ours."""

    file_names: tuple[str, ...]
    param_names: tuple[str, ...]
    rule: NameRule

    def load(self, file_tensors: Sequence[Tensor], shapes: Sequence[Shape]) -> Sequence[Tensor]:
        """Our tensors, of ``shapes``, made of theirs."""
        if self.rule.unsqueeze:
            file_tensors = [tensor[0] for tensor in file_tensors]
        # each as a whole, so that the parts are views of one tensor
        if self.rule.transpose or self.rule.axes:
            file_tensors = [self._turn(tensor).contiguous() for tensor in file_tensors]
        merged = self._join(file_tensors, self._stacks("file_names"))
        if self._stacks("param_names"):
            return merged.unbind()
        if len(shapes) == 1:
            return [merged]
        return torch.split(merged, [shape[self.rule.axis] for shape in shapes], self.rule.axis)

    def save(self, params: Sequence[Tensor]) -> Sequence[Tensor]:
        """Their tensors made of ours."""
        merged = self._join(params, self._stacks("param_names"))
        if self._stacks("file_names"):
            tensors: Sequence[Tensor] = merged.unbind()
        elif len(self.file_names) == 1:
            tensors = [merged]
        else:
            widths = self.rule.widths or (1,) * len(self.file_names)
            unit = merged.shape[self.rule.axis] // sum(widths)
            tensors = torch.split(merged, [unit * width for width in widths], self.rule.axis)
        tensors = [self._turn_back(tensor) for tensor in tensors]
        return [tensor[None] for tensor in tensors] if self.rule.unsqueeze else tensors

    def _turn(self, tensor: Tensor) -> Tensor:
        source, _, target = self.rule.axes.partition("->")
        tensor = tensor.transpose(-1, -2) if self.rule.transpose else tensor
        return _rearrange(tensor, source, target, self.rule.heads) if target else tensor

    def _turn_back(self, tensor: Tensor) -> Tensor:
        source, _, target = self.rule.axes.partition("->")
        tensor = _rearrange(tensor, target, source, self.rule.heads) if target else tensor
        return tensor.transpose(-1, -2) if self.rule.transpose else tensor

    def _join(self, tensors: Sequence[Tensor], stack: bool) -> Tensor:
        if len(tensors) == 1 and not stack:
            return tensors[0]
        # PyTorch's own joining of shapes imports its compiler, which takes seconds
        if tensors[0].is_meta:
            shape = list(tensors[0].shape)
            shape[self.rule.axis] = sum(tensor.shape[self.rule.axis] for tensor in tensors)
            return tensors[0].new_empty([len(tensors), *tensors[0].shape] if stack else shape)
        if stack:
            return torch.stack(list(tensors))
        return torch.cat(list(tensors), self.rule.axis)

    def _stacks(self, side: str) -> bool:
        opposite = "param_names" if side == "file_names" else "file_names"
        return bool(_letters(getattr(self.rule, side)) - _letters(getattr(self.rule, opposite)))


def shapes(model: config.Model) -> dict[str, Shape]:
    """The name and shape of every parameter that a config describes; UserError for what no machine
    could hold."""
    param_shapes = config.model.shapes(model)
    most = max(map(math.prod, param_shapes.values()), default=0)  # torch counts bytes in 64 bits
    need(
        most < 1 << 60,
        "The config describes a tensor larger than any machine could hold; fix its sizes.",
    )
    return param_shapes


def links(table: Table, shapes: Mapping[str, Shape]) -> list[Link]:
    """The table driven from our side: one link for each of our names or group of names, none left
    out.

    Raises UserError for a parameter the table does not know.
    """
    if not table.rules:
        return [Link((name,), (name,), NameRule(name, name)) for name in shapes]
    all_links: list[Link] = []
    linked: set[str] = set()
    for name in shapes:
        if name not in linked:
            link = _link(table, name, shapes)
            all_links.append(link)
            linked.update(link.param_names)
    return all_links


def _link(table: Table, name: str, shapes: Mapping[str, Shape]) -> Link:
    for rule in table.rules:
        for pattern in _as_tuple(rule.param_names):
            match = _regex(pattern).fullmatch(name)
            if match is None:
                continue
            file_letters, param_letters = _letters(rule.file_names), _letters(rule.param_names)
            shared = {letter: int(match[letter]) for letter in file_letters & param_letters}
            their_numbers = range(shapes[name][0]) if file_letters - param_letters else range(0)
            our_numbers = (
                range(_count(pattern, shared, shapes)) if param_letters - file_letters else range(0)
            )
            return Link(
                _fill(
                    rule.file_names,
                    shared,
                    next(iter(file_letters - param_letters), None),
                    their_numbers,
                ),
                _fill(
                    rule.param_names,
                    shared,
                    next(iter(param_letters - file_letters), None),
                    our_numbers,
                ),
                rule,
            )
    raise UserError(
        f"The table of weight names has no rule for {name}; save it in the "
        "glassformer layout instead."
    )


def _count(pattern: str, shared: Mapping[str, int], names: Iterable[str]) -> int:
    """Number of names that fit the pattern with these letters."""
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
    segments = re.split(r"\{(\w)\}", pattern)
    return re.compile(
        "".join(
            rf"(?P<{segment}>\d+)" if i % 2 else re.escape(segment)
            for i, segment in enumerate(segments)
        )
    )


def _rearrange(tensor: Tensor, source: str, target: str, heads: int) -> Tensor:
    """The tensor whose axes ``source`` names in the order of ``target``; each group is one axis,
    "h" is ``heads``."""
    before, after = _axes(source), _axes(target)
    known_sizes = {
        name: int(name) if name.isdigit() else heads
        for group in before
        for name in group
        if name in "h0123456789"
    }
    sizes: list[int] = []
    for group, size in zip(before, tensor.shape, strict=True):
        # of the one whose size nobody says
        unknown_size = size // math.prod(known_sizes.get(name, 1) for name in group)
        sizes += [known_sizes.get(name, unknown_size) for name in group]
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
    table: Table, shapes: Mapping[str, Shape], files: Files, optional: Iterable[str] = ()
) -> list[Link]:
    """The links that fill parameters of ``shapes`` from the files, every name and shape compared
    and nothing read yet.

    The parameters that are ``optional`` need not be in the files. Raises UserError that names what
    is missing, what is left over and which shape differs, on both sides.
    """
    optional = set(optional)
    all_links = links(table, shapes)
    expected_names = {name for link in all_links for name in link.file_names}
    _accept_bare_names(table, expected_names, files)
    present = files.entries
    missing = [link for link in all_links if not all(name in present for name in link.file_names)]
    needed = [link for link in missing if not optional.issuperset(link.param_names)]
    left_over = [
        name
        for name in present
        if name not in expected_names and not _may_remain(table, name, files)
    ]
    if needed or left_over:
        raise UserError(_unmatched(files.folder, needed, left_over, present))
    present_links = [link for link in all_links if link not in missing]
    for link in present_links:
        expected = link.save(
            [torch.empty(shapes[name], device="meta") for name in link.param_names]
        )
        for name, tensor in zip(link.file_names, expected, strict=True):
            entry = present[name]
            if entry.shape != tuple(tensor.shape):
                raise UserError(
                    f"{files.folder}: {name} has shape {entry.shape}, but {', '.join(link.param_names)} "
                    "of the model "
                    f"needs {tuple(tensor.shape)}; {_fix(files.folder)}"
                )
            dtype = DTYPES[entry.dtype]
            if not dtype.is_floating_point or dtype.itemsize < 2:
                raise UserError(
                    f"{files.folder}: {name} holds {entry.dtype} numbers; fetch weights that are "
                    "not quantised."
                )
    return present_links


def fill(
    links: Iterable[Link], files: Files, params: Mapping[str, Tensor], shapes: Mapping[str, Shape]
) -> list[str]:
    """Copy the links' tensors to ``params``, one link at a time; a name that is not in ``params``
    must hold zeros.

    What is read must be finite; the names are those that lie mapped, which nobody has read yet.
    """
    with torch.no_grad():
        return [name for link in links for name in _fill_one(link, files, params, shapes)]


def _fill_one(
    link: Link, files: Files, params: Mapping[str, Tensor], shapes: Mapping[str, Shape]
) -> Iterator[str]:
    tensors = link.load(
        [files.take(name) for name in link.file_names], [shapes[name] for name in link.param_names]
    )
    mapped = any(map(files.lies_mapped, link.file_names))
    for name, tensor in zip(link.param_names, tensors, strict=True):
        param = params.get(name)
        if param is None:
            if tensor.any():
                zero = (
                    f'{", ".join(link.file_names)} is not zero, but config.json says "bias": false'
                )
                raise UserError(f"{files.folder}: {zero}; fix config.json.")
            continue
        ready = (
            param.device.type == "cpu" and tensor.is_contiguous() and tensor.dtype == param.dtype
        )
        if param.device.type != "cpu":
            param.copy_(tensor)
        else:
            param.data = (
                tensor
                if ready
                else torch.empty(tensor.shape, dtype=param.dtype, device="cpu").copy_(tensor)
            )
        if ready and mapped:
            yield name
        elif not is_finite(param):
            raise UserError(
                f"{files.folder}: {', '.join(link.file_names)} holds numbers that are NaN, infinite "
                "or too large for "
                f"{str(param.dtype).removeprefix('torch.')}; download it again or load another "
                "checkpoint."
            )
    files.release(link.file_names)


def _accept_bare_names(table: Table, expected: set[str], files: Files) -> None:
    """Give old names their new ones, and names saved from the bare model the prefix that the
    table's names have."""
    for name in list(files.entries):
        for old, new in table.renamed:
            if name.endswith(old) and name.removesuffix(old) + new not in files.entries:
                files.entries[name.removesuffix(old) + new] = files.entries.pop(name)
                break
    known_names = expected | {name for name, _ in table.copies}
    for name in list(files.entries):
        full = table.prefix + name
        belongs = full in known_names or any(
            _regex(pattern).fullmatch(full) for pattern in table.ignore
        )
        if table.prefix and belongs and name not in known_names and full not in files.entries:
            files.entries[full] = files.entries.pop(name)


def _may_remain(table: Table, name: str, files: Files) -> bool:
    if any(_regex(pattern).fullmatch(name) for pattern in table.ignore):
        return True
    original = dict(table.copies).get(name)
    if original is None or original not in files.entries:
        return False
    if not files.equal(name, original):
        raise UserError(
            f"{files.folder}: config.json ties {name} to {original}, but the files hold two "
            "different tables; "
            f'set "tie_word_embeddings" to false in config.json, or remove {name}.'
        )
    return True


def _unmatched(
    folder: Path,
    missing: Sequence[Link],
    left_over: Sequence[str],
    present: Mapping[str, TensorEntry],
) -> str:
    absent = [
        f"{t} (for {', '.join(link.param_names)})"
        for link in missing
        for t in link.file_names
        if t not in present
    ]
    problems = [f"the files lack {short(absent)}"] if absent else []
    problems += [f"the model has no place for {short(left_over)}"] if left_over else []
    return f"{folder}: {', and '.join(problems)}; {_fix(folder)}"


def _fix(folder: Path) -> str:
    """Advice on weights that do not belong to their config; ``folder`` may be a GGUF file."""
    alone = folder.suffix == ".gguf" and folder.is_file()
    return (
        "copy or convert it again."
        if alone
        else ("fix config.json or fetch the weights that belong to it.")
    )


# --------------------------------------------------------------------------------------- saving


def pieces(
    table: Table, params: Mapping[str, Tensor], shapes: Mapping[str, Shape], bare: bool = False
) -> Iterator[PendingTensor]:
    """Tensors to write for ``params``, by the names of their files; a name in ``shapes`` that they
    lack is written as zeros.

    ``bare`` leaves the table's prefix away.
    """
    dtype = next(iter(params.values())).dtype
    for link in links(table, shapes):

        def tensors(link: Link = link) -> list[Tensor]:
            return [
                params[n].detach() if n in params else torch.zeros(shapes[n], dtype=dtype)
                for n in link.param_names
            ]

        sketch = link.save([torch.empty_like(tensor, device="meta") for tensor in tensors()])
        for i, (name, meta_tensor) in enumerate(zip(link.file_names, sketch, strict=True)):
            make = lambda i=i, link=link, tensors=tensors: link.save(tensors())[i]  # noqa: E731
            yield PendingTensor(
                name.removeprefix(table.prefix) if bare else name,
                meta_tensor.dtype,
                tuple(meta_tensor.shape),
                make,
            )
