"""The recipe book: published models as data, one page each. Adding a family is one page, one entry
of published.json and one import here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from ..core import config
from ..core.config import serial
from ..core.errors import UserError, nearest, need
from . import (  # noqa: F401, each with its pages
    albert,
    bart,
    bert,
    bloom,
    cohere2,
    deberta,
    deepseek,
    diffllama,
    distilbert,
    electra,
    esm,
    eurobert,
    exaone4,
    falcon,
    gemma,
    gemma3,
    glass,
    glm4_moe,
    gpt2,
    gpt_bigcode,
    gpt_neo,
    gpt_neox,
    gpt_oss,
    gptj,
    granite,
    granitemoehybrid,
    led,
    lfm2,
    llama,
    llama4,
    longformer_page,
    mamba2,
    minimax_m2,
    mistral,
    mixtral,
    modernbert,
    mpnet,
    mpt,
    mt5,
    nanomoe,
    nemotron_h,
    nomic_bert,
    olmo2,
    opt,
    phi,
    phimoe,
    qwen,
    qwen3_next,
    roberta,
    rwkv,
    sentences,
    smollm3,
    stablelm,
    starcoder2,
    t5,
    vaswani,
)
from .differences import differences
from .keys import spelled_out
from .names import NameRule as NameRule
from .names import Table as Table
from .recipe import PAGES, PUBLISHED, Held, Settings
from .recipe import ConfigReader as ConfigReader
from .recipe import Recipe as Recipe

RECIPES = {name: PAGES[name] for name in PUBLISHED}
"""Every recipe by its name; of layouts that hold a model alike, the first is written."""


def add(recipe: Recipe) -> None:
    """One more recipe, from outside the package: found by its name, listed, and by its
    architectures when loading.

    Raises UserError for a name, architecture or model type that another has.
    """
    for name in (recipe.name, *recipe.sizes):
        need(
            re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) is not None,
            f'The recipe "{recipe.name}" has a name or size "{name}"; take small letters, '
            "digits, dots and dashes.",
        )
    need(
        recipe.name not in RECIPES,
        f'There is a recipe "{recipe.name}" already; give yours another name.',
    )
    for registered in RECIPES.values():
        reads = (*recipe.architectures, recipe.model_type) if recipe.read_config else ()
        for name in filter(None, reads):
            need(
                name not in (*registered.architectures, registered.model_type),
                f'The recipe "{recipe.name}" reads "{name}", which {registered.name} reads already; '
                "give yours another architecture and model_type.",
            )
    RECIPES[recipe.name] = recipe


def all() -> list[Recipe]:
    """Every recipe."""
    return list(RECIPES.values())


def names() -> list[str]:
    """Every RECIPE/SIZE."""
    return [f"{recipe.name}/{size}" for recipe in all() for size in recipe.sizes]


def find(name: str) -> config.Model:
    """The config of a RECIPE/SIZE such as ``llama/3-8b``; UserError with the nearest for an unknown
    one."""
    recipe, _, size = name.lower().partition("/")
    if recipe not in RECIPES:
        hint = nearest(name, names()) or " `glassformer recipes` lists them."
        raise UserError(f'There is no recipe "{name}".{hint}')
    sizes = RECIPES[recipe].sizes
    offered = ", ".join(f"{recipe}/{size}" for size in sizes)
    need(size in sizes, f'There is no recipe "{name}"; {recipe} comes as {offered}.')
    return sizes[size]  # type: ignore[no-any-return]


def of(raw: Mapping[str, Any], source: str = "config.json") -> Recipe:
    """The recipe of a published config.json, by its architecture; UserError for one that is not in
    the book."""
    listed = raw.get("architectures")
    need(
        listed is None or isinstance(listed, list),
        f'{source}: "architectures" is {json.dumps(listed)[:60]}; it must be a list of names.',
    )
    published = [recipe for recipe in all() if recipe.read_config is not None]
    classes = {name: recipe for recipe in reversed(published) for name in recipe.architectures}
    types = {recipe.model_type: recipe for recipe in reversed(published)}
    name = listed[0] if listed else raw.get("model_type")
    if isinstance(name, str) and (recipe := (classes if listed else types).get(name)):
        return recipe
    name = str(name)[:80]
    need(
        name != "None",
        f'{source} names no model ("architectures" is missing); add it, one of `glassformer '
        "recipes --types`.",
    )
    near = get_close_matches(name, classes, 1, 0.95)
    hint = f' Did you mean "{near[0]}"?' if near else ""
    raise UserError(
        f'{source}: the architecture "{name}" is not in the recipe book; `glassformer why FOLDER '
        f"TEXT ADDRESS --with-transformers` opens it.{hint}"
    )


def read_config(
    raw: Mapping[str, Any], source: str = "config.json", weights: Held | None = None
) -> tuple[Recipe, config.Model]:
    """The recipe and our config of a published config.json, ``held`` the weights beside it where
    they are known.

    Raises UserError for what it asks that nothing here does.
    """
    recipe = of(raw, source)
    assert recipe.read_config is not None
    table = ConfigReader(raw, source, weights)
    table.only("quantization_config", None, "quantised weights are not read here")
    try:
        model = recipe.read(table)
        sees = {config.Decoder: True, config.Encoder: False}.get(type(model))
        table.only("is_causal", sees, "the family says which tokens see which")
        return recipe, model
    except UserError as error:
        text = str(error)
        raise UserError(text if text.startswith(source) else f"{source}: {text}") from None


def write_config(model: config.Model, family: str = "") -> tuple[Recipe, Settings]:
    """The recipe whose published layout holds this config, and its config.json.

    The layout of ``family`` is tried first, for several hold a Llama with a window. A layout holds
    a config when reading what it writes gives the config back. Where none has room for its dropout,
    which only training reads, that alone is left out. Raises UserError that names the first thing
    in the way for a config that no published layout holds.
    """
    # what is in the way of the nearest layout, how much of it
    hindrance, nearness = "none is of its shape", 0
    need(
        not model.recurrent,
        'No published layout holds a recurrent model; save it with the layout "glassformer".',
    )
    need(
        not any(scaling.use_long for scaling in model.long_scalings.values()),
        "No published layout is for long texts alone, as this model's LongRopeScaling is; "
        'save it with the layout "glassformer".',
    )
    added = serial.added_types(model)
    layouts = [
        recipe
        for recipe in all()
        if added <= recipe.added_types
        and (recipe.name == family or bool(added) == bool(recipe.added_types))
    ]
    need(
        bool(layouts),
        f"No published layout holds {', '.join(sorted(added))}; save the model with the layout "
        '"glassformer".',
    )
    model, beside = sentences.write_config(model)
    undropped = None
    for recipe in sorted(layouts, key=lambda recipe: recipe.name != family):
        shaped = isinstance(model, tuple(map(type, recipe.examples)))
        if recipe.read_config is None or recipe.write_config is None or not shaped:
            continue
        try:
            raw = recipe.write_config(model)
            back = recipe.read_config(ConfigReader(raw))
        except UserError as error:
            hindrance = hindrance if nearness else str(error).rstrip(".")
            continue
        differs = list(differences(serial.to_dict(plain(model)), serial.to_dict(plain(back))))
        if {path.rpartition(".")[2] for path, _, _ in differs} <= {"dropout"}:
            named = {"architectures": [recipe.architectures[0]], "model_type": recipe.model_type}
            holder = recipe, {**named, **raw, **beside}
            if not differs:
                return holder
            undropped = undropped or holder
            continue
        distance = sum(_values(value) for _, value, _ in differs)
        if not nearness or distance < nearness:
            listing = ", ".join(f"{path} = {_short(value)}" for path, value, _ in differs[:3])
            hindrance = f"the nearest, {recipe.name}, cannot say {listing}"
            nearness = 1 if recipe.name == family else distance
    if undropped is not None:
        return undropped
    raise UserError(
        f"No published layout holds this model: {hindrance}; save it with the layout "
        '"glassformer", or train one that has a layout with --exportable.'
    )


def plain(model: config.Model) -> config.Model:
    """The config with its defaults spelled out, so that two which mean the same are equal; init is
    left out."""
    return replace(spelled_out(model), init=config.Init())


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return value["type"]
    return f"{len(value)} blocks" if isinstance(value, list) else value


def _values(value: Any) -> int:
    """Number of values in a part of a config."""
    value = list(value.values()) if isinstance(value, dict) else value
    return sum(map(_values, value)) if isinstance(value, list) else 1
