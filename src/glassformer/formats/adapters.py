"""What was changed in a model, without the model: low-rank changes in PEFT's layout, or a few whole
weights.

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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import families as recipes
from ..core import config
from ..core.checkpoints import tensors as tensorfiles
from ..core.checkpoints import weights
from ..core.checkpoints.headers import short
from ..core.checkpoints.recipe import Table
from ..core.errors import UserError, need
from ..core.files import read_json
from ..core.nn import Model
from ..core.nn.finite import is_finite
from . import lora

PAGE, TENSORS = "adapter_config.json", "adapter_model.safetensors"
FIX = "restore it or download it again"
PREFIX, DOWN, UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
Contents = dict[str, str | Callable[[Path], None]]
Ranks = dict[str, tuple[int, float]]  # a layer's path -> rank and scale


# --------------------------------------------------------------------------------------- names


@dataclass(frozen=True)
class AdapterMatrix:
    """One matrix as its files name it: ``layers`` are the layers stacked in it, each with its
    number of outputs."""

    name: str
    layers: tuple[tuple[str, int], ...]
    transpose: bool = False


def _namings(model: config.Model) -> Iterator[tuple[list[weights.Link], str]]:
    """The ways in which files may name the weights: links, and a prefix that the names there have
    lost.

    As published, where a layout holds the model; then as we do.
    """
    with contextlib.suppress(UserError):
        recipe, raw = recipes.write_config(model)
        table = recipe.table(model)
        links = weights.links(table, weights.shapes(recipe.layout(model)))
        bare = raw["architectures"][0] in recipe.bare
        yield from (
            (links, prefix)
            for prefix in dict.fromkeys([table.prefix if bare else "", table.prefix])
        )
    yield weights.links(Table(()), weights.shapes(model)), ""


def _matrices(
    links: list[weights.Link], prefix: str, shapes: Mapping[str, Any]
) -> Iterator[AdapterMatrix]:
    """Every matrix of the files that is made of whole linear layers."""
    for link in links:
        is_linear = len(link.file_names) == 1 and not link.rule.axes
        if (
            is_linear
            and all(name.endswith(".weight") for name in link.param_names)
            and link.file_names[0].endswith(".weight")
        ):
            name = link.file_names[0].removeprefix(prefix).removesuffix(".weight")
            layers = tuple(
                (param.removesuffix(".weight"), int(shapes[param][0]))
                for param in link.param_names
                if param in shapes
            )
            yield AdapterMatrix(name, layers, link.rule.transpose)


# -------------------------------------------------------------------------------------- saving


def contents(model: Model, base: str) -> Contents:
    """The files of what was trained in ``model`` on top of ``base``: an adapter, or the trained
    weights alone."""
    state = {name: weight.detach() for name, weight in lora.trained(model)}
    layers = lora.adapted(model)
    if not layers:
        return {**tensorfiles.contents(tensorfiles.plain(state), limit=1 << 62)}
    for links, prefix in _namings(model.config):
        all_matrices = _matrices(links, prefix, weights.shapes(model.config))
        matrices = {path: matrix for matrix in all_matrices for path, _ in matrix.layers}
        complete_links = [link for link in links if state.keys() >= set(link.param_names)]
        saved = {name for link in complete_links for name in link.param_names} | {
            f"{p}.{x}" for p in layers for x in ("down", "up")
        }
        if layers.keys() <= matrices.keys() and state.keys() <= saved:
            break
    tensors, ranks = {}, {}
    chosen = {matrices[path].name: matrices[path] for path in layers}
    for name, matrix in chosen.items():
        tensors[f"{PREFIX}{name}{DOWN}"], up, scale = _joined(matrix, layers)
        tensors[f"{PREFIX}{name}{UP}"] = up
        ranks[name] = (up.shape[1], scale)
    modules = set()
    for link in complete_links:
        for name, tensor in zip(
            link.file_names, link.save([state[param] for param in link.param_names]), strict=True
        ):
            tensors[PREFIX + name.removeprefix(prefix)] = tensor
            modules.add(name.removeprefix(prefix).rpartition(".")[0])
    page = _page(base, ranks, chosen, matrices.values(), modules, model)
    pieces = tensorfiles.plain({name: tensor.contiguous() for name, tensor in tensors.items()})
    (content,) = tensorfiles.contents(pieces, limit=1 << 62).values()
    return {TENSORS: content, PAGE: json.dumps(page, indent=2) + "\n"}


def _joined(
    matrix: AdapterMatrix, layers: Mapping[str, lora.LoRALinear]
) -> tuple[Tensor, Tensor, float]:
    """down (R, I), up (O, R) and the scale of all changes within one matrix: side by side, zero
    elsewhere."""
    inside = [layers[path] for path, _ in matrix.layers if path in layers]
    scale, none = inside[0].scale, inside[0].up.new_zeros
    ups = [
        layers[path].up.detach() * (layers[path].scale / scale) if path in layers else none(size, 0)
        for path, size in matrix.layers
    ]
    return torch.cat([layer.down.detach() for layer in inside]), torch.block_diag(*ups), scale  # type: ignore[no-untyped-call]


def _page(
    base: str,
    ranks: Ranks,
    chosen: Mapping[str, AdapterMatrix],
    every: Any,
    modules: set[str],
    model: Model,
) -> dict[str, Any]:
    """The adapter_config.json, as PEFT's LoraConfig writes it."""
    rank, scale = next(iter(ranks.values()))
    suffixes = {name.rpartition(".")[2] for name in chosen}
    short = {matrix.name for matrix in every if matrix.name.rpartition(".")[2] in suffixes} == set(
        chosen
    )
    kind = {config.Decoder: "CAUSAL_LM", config.EncoderDecoder: "SEQ_2_SEQ_LM"}.get(
        type(model.config)
    )
    labelled = model.config.pool is not None and model.config.pool.labels
    layer = next(iter(lora.adapted(model).values()))
    return {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if labelled else kind,
        "base_model_name_or_path": base,
        "revision": None,
        "r": rank,
        "lora_alpha": _number(scale * rank),
        "lora_dropout": layer.drop.p,
        "target_modules": sorted(suffixes if short else chosen),
        "modules_to_save": sorted(modules) or None,
        "rank_pattern": {name: r for name, (r, _) in ranks.items() if r != rank},
        "alpha_pattern": {
            name: _number(s * r) for name, (r, s) in ranks.items() if s * r != scale * rank
        },
        "fan_in_fan_out": any(matrix.transpose for matrix in chosen.values()),
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
    if not (folder / PAGE).is_file():
        files = tensorfiles.open_files(folder)
        _copy(
            {name: files.load(name) for name in files.entries},
            dict(model.named_parameters()),
            folder,
        )
        return
    page, files = read_json(folder / PAGE, FIX), tensorfiles.open_file(folder / TENSORS)
    _check_page(page, folder / PAGE)
    names = {name.removeprefix(PREFIX) for name in files.entries}
    unknown: list[list[str]] = []
    for links, prefix in _namings(model.config):
        matrices = {m.name: m for m in _matrices(links, prefix, weights.shapes(model.config))}
        wholes = {name.removeprefix(prefix) for link in links for name in link.file_names}
        changed = {
            name.removesuffix(end) for name in names for end in (DOWN, UP) if name.endswith(end)
        }
        full_weights = names - {name + suffix for name in changed for suffix in (DOWN, UP)}
        unknown.append(sorted((changed - matrices.keys()) | (full_weights - wholes)))
        if not unknown[-1]:
            break
    else:
        raise UserError(
            f"{folder} changes {short(min(unknown, key=len))}, which its base does not have; "
            "check the base."
        )
    layers: dict[str, tuple[Tensor, Tensor, float]] = {}
    for name in sorted(changed):
        layers |= _parted(matrices[name], *_halves(files, name, matrices[name], page))
    lora.adapt(model, {path: (len(down), scale) for path, (down, _, scale) in layers.items()})
    params = dict(model.named_parameters())
    values: dict[str, Tensor] = {}
    for path, (down, up, _) in layers.items():
        values |= {f"{path}.down": down, f"{path}.up": up}
    for link in links:
        if full_weights.issuperset(name.removeprefix(prefix) for name in link.file_names):
            file_tensors = [
                files.load(PREFIX + name.removeprefix(prefix)) for name in link.file_names
            ]
            shapes = [tuple(params[name].shape) for name in link.param_names]
            values |= zip(link.param_names, link.load(file_tensors, shapes), strict=True)
    _copy(values, params, folder)


def _parted(
    matrix: AdapterMatrix, down: Tensor, up: Tensor, scale: float
) -> dict[str, tuple[Tensor, Tensor, float]]:
    """The changes of our layers in one matrix, each without the ranks that are zero in it."""
    changes = {}
    for (path, _), up_slice in zip(
        matrix.layers, torch.split(up, [size for _, size in matrix.layers]), strict=True
    ):
        nonzero = (
            up_slice.ne(0).any(0)
            if len(matrix.layers) > 1
            else torch.ones(len(down), dtype=torch.bool)
        )
        if nonzero.any():
            changes[path] = (down[nonzero], up_slice[:, nonzero], scale)
    return changes


KNOWN = {
    "auto_mapping",
    "base_model_name_or_path",
    "task_type",
    "inference_mode",
    "lora_dropout",
    "fan_in_fan_out",
}
KNOWN |= {
    "megatron_core",
    "peft_version",
    "loftq_config",
    "eva_config",
    "corda_config",
    "runtime_config",
    "lora_alpha",
}
KNOWN |= {
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "rank_pattern",
    "alpha_pattern",
}
# what is obeyed, or only of use in training
KNOWN |= {"modules_to_save", "use_rslora", "r", "qalora_group_size"}
ALLOWED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "revision": (None, "main"),
    # others change the base's own matrices
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}


def _check_page(page: Mapping[str, Any], path: Path) -> None:
    """Refuse by name each setting that changes what an adapter does and is not done here (PEFT's
    LoraConfig)."""
    for key, value in page.items():
        allowed = ALLOWED.get(key, (False, None, {}, []))
        plain = any(
            value == choice and isinstance(value, bool) == isinstance(choice, bool)
            for choice in allowed
        )
        value_text = json.dumps(value, default=str)[:80]
        need(
            plain or key in KNOWN,
            f'{path} says "{key}": {value_text}; only {json.dumps(allowed[0])} is read here.',
        )
    for keys, kind, named in (
        (("r",), int, "a number"),
        (("lora_alpha",), int | float, "a number"),
        (("use_rslora",), bool, "true or false"),
        (("rank_pattern", "alpha_pattern"), dict, "a table"),
        (("layers_to_transform",), list | int, "a list or a number"),
        (("target_modules", "exclude_modules", "layers_pattern"), list | str, "a list or a text"),
    ):
        for key in keys:
            value = page.get(key)
            fits = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
            listed = isinstance(value, list) and not all(
                isinstance(item, str | int) for item in value
            )
            value_text = json.dumps(value, default=str)[:80]
            need(
                value is None or (fits and not listed),
                f'{path} says "{key}": {value_text}; it must be {named}.',
            )
    for key in ("rank_pattern", "alpha_pattern"):
        for name, value in dict(page.get(key) or {}).items():
            fits = type(value) in (int, float) and math.isfinite(value)
            need(
                fits,
                f'{path}: "{key}" says {json.dumps(value, default=str)[:40]} for {name}; '
                "give a number.",
            )


def _halves(
    files: tensorfiles.Files, name: str, matrix: AdapterMatrix, page: Mapping[str, Any]
) -> tuple[Tensor, Tensor, float]:
    """down (R, I), up (O, R) and the scale of a change; UserError where the files and the page do
    not agree."""
    prefix = f"{files.folder}: the change of {name}"
    halves = [PREFIX + name + suffix for suffix in (DOWN, UP)]
    need(
        all(half in files.entries for half in halves),
        f"{prefix} has only one of lora_A and lora_B; restore the other.",
    )
    down, up = map(files.load, halves)
    outputs = sum(size for _, size in matrix.layers)
    fits = down.ndim == up.ndim == 2 and len(down) == up.shape[1] > 0 and len(up) == outputs
    need(
        fits,
        f"{prefix} is {list(down.shape)} by {list(up.shape)}, not (rank, inputs) by "
        f"({outputs}, rank); check it.",
    )
    rank = _patterned(page, "rank_pattern", name, page.get("r"))
    need(
        rank in (None, len(down)),
        f"{prefix} has rank {len(down)} and {PAGE} says {rank}; fix one of them.",
    )
    need(
        _targets(page, name),
        f"{prefix} is not one that {PAGE} targets; fix target_modules or layers_to_transform there.",
    )
    alpha = _patterned(page, "alpha_pattern", name, page.get("lora_alpha", 8))
    fits = type(alpha) in (int, float) and abs(alpha) < 1e30
    need(fits, f'{files.folder / PAGE} has no number under "lora_alpha"; restore it.')
    return down, up, float(alpha) / (math.sqrt(len(down)) if page.get("use_rslora") else len(down))


def _patterned(page: Mapping[str, Any], key: str, name: str, default: Any) -> Any:
    """The value of the first pattern that a layer's name ends in, as PEFT matches them."""
    patterns = dict(page.get(key) or {})
    return next(
        (value for pattern, value in patterns.items() if _match(pattern, name, r"(.*\.)?")), default
    )


def _targets(page: Mapping[str, Any], name: str) -> bool:
    """True where the page's target_modules, exclude_modules and layers_to_transform let a layer be
    changed, as in PEFT."""

    def listed(names: Any) -> bool:
        if isinstance(names, str):
            return names == "all-linear" or _match(names, name) is not None
        return any(name == target or name.endswith(f".{target}") for target in names)

    if page.get("exclude_modules") and listed(page["exclude_modules"]):
        return False
    targets, layers = page.get("target_modules"), page.get("layers_to_transform")
    if targets and not listed(targets):
        return False
    if layers in (None, []) or isinstance(targets, str):
        return True
    # of the first number in the name, not of an expert's
    above = page.get("layers_pattern") or "[^.]*"
    matches = [
        _match(pattern, name, r".*?\.", r"\.(\d+)\.")
        for pattern in ([above] if isinstance(above, str) else above)
    ]
    number = next((int(match[match.re.groups]) for match in matches if match), None)
    return number in (layers if isinstance(layers, list) else [layers])


def _match(pattern: str, name: str, before: str = "", after: str = "$") -> re.Match[str] | None:
    """Matches a pattern of a file with a name; UserError for one that could take for ever."""
    slow = (
        len(re.findall(r"[*+?{]", pattern)) > 3
        or re.search(r"\)[*+{]", pattern)
        or len(pattern) > 2000
    )
    need(
        not slow,
        f'{PAGE} has the pattern "{pattern[:80]}", which is too involved to be tried; '
        "write the names out.",
    )
    try:
        return re.match(f"{before}({pattern}){after}", name)
    except (re.error, OverflowError, RecursionError):
        raise UserError(
            f'{PAGE} has "{pattern[:80]}", which is not a pattern of names; fix it.'
        ) from None


def _copy(values: Mapping[str, Tensor], params: Mapping[str, Tensor], folder: Path) -> None:
    with torch.no_grad():
        for name, tensor in values.items():
            fits = name in params and params[name].shape == tensor.shape
            need(
                fits,
                f"{folder} holds {name} of the shape {list(tensor.shape)}, which its base has "
                "not; check the base.",
            )
            need(
                is_finite(tensor),
                f"{folder}: {name} holds NaN or infinite numbers; load another checkpoint.",
            )
            params[name].copy_(tensor)
