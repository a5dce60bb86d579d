"""What was changed in a model, without the model: low-rank changes in PEFT's layout, or a few whole weights.

    adapter_config.json  adapter_model.safetensors     LoRA, with the published names that PEFT knows its base by
    config.json          {"glassformer": 1, "model": ..., "base": NAME}      our own page about it
    model.safetensors                                  instead of an adapter: the weights that were trained

R rank, I inputs, O outputs.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import config, recipes, tensorfiles, weights
from .errors import UserError, need
from .nn import Model, lora
from .recipes.recipe import Rule

PAGE, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PREFIX, DOWN, UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
Contents = dict[str, str | Callable[[Path], None]]
Ranks = dict[str, tuple[int, float]]  # a layer's path -> rank and scale


def base_of(folder: Path) -> str | None:
    """The name of the model that a folder holds a change of; None where it holds a whole model."""
    for page, key in (("config.json", "base"), (PAGE, "base_model_name_or_path")):
        with contextlib.suppress(UserError):  # who reads the page says what is wrong with it
            found = _table(folder / page).get(key)
            if isinstance(found, str) and found:
                return found
    return None


def _table(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        raise UserError(f"{path} cannot be read or is not valid JSON; restore it or download it again.") from None
    return found if isinstance(found, dict) else {}


# --------------------------------------------------------------------------------------- names


@dataclass(frozen=True)
class Matrix:
    """One matrix as its files name it: ``parts`` are our layers under each other in it, with their outputs."""

    name: str
    parts: tuple[tuple[str, int], ...]
    flip: bool = False


def _published(model: config.Model) -> tuple[list[weights.Link], str]:
    """The links to the published names of the whole model, and the prefix that its architecture leaves away."""
    recipe, raw = recipes.write(model)
    table = recipe.table(model)
    bare = raw["architectures"][0] in recipe.bare
    return weights.links(table, weights.shapes(recipe.layout(model))), table.prefix if bare else ""


def _own(model: config.Model) -> tuple[list[weights.Link], str]:
    return [weights.Link((name,), (name,), Rule(name, name)) for name in weights.shapes(model)], ""


def _namings(model: config.Model) -> Iterator[tuple[list[weights.Link], str]]:
    """The ways in which files may name the weights: as published, where a layout holds the model; as we do."""
    try:
        links, prefix = _published(model)
        yield links, prefix
        if not prefix:
            yield links, recipes.write(model)[0].table(model).prefix
    except UserError:
        pass
    yield _own(model)


def _matrices(links: list[weights.Link], prefix: str, shapes: Mapping[str, Any]) -> Iterator[Matrix]:
    """Every matrix of the files that is made of whole linear layers."""
    for link in links:
        whole = len(link.theirs) == 1 and (len(link.ours) == 1 or link.rule.axis == 0) and not link.rule.axes
        if whole and all(name.endswith(".weight") for name in link.ours) and link.theirs[0].endswith(".weight"):
            name = link.theirs[0].removeprefix(prefix).removesuffix(".weight")
            parts = tuple((ours.removesuffix(".weight"), int(shapes[ours][0])) for ours in link.ours if ours in shapes)
            yield Matrix(name, parts, link.rule.flip)


# -------------------------------------------------------------------------------------- saving


def contents(model: Model, base: str) -> Contents:
    """The files of what was trained in ``model`` on top of ``base``: an adapter, or the trained weights alone."""
    state = {name: weight.detach() for name, weight in lora.trained(model)}
    layers = lora.adapted(model)
    if not layers:
        return {**tensorfiles.contents(tensorfiles.plain(state), limit=1 << 62)}
    for links, prefix in _namings(model.config):
        matrices = {
            part: matrix
            for matrix in _matrices(links, prefix, weights.shapes(model.config))
            for part, _ in matrix.parts
        }
        whole = [link for link in links if state.keys() >= set(link.ours)]
        said = {name for link in whole for name in link.ours} | {
            f"{p}.{part}" for p in layers for part in ("down", "up")
        }
        if layers.keys() <= matrices.keys() and state.keys() <= said:
            break
    tensors, ranks = {}, {}
    chosen = {matrices[path].name: matrices[path] for path in layers}
    for name, matrix in chosen.items():
        tensors[f"{PREFIX}{name}{DOWN}"], up, scale = _joined(matrix, layers)
        tensors[f"{PREFIX}{name}{UP}"] = up
        ranks[name] = (up.shape[1], scale)
    modules = set()
    for link in whole:
        for name, tensor in zip(link.theirs, link.save([state[ours] for ours in link.ours]), strict=True):
            tensors[PREFIX + name.removeprefix(prefix)] = tensor
            modules.add(name.removeprefix(prefix).rpartition(".")[0])
    page = _page(base, ranks, chosen, matrices.values(), modules, model)
    pieces = tensorfiles.plain({name: tensor.contiguous() for name, tensor in tensors.items()})
    (content,) = tensorfiles.contents(pieces, limit=1 << 62).values()
    return {TENSORS: content, PAGE: json.dumps(page, indent=2) + "\n"}


def _joined(matrix: Matrix, layers: Mapping[str, lora.Adapted]) -> tuple[Tensor, Tensor, float]:
    """down (R, I), up (O, R) and the scale of all changes within one matrix: side by side, zero elsewhere."""
    inside = [layers[path] for path, _ in matrix.parts if path in layers]
    up = torch.zeros(sum(size for _, size in matrix.parts), sum(len(layer.down) for layer in inside))
    row = column = 0
    for path, size in matrix.parts:
        if path in layers:
            layer = layers[path]
            up[row : row + size, column : column + len(layer.down)] = layer.up.detach() * (
                layer.scale / inside[0].scale
            )
            column += len(layer.down)
        row += size
    return torch.cat([layer.down.detach() for layer in inside]), up.to(inside[0].up.dtype), inside[0].scale


def _page(
    base: str, ranks: Ranks, chosen: Mapping[str, Matrix], every: Any, modules: set[str], model: Model
) -> dict[str, Any]:
    """The adapter_config.json, as PEFT's LoraConfig writes it."""
    rank, scale = next(iter(ranks.values()))
    ends = {name.rpartition(".")[2] for name in chosen}
    short = {matrix.name for matrix in every if matrix.name.rpartition(".")[2] in ends} == set(chosen)
    kind = {config.Decoder: "CAUSAL_LM", config.EncoderDecoder: "SEQ_2_SEQ_LM"}.get(type(model.config))
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
        "target_modules": sorted(ends if short else chosen),
        "modules_to_save": sorted(modules) or None,
        "rank_pattern": {name: r for name, (r, _) in ranks.items() if r != rank},
        "alpha_pattern": {name: _number(s * r) for name, (r, s) in ranks.items() if s * r != scale * rank},
        "fan_in_fan_out": any(matrix.flip for matrix in chosen.values()),
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
    """Give ``model``, which holds the base's weights, what a folder changes in it; changes stand beside matrices.

    Raises UserError for an adapter of another kind and for one of another model.
    """
    if not (folder / PAGE).is_file():
        files = tensorfiles.open_files(folder)
        _copy({name: files.read(name) for name in files.entries}, dict(model.named_parameters()), folder)
        return
    page, header = _table(folder / PAGE), tensorfiles.read_header(folder / TENSORS)
    for key, plain in (("peft_type", "LORA"), ("bias", "none"), ("use_dora", False)):
        asked = page.get(key, plain)
        need(
            asked == plain, f'{folder / PAGE} says "{key}": {json.dumps(asked)}; only {json.dumps(plain)} is read here.'
        )
    files = tensorfiles.Files(folder, header)
    names = {name.removeprefix(PREFIX) for name in header}
    strange: list[str] | None = None
    for links, prefix in _namings(model.config):
        matrices = {m.name: m for m in _matrices(links, prefix, weights.shapes(model.config))}
        wholes = {name.removeprefix(prefix) for link in links for name in link.theirs}
        changed = {name.removesuffix(DOWN) for name in names if name.endswith(DOWN)}
        rest = names - {name + part for name in changed for part in (DOWN, UP)}
        odd = sorted((changed - matrices.keys()) | (rest - wholes))
        if not odd:
            break
        strange = odd if strange is None or len(odd) < len(strange) else strange
    else:
        names_of = tensorfiles.short(strange or [])
        raise UserError(f"{folder} changes {names_of}, which its base does not have; check the base.")
    layers: dict[str, tuple[Tensor, Tensor, float]] = {}
    for name in changed:
        down, up = (files.read(PREFIX + name + part) for part in (DOWN, UP))
        layers |= _parted(matrices[name], down, up, _scale(page, name, len(down)))
    lora.adapt(model, {path: (len(down), scale) for path, (down, _, scale) in layers.items()})
    mine = dict(model.named_parameters())
    given: dict[str, Tensor] = {}
    for path, (down, up, _) in layers.items():
        given |= {f"{path}.down": down, f"{path}.up": up}
    for link in links:
        if rest.issuperset(name.removeprefix(prefix) for name in link.theirs):
            theirs = [files.read(PREFIX + name.removeprefix(prefix)) for name in link.theirs]
            shapes = [tuple(mine[name].shape) for name in link.ours]
            given |= zip(link.ours, link.load(theirs, shapes), strict=True)
    _copy(given, mine, folder)


def _parted(matrix: Matrix, down: Tensor, up: Tensor, scale: float) -> dict[str, tuple[Tensor, Tensor, float]]:
    """The changes of our layers in one matrix, each without the ranks that are zero in it."""
    found = {}
    for (path, _), part in zip(matrix.parts, torch.split(up, [size for _, size in matrix.parts]), strict=True):
        used = part.ne(0).any(0) if len(matrix.parts) > 1 else torch.ones(len(down), dtype=torch.bool)
        if used.any():
            found[path] = (down[used], part[:, used], scale)
    return found


def _scale(page: Mapping[str, Any], name: str, rank: int) -> float:
    alpha = page.get("lora_alpha", 8)
    for pattern, own in dict(page.get("alpha_pattern") or {}).items():
        alpha = own if name == pattern or name.endswith(f".{pattern}") else alpha
    need(isinstance(alpha, int | float), f'{PAGE} has no number under "lora_alpha"; restore it.')
    return float(alpha) / (math.sqrt(rank) if page.get("use_rslora") else rank)


def _copy(given: Mapping[str, Tensor], mine: Mapping[str, Tensor], folder: Path) -> None:
    with torch.no_grad():
        for name, tensor in given.items():
            fits = name in mine and mine[name].shape == tensor.shape
            need(
                fits,
                f"{folder} holds {name} of the shape {list(tensor.shape)}, which its base has not; check the base.",
            )
            mine[name].copy_(tensor)
