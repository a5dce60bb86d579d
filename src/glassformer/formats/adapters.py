"""Changes of a model, without the model: low-rank changes in PEFT's layout, or a few
whole weights.

    adapter_config.json  adapter_model.safetensors     LoRA, with the published names that PEFT knows its base by
    config.json          {"glassformer": 1, "model": ..., "base": NAME}      our own page about it
    model.safetensors                                  instead of an adapter: the weights that were trained

R rank, I inputs, O outputs.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import families as recipes
from ..core import config
from ..core.checkpoints import tensors as tensorfiles
from ..core.checkpoints.headers import Headers, Shape, read_header, read_headers, short
from ..core.errors import UserError, need
from ..core.files import read_json
from ..core.nn import Model
from ..core.nn.finite import is_finite
from ..families.names import Pairs, Table
from ..families.recipe import ConfigReader
from . import dictionaries, tuning, weights

PAGE, TENSORS = "adapter_config.json", "adapter_model.safetensors"
FIX = "restore it or download it again"
PREFIX, DOWN, UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
WHOLE = 1 << 62  # bytes: all tensors in one file
Contents = dict[str, str | Callable[[Path], None]]
Change = tuple[Tensor, Tensor, float]
"""down (R, I), up (O, R) and the scale of a change."""


# --------------------------------------------------------------------------------------- names


@dataclass(frozen=True)
class AdapterMatrix:
    """One matrix as its files name it: ``layers`` are the layers stacked in it, each with its
    number of outputs."""

    name: str
    layers: tuple[tuple[str, int], ...]
    transpose: bool = False


@dataclass(frozen=True)
class Naming:
    """A way in which files may name the weights: links, a prefix that the names have lost, and
    (copy, original) of what is tied."""

    links: list[weights.Link]
    prefix: str
    shapes: Mapping[str, Shape]
    tied: Pairs = ()

    def copies(self, wholes: Collection[str]) -> dict[str, str]:
        """The tied copies of these weights, each with its original."""
        pairs = (tuple(name.removeprefix(self.prefix) for name in pair) for pair in self.tied)
        return {copy: original for copy, original in pairs if original in wholes}

    def files(self, link: weights.Link) -> list[str]:
        """The names of a link's tensors."""
        return [name.removeprefix(self.prefix) for name in link.file_names]

    def matrices(self) -> Iterator[AdapterMatrix]:
        """Every matrix of the files that is made of whole linear layers."""
        for link in self.links:
            names = (*link.file_names, *link.param_names)
            linear = len(link.file_names) == 1 and not link.rule.axes and link.rule.groups == 1
            if linear and all(name.endswith(".weight") for name in names):
                layers = [
                    (param.removesuffix(".weight"), self.shapes[param][0])
                    for param in link.param_names
                ]
                name = self.files(link)[0].removesuffix(".weight")
                yield AdapterMatrix(name, tuple(layers), link.rule.transpose)


def _namings(model: config.Model, family: str) -> Iterator[Naming]:
    """The ways in which files may name the weights: as published, where a layout holds the model;
    then as we do."""
    shapes = weights.shapes(model)
    with contextlib.suppress(UserError):
        recipe, raw = recipes.write_config(model, family)
        table = recipe.table(model)
        published = weights.shapes(recipe.layout(model))
        bare = raw["architectures"][0] in recipe.bare
        for prefix in dict.fromkeys([table.prefix if bare else "", table.prefix]):
            yield Naming(weights.links(table, published), prefix, published, table.copies)
    yield Naming(weights.links(Table(()), shapes), "", shapes)


# -------------------------------------------------------------------------------------- saving


def contents(model: Model, base: str) -> Contents:
    """The files of what was trained in ``model`` on top of ``base``: an adapter, or the trained
    weights alone."""
    state = {name: weight.detach() for name, weight in tuning.trained(model)}
    layers = tuning.adapted(model)
    if "features" in model._modules:
        dictionary: Any = model.get_submodule("features")
        return dictionaries.contents(dictionary, base)
    if not layers:
        return tensorfiles.contents(tensorfiles.plain(state), limit=WHOLE)
    halves = {f"{path}.{half}" for path in layers for half in ("down", "up")}
    for naming in _namings(model.config, model.family):
        matrices = {path: matrix for matrix in naming.matrices() for path, _ in matrix.layers}
        complete = [link for link in naming.links if state.keys() >= set(link.param_names)]
        saved = halves.union(*(link.param_names for link in complete))
        if layers.keys() <= matrices.keys() and state.keys() <= saved:
            break
    tensors = dict[str, Tensor]()
    ranks = dict[str, tuple[int, float]]()
    chosen = {matrices[path].name: matrices[path] for path in layers}
    for name, matrix in chosen.items():
        down, up, scale = _joined(matrix, layers)
        tensors |= {f"{PREFIX}{name}{DOWN}": down, f"{PREFIX}{name}{UP}": up}
        ranks[name] = (len(down), scale)
    modules = set()
    for link in complete:
        published = link.save([state[param] for param in link.param_names])
        for name, tensor in zip(naming.files(link), published, strict=True):
            tensors[PREFIX + name] = tensor
            modules.add(name.rpartition(".")[0])
    for copy, original in naming.copies({name.removeprefix(PREFIX) for name in tensors}).items():
        # PEFT trains a module of its own and leaves what is tied to it as it was
        tensors[PREFIX + copy] = tensors[PREFIX + original].clone()
        modules.add(copy.rpartition(".")[0])
    suffixes = {name.rpartition(".")[2] for name in chosen}
    alike = {m.name for m in matrices.values() if m.name.rpartition(".")[2] in suffixes}
    page = {
        **_page(model, ranks),
        "base_model_name_or_path": base,
        "target_modules": sorted(suffixes if alike == chosen.keys() else chosen),
        "modules_to_save": sorted(modules) or None,
        "fan_in_fan_out": any(matrix.transpose for matrix in chosen.values()),
    }
    pieces = tensorfiles.plain({name: tensor.contiguous() for name, tensor in tensors.items()})
    (content,) = tensorfiles.contents(pieces, limit=WHOLE).values()
    return {TENSORS: content, PAGE: json.dumps(page, indent=2) + "\n"}


def _joined(matrix: AdapterMatrix, layers: Mapping[str, tuning.LoRALinear]) -> Change:
    """All changes within one matrix, side by side, zero elsewhere."""
    inside = [layers[path] for path, _ in matrix.layers if path in layers]
    scale, none = inside[0].scale, inside[0].up.new_zeros
    ups = [
        layers[path].up.detach() * (layers[path].scale / scale) if path in layers else none(size, 0)
        for path, size in matrix.layers
    ]
    return torch.cat([layer.down.detach() for layer in inside]), torch.block_diag(*ups), scale  # type: ignore[no-untyped-call]


def _page(model: Model, ranks: Mapping[str, tuple[int, float]]) -> dict[str, Any]:
    """The adapter_config.json, as PEFT's LoraConfig writes it, of (rank, scale) by matrix."""
    rank, scale = next(iter(ranks.values()))
    kinds = {config.Decoder: "CAUSAL_LM", config.EncoderDecoder: "SEQ_2_SEQ_LM"}
    labelled = model.config.labels
    alphas = {name: r * s for name, (r, s) in ranks.items() if r * s != rank * scale}
    return {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if labelled else kinds.get(type(model.config)),
        "revision": None,
        "r": rank,
        "lora_alpha": _number(rank * scale),
        "lora_dropout": next(iter(tuning.adapted(model).values())).drop.p,
        "rank_pattern": {name: r for name, (r, _) in ranks.items() if r != rank},
        "alpha_pattern": {name: _number(alpha) for name, alpha in alphas.items()},
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "layers_to_transform": None,
        "layers_pattern": None,
    }


def _number(value: float) -> float | int:
    return int(value) if value == int(value) else value


# ------------------------------------------------------------------------------------- loading


def attach(model: Model, folder: Path) -> None:
    """Give ``model``, which holds the base's weights, what a folder changes in it; changes stand
    beside matrices.

    Raises UserError for an adapter of another kind and for one of another model.
    """
    if (folder / dictionaries.PAGE).is_file():
        dictionaries.attach(model, dictionaries.load_dictionary(folder))
        return
    if not (folder / PAGE).is_file():
        files = tensorfiles.open_files(folder)
        _copy(model, {name: files.load(name) for name in files.entries}, folder)
        return
    files = tensorfiles.open_file(folder / TENSORS)
    page, naming, matrices, wholes = _named(model.config, model.family, files)
    layers: dict[str, Change] = {}
    for name in sorted(matrices):
        scale = _scale(files, matrices[name], naming, page)
        down, up = (files.load(PREFIX + name + end) for end in (DOWN, UP))
        layers |= _parted(matrices[name], down, up, scale)
    tuning.adapt(model, {path: (len(down), scale) for path, (down, _, scale) in layers.items()})
    for copy, original in naming.copies(wholes).items():
        need(
            files.equal(PREFIX + copy, PREFIX + original),
            f"{folder} holds two different tables for {original} and {copy}, which its base ties; "
            "train them as one.",
        )
    values: dict[str, Tensor] = {}
    for path, (down, up, _) in layers.items():
        values |= {f"{path}.down": down, f"{path}.up": up}
    for link in _whole_links(folder, naming, wholes):
        file_tensors = [files.load(PREFIX + name) for name in naming.files(link)]
        shapes = [naming.shapes[name] for name in link.param_names]
        values |= zip(link.param_names, link.load(file_tensors, shapes), strict=True)
    _copy(model, values, folder)


def check(model: config.Model, folder: Path) -> None:
    """UserError where a folder's names or shapes are not those of a change of ``model``. It loads
    no tensor but a dictionary's."""
    shapes = weights.shapes(model)
    if (folder / dictionaries.PAGE).is_file():
        dictionaries.load_dictionary(folder)
        return
    if not (folder / PAGE).is_file():
        for name, entry in read_headers(folder).entries.items():
            _must_fit(name, entry.shape, shapes.get(name), folder)
        return
    headers = Headers(folder, read_header(folder / TENSORS))
    page, naming, matrices, wholes = _named(model, "", headers)
    for matrix in matrices.values():
        _scale(headers, matrix, naming, page)
    for link in _whole_links(folder, naming, wholes):
        params = [torch.empty(naming.shapes[name], device="meta") for name in link.param_names]
        for name, tensor in zip(naming.files(link), link.save(params), strict=True):
            shape = headers.entries[PREFIX + name].shape
            _must_fit(name, shape, tuple(tensor.shape), folder)


def _named(
    model: config.Model, family: str, headers: Headers
) -> tuple[ConfigReader, Naming, dict[str, AdapterMatrix], set[str]]:
    """An adapter's page, the way in which its files name the weights, the matrices that it changes
    by name, and the names of weights that it holds whole."""
    folder = headers.folder
    page = ConfigReader(read_json(folder / PAGE, FIX), str(folder / PAGE))
    _check_page(page)
    names = {name.removeprefix(PREFIX) for name in headers.entries}
    changed = {name.removesuffix(end) for name in names for end in (DOWN, UP) if name.endswith(end)}
    wholes = names - {name + end for name in changed for end in (DOWN, UP)}
    unknown: list[list[str]] = []
    for naming in _namings(model, family):
        matrices = {matrix.name: matrix for matrix in naming.matrices()}
        known_names = {name for link in naming.links for name in naming.files(link)}
        copies = naming.copies(wholes)
        unknown.append(sorted((changed - matrices.keys()) | (wholes - known_names - copies.keys())))
        if not unknown[-1]:
            untied = sorted(copies.keys() - wholes)
            need(
                not untied,
                f"{folder} changes a weight that its base ties to {short(untied)}, which PEFT "
                "leaves as it was; name both in modules_to_save and train again.",
            )
            return page, naming, {name: matrices[name] for name in changed}, wholes
    raise UserError(
        f"{folder} changes {short(min(unknown, key=len))}, which its base lacks or splits into several "
        "layers; check the base, or merge the adapter with PEFT first."
    )


def _whole_links(folder: Path, naming: Naming, wholes: set[str]) -> Iterator[weights.Link]:
    """The links whose weights an adapter holds whole; UserError for a part of one."""
    for link in naming.links:
        lacking = [name for name in naming.files(link) if name not in wholes]
        need(
            not lacking or wholes.isdisjoint(naming.files(link)),
            f"{folder} changes a part of a weight that its base keeps whole; add {short(lacking)}.",
        )
        if not lacking:
            yield link


def _parted(matrix: AdapterMatrix, down: Tensor, up: Tensor, scale: float) -> dict[str, Change]:
    """The changes of our layers in one matrix, each without the ranks that are zero in it."""
    if len(matrix.layers) == 1:
        return {matrix.layers[0][0]: (down, up, scale)}
    pieces = torch.split(up, [size for _, size in matrix.layers])
    ranks = [piece.ne(0).any(0) for piece in pieces]
    return {
        path: (down[rank], piece[:, rank], scale)
        for (path, _), piece, rank in zip(matrix.layers, pieces, ranks, strict=True)
        if rank.any()
    }


KNOWN = """
auto_mapping base_model_name_or_path task_type inference_mode lora_dropout fan_in_fan_out megatron_core peft_version
loftq_config eva_config corda_config runtime_config lora_alpha target_modules exclude_modules layers_to_transform
ensure_weight_tying layers_pattern rank_pattern alpha_pattern modules_to_save use_rslora r qalora_group_size
"""
"""Settings that are obeyed, that are only of use in training, or that the tensors say again."""
ALLOWED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "revision": (None, "main"),
    # others change the base's own matrices
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}


def _check_page(page: ConfigReader) -> None:
    """Refuse by name each setting that changes what an adapter does and is not done here (PEFT's
    LoraConfig)."""
    for key, value in page.table.items():
        allowed = ALLOWED.get(key, (False, None, {}, []))
        plain = any(value == choice and type(value) is type(choice) for choice in allowed)
        value_text = json.dumps(value, default=str)[:80]
        need(
            plain or key in KNOWN.split(),
            f'{page.source} says "{key}": {value_text}; only {json.dumps(allowed[0])} is read here.',
        )
    page.flag("use_rslora", False)
    page.integer("r", None)
    page.number("lora_alpha", 8.0, least=-1e30, most=1e30)
    for key in ("rank_pattern", "alpha_pattern"):
        if (patterns := page.inside(key)) is not None:
            for name in patterns.table:
                patterns.number(name, least=-1e30, most=1e30)


def _scale(headers: Headers, matrix: AdapterMatrix, naming: Naming, page: ConfigReader) -> float:
    """The scale of a change by its name; UserError where the files, the page and the base do not
    agree."""
    prefix = f"{headers.folder}: the change of {matrix.name}"
    halves = [PREFIX + matrix.name + end for end in (DOWN, UP)]
    need(
        all(half in headers.entries for half in halves),
        f"{prefix} has only one of lora_A and lora_B; restore the other.",
    )
    down, up = (headers.entries[half].shape for half in halves)
    outputs = sum(size for _, size in matrix.layers)
    inputs = naming.shapes[f"{matrix.layers[0][0]}.weight"][1]
    need(
        len(down) == len(up) == 2 and (*up, inputs) == (outputs, down[0] or None, down[1]),
        f"{prefix} is {list(down)} by {list(up)}, not (rank, {inputs}) by ({outputs}, rank); check "
        "it.",
    )
    rank = _patterned(page, "rank_pattern", matrix.name, page.value("r", None))
    need(
        rank in (None, down[0]),
        f"{prefix} has rank {down[0]} and {PAGE} says {rank}; fix one of them.",
    )
    alpha = _patterned(page, "alpha_pattern", matrix.name, page.value("lora_alpha", 8))
    divisor = math.sqrt(down[0]) if page.flag("use_rslora", False) else down[0]
    return float(alpha) / divisor


def _patterned(page: ConfigReader, key: str, name: str, default: Any) -> Any:
    """The value of the first pattern that a layer's name ends in, as PEFT matches them."""
    for pattern, value in (page.value(key, None) or {}).items():
        slow = len(re.findall(r"[*+?{]", pattern)) > 3 or re.search(r"\)[*+{]", pattern)
        need(
            not slow and len(pattern) <= 2000,
            f'{PAGE} has the pattern "{pattern[:80]}", which is too involved to be tried; write '
            "the names out.",
        )
        try:
            if re.match(rf"(.*\.)?({pattern})$", name):
                return value
        except (re.error, OverflowError, RecursionError):
            raise UserError(
                f'{PAGE} has "{pattern[:80]}", which is not a pattern of names; fix it.'
            ) from None
    return default


def _copy(model: Model, values: Mapping[str, Tensor], folder: Path) -> None:
    params = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in values.items():
            place = params.get(name)
            _must_fit(
                name, tuple(tensor.shape), None if place is None else tuple(place.shape), folder
            )
            need(
                is_finite(tensor),
                f"{folder}: {name} holds NaN or infinite numbers; load another checkpoint.",
            )
            params[name].copy_(tensor)


def _must_fit(name: str, shape: Shape, place: Shape | None, folder: Path) -> None:
    need(
        shape == place,
        f"{folder} holds {name} of the shape {list(shape)}, which its base has not; check the base.",
    )
