"""Weights by name: a two-way table from a published checkpoint's names to ours.

    theirs (files)                       rule                          ours (the model's parameters)
    h.0.attn.c_attn.weight  --flip--> [ one whole tensor ] --split-->  blocks.0.attn.q.weight  .k.weight  .v.weight
    experts.0.w1, .1.w1, .. --stack-> [ one whole tensor ] ---------->  blocks.0.ffn.gate

Loading runs a rule left to right and saving the same rule right to left, one tensor at a time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from ..core import config, memory
from ..core.checkpoints.headers import Shape, short
from ..core.checkpoints.tensors import DTYPES, Files
from ..core.errors import UserError, need
from ..core.nn import Model, build_model
from ..core.nn.finite import is_finite
from ..core.nn.init import allocate
from ..core.nn.replace import is_packed, replace_parameter
from ..families.names import NameRule, Table
from ..fast.quantized import QuantizedLayout
from .mapped import check_when_used

MODEL_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
Device = torch.device | str | None
NUMBERS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "1 + x": (lambda tensor: tensor - 1, lambda tensor: tensor + 1),
    "-exp(x)": (lambda tensor: (-tensor).log(), lambda tensor: -tensor.exp()),
}
"""Forms in which files hold a number x: the inverse of each, and the form."""

# ------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Link:
    """One rule with its letters filled in: these tensors of theirs are those of ours."""

    file_names: tuple[str, ...]
    param_names: tuple[str, ...]
    rule: NameRule
    stacks: bool = False

    def load(self, file_tensors: Sequence[Tensor], shapes: Sequence[Shape]) -> Sequence[Tensor]:
        """Our tensors, of ``shapes``, made of theirs."""
        tensors = [self._turn(x) for x in getattr(self.rule, "join", list)(file_tensors)]
        if self.stacks:
            return [torch.stack(tensors)]
        if len(shapes) == 1:
            return tensors
        rows, groups = [shape[0] for shape in shapes], self.rule.groups
        if groups > 1:
            dealt = torch.split(
                tensors[0].reshape(groups, -1, *tensors[0].shape[1:]),
                [n // groups for n in rows],
                1,
            )
            tensors = [torch.cat([part.flatten(0, 1) for part in dealt])]
        return torch.split(tensors[0], rows)

    def save(self, params: Sequence[Tensor]) -> Sequence[Tensor]:
        """Their tensors made of ours."""
        merged = params[0]
        if self.stacks:
            return [self._turn_back(tensor) for tensor in merged.unbind()]
        if len(params) > 1 and merged.is_meta:
            # PyTorch's own joining of shapes imports its compiler, which takes seconds
            length = sum(len(param) for param in params)
            merged = merged.new_empty([length, *merged.shape[1:]])
        elif len(params) > 1:
            dealt = [param.reshape(self.rule.groups, -1, *param.shape[1:]) for param in params]
            merged = torch.cat(dealt, 1).flatten(0, 1)
        file_tensors: Sequence[Tensor] = getattr(self.rule, "deal", list)([self._turn_back(merged)])
        return file_tensors

    def _turn(self, tensor: Tensor) -> Tensor:
        source, _, target = self.rule.axes.partition("->")
        tensor = tensor.transpose(-1, -2) if self.rule.transpose else tensor
        tensor = _rearrange(tensor, source, target, self.rule.heads) if target else tensor
        tensor = NUMBERS[self.rule.numbers][0](tensor) if self.rule.numbers else tensor
        # as a whole, so that the parts are views of one tensor
        return tensor.contiguous() if target or self.rule.transpose else tensor

    def _turn_back(self, tensor: Tensor) -> Tensor:
        source, _, target = self.rule.axes.partition("->")
        tensor = _rearrange(tensor, target, source, self.rule.heads) if target else tensor
        if self.rule.numbers:  # 1 + x has more digits than bf16 holds
            tensor = NUMBERS[self.rule.numbers][1](tensor.float())
        return tensor.transpose(-1, -2) if self.rule.transpose else tensor


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
            rule, numbers = _rule_of(table, name)
            # a letter of the files alone counts along the parameter's first axis
            stacked = next(iter(_letters(rule.file_name) - numbers.keys()), "")
            count = range(shapes[name][0] if stacked else 1)
            names = " ".join(rule.file_name.format_map({**numbers, stacked: n}) for n in count)
            param_names = [pattern.format_map(numbers) for pattern in rule.params]
            all_links.append(Link(tuple(names.split()), tuple(param_names), rule, bool(stacked)))
            linked.update(param_names)
    return all_links


def _rule_of(table: Table, name: str) -> tuple[NameRule, dict[str, int]]:
    """The rule that a parameter falls under, and the numbers of its letters."""
    for rule in table.rules:
        for pattern in rule.params:
            if match := _regex(pattern).fullmatch(name):
                return rule, {letter: int(text) for letter, text in match.groupdict().items()}
    raise UserError(
        f"The table of weight names has no rule for {name}; save it in the "
        "glassformer layout instead."
    )


def _letters(name: str) -> set[str]:
    return set(re.findall(r"\{(\w)\}", name))


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    escaped = re.escape(pattern)  # {i} as \{i\}
    return re.compile(re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", escaped))


def _rearrange(tensor: Tensor, source: str, target: str, heads: int) -> Tensor:
    """The tensor whose axes ``source`` names in the order of ``target``; each group is one axis,
    "h" is ``heads``."""
    before, after, sizes = _axes(source), _axes(target), {"h": heads}
    for group, size in zip(before, tensor.shape, strict=True):
        sizes |= {name: int(name) for name in group if name.isdigit()}
        for name in group:  # at most one has a size that nobody says
            if name not in sizes:
                sizes[name] = size // math.prod(sizes.get(axis, 1) for axis in group)
    names = [name for group in before for name in group]
    order = [names.index(name) for group in after for name in group]
    turned = tensor.reshape([sizes[name] for name in names]).permute(order)
    return turned.reshape([math.prod(sizes[name] for name in group) for group in after])


@cache
def _axes(side: str) -> list[tuple[str, ...]]:
    """``(h d) c`` -> [(h, d), (c,)]"""
    return [tuple(re.findall(r"\d+|\w", group)) for group in re.findall(r"\([^)]*\)|\w", side)]


# -------------------------------------------------------------------------------------- loading


def check(
    table: Table, shapes: Mapping[str, Shape], files: Files, optional: Iterable[str] = ()
) -> list[Link]:
    """The links that fill parameters of ``shapes`` from the files, every name and shape compared
    and nothing read yet.

    The parameters that are ``optional`` need not be in the files. Raises UserError that names what
    is missing, what is left over and which shape differs, on both sides.
    """
    all_links, optional, present = links(table, shapes), set(optional), files.entries
    expected = {name for link in all_links for name in link.file_names}
    _accept_bare_names(table, expected, files)
    present_links = [link for link in all_links if present.keys() >= set(link.file_names)]
    absent = [
        f"{name} (for {', '.join(link.param_names)})"
        for link in all_links
        if not optional.issuperset(link.param_names)
        for name in link.file_names
        if name not in present
    ]
    left_over = [
        name for name in present if name not in expected and not _may_remain(table, name, files)
    ]
    problems = [f"the files lack {short(absent)}"] if absent else []
    problems += [f"the model has no place for {short(left_over)}"] if left_over else []
    need(not problems, f"{files.folder}: {', and '.join(problems)}; {_fix(files.folder)}")
    for name, holds in table.constants:
        need(
            name not in present or holds(files.load(name)),
            f"{files.folder}: {name} holds other numbers than the model computes in its place; use "
            "a model whose positions are its family's.",
        )
    for link in present_links:
        params = [torch.empty(shapes[name], device="meta") for name in link.param_names]
        for name, tensor in zip(link.file_names, link.save(params), strict=True):
            entry, dtype = present[name], DTYPES[present[name].dtype]
            need(
                entry.shape == tuple(tensor.shape),
                f"{files.folder}: {name} has shape {entry.shape}, but {', '.join(link.param_names)} "
                f"of the model needs {tuple(tensor.shape)}; {_fix(files.folder)}",
            )
            need(
                dtype.is_floating_point and dtype.itemsize > 1,
                f"{files.folder}: {name} holds {entry.dtype} numbers; fetch weights that are not "
                "quantized.",
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
    file_names = ", ".join(link.file_names)
    mapped = any(map(files.lies_mapped, link.file_names))
    for name, tensor in zip(link.param_names, tensors, strict=True):
        param = params.get(name)
        if param is None:
            need(
                not tensor.any(),
                f'{files.folder}: {file_names} is not zero, but config.json says "bias": false; '
                "fix config.json.",
            )
            continue
        on_cpu = param.device.type == "cpu"
        ready = on_cpu and tensor.is_contiguous() and tensor.dtype == param.dtype
        if ready:
            param.data = tensor
        elif on_cpu:
            param.data = torch.empty(tensor.shape, dtype=param.dtype, device="cpu").copy_(tensor)
        else:
            param.copy_(tensor)
        if ready and mapped:
            yield name
        else:
            need(
                is_finite(param),
                f"{files.folder}: {file_names} holds numbers that are NaN, infinite or too large "
                f"for {str(param.dtype).removeprefix('torch.')}; download it again or load another "
                "checkpoint.",
            )
    files.release(link.file_names)


def _accept_bare_names(table: Table, expected: set[str], files: Files) -> None:
    """Give old names their new ones, and names saved from the bare model the prefix that the
    table's names have."""
    entries, known_names = files.entries, expected | {name for name, _ in table.copies}
    for name in list(entries):
        for old, new in table.renamed:
            if name.endswith(old) and name.removesuffix(old) + new not in entries:
                entries[name.removesuffix(old) + new] = entries.pop(name)
                break
    for name in list(entries) if table.prefix else ():
        full = table.prefix + name
        belongs = full in known_names or _is_ignored(table, full)
        if belongs and name not in known_names and full not in entries:
            entries[full] = entries.pop(name)


def _is_ignored(table: Table, name: str) -> bool:
    return any(_regex(pattern).fullmatch(name) for pattern in table.ignore)


def _may_remain(table: Table, name: str, files: Files) -> bool:
    original = dict(table.copies).get(name)
    if original is None or original not in files.entries:
        return _is_ignored(table, name)
    need(
        files.equal(name, original),
        f"{files.folder}: config.json ties {name} to {original}, but the files hold two different "
        f'tables; set "tie_word_embeddings" to false in config.json, or remove {name}.',
    )
    return True


def _fix(folder: Path) -> str:
    """Advice on weights that do not belong to their config; ``folder`` may be a GGUF file."""
    alone = folder.suffix == ".gguf" and folder.is_file()
    return (
        "copy or convert it again."
        if alone
        else ("fix config.json or fetch the weights that belong to it.")
    )


# --------------------------------------------------------------------------------------- models


def new_model(
    cfg: config.Model,
    dtype: torch.dtype,
    device: Device,
    seed: int | None = None,
    layout: QuantizedLayout | None = None,
) -> Model:
    """The model of a config, newly initialised; a ``layout`` quantizes it once all is drawn."""
    must_fit(cfg, dtype, device, layout, drawn=True)
    model = build_model(cfg, device=device, dtype=dtype, seed=seed)
    if layout is not None:
        layout.quantize(model, layout.plan(model))
    return model


def load_model(
    cfg: config.Model,
    table: Table,
    published: config.Model,
    files: Files,
    dtype: torch.dtype,
    device: Device,
    layout: QuantizedLayout | None = None,
) -> Model:
    """The model with the weights of files that have the names of a ``table`` and the parameters of
    ``published``, perhaps more than the model's.

    A ``layout`` quantizes each weight as it is read, so the model never stands here as a whole.
    """
    present, stored = check_links(cfg, table, published, files)
    must_fit(cfg, dtype, device, layout, in_files=mapped_params(present, files, dtype))
    model = build_model(cfg, device="meta", dtype=dtype)
    bits, mapped = {} if layout is None else layout.plan(model), list[str]()
    allocate(model, device or torch.get_default_device())
    params = dict(model.named_parameters())
    for link in present:
        mapped += [name for name in fill([link], files, params, stored) if name not in bits]
        if layout is not None:
            link_bits = {name: bits[name] for name in link.param_names if name in bits}
            layout.quantize(model, link_bits)
            for name in link_bits:
                del params[name]  # what was read of it is given back
    if mapped:
        check_when_used(model, mapped)
    return model


def mapped_params(links: Iterable[Link], files: Files, dtype: torch.dtype) -> set[str]:
    """The parameters that are views of a mapped file on a CPU, since nothing of them changes."""
    names = set[str]()
    for link in links:
        rule = link.rule
        changes = link.stacks or rule.transpose or rule.axes or rule.groups > 1
        kinds = {DTYPES[files.entries[name].dtype] for name in link.file_names}
        if not changes and kinds == {dtype} and all(map(files.can_map, link.file_names)):
            names.update(link.param_names)
    return names


def check_links(
    cfg: config.Model, table: Table, published: config.Model, files: Files
) -> tuple[list[Link], dict[str, Shape]]:
    """Links that fill the model's parameters, every name and shape compared; and the shapes the
    files hold."""
    stored = shapes(published)
    return check(table, stored, files, stored.keys() - shapes(cfg).keys()), stored


@torch.no_grad()
def copy_weights(model: Model, source: Mapping[str, Tensor]) -> None:
    """Give the model's parameters the numbers of others, by their names."""
    for name, weight in source.items():
        if is_packed(weight):
            replace_parameter(model, name, weight)
        else:
            model.get_parameter(name).copy_(weight)


def must_fit(
    cfg: config.Model,
    dtype: torch.dtype,
    device: Device,
    layout: QuantizedLayout | None = None,
    drawn: bool = False,
    in_files: Container[str] = (),
) -> None:
    """UserError where the device has not the memory for the model's weights.

    Those of a ``layout`` take what few bits take, but where they are ``drawn`` they stand there in
    ``dtype`` first. On a CPU those that are views of mapped files, ``in_files``, take none.
    """
    target_device = torch.device(device) if device is not None else torch.get_default_device()
    outside = in_files if target_device.type == "cpu" and layout is None else ()
    sizes = {name: torch.Size(shape).numel() for name, shape in shapes(cfg).items()}
    numbers = sum(size for name, size in sizes.items() if name not in outside)
    needed = full_size = dtype.itemsize * numbers
    size_text = plain = f"{memory.gibibytes(full_size)} in {str(dtype).removeprefix('torch.')}"
    smaller = "a smaller model or dtype"
    if layout is not None:
        few = layout.nbytes(build_model(cfg, device="meta", dtype=dtype))
        size_text = f"{memory.gibibytes(few)} in {layout.bits} bits"
        if drawn:
            size_text, smaller = f"{size_text} ({plain} while they are drawn)", "a smaller model"
        else:
            needed, smaller = few, "a smaller model or fewer bits"
    have = memory.available_memory(target_device)
    if have is not None and needed > have:
        raise UserError(
            f"The weights take {size_text} and {target_device} has {memory.gibibytes(have)} free; use "
            f"{smaller}."
        )


def dtype_of(name: torch.dtype | str | None) -> torch.dtype | None:
    """The dtype of a name; UserError for one that no model is held in."""
    if not isinstance(name, str):
        return name
    if name not in MODEL_DTYPES:
        raise UserError(
            f'There is no dtype "{name}" for a model; give one of {", ".join(MODEL_DTYPES)}.'
        )
    return MODEL_DTYPES[name]
