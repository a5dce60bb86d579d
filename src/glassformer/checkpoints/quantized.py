"""Models of few bits in files: our own layout, with codes and scales beside each other
(docs/quantize.md).

config.json          {"glassformer": 1, "model": ..., "quantization": {"version": 1, "group": 32, "dtype": "bfloat16"}}
model.safetensors    NAME.codes   I8 (.., N, C), or U8 (.., N, C / 2): two in a byte, the even one low, each + 8
                     NAME.scales  F16 (.., N, C / group, rounded up)
                     NAME         what is not quantised
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import config
from ..config import serial
from ..errors import UserError, need
from ..nn import Model, build_model
from ..nn import quantized as nn_quantized
from ..nn.finite import is_finite
from ..nn.model import allocate
from ..recipes.recipe import Table
from . import tensors as tensorfiles
from . import weights
from .headers import Headers, Shape

VERSION = 1  # of the layout
KEY = "quantization"  # in config.json and in the metadata of the tensors' file
CODES, SCALES = ".codes", ".scales"


@dataclass(frozen=True)
class Page:
    """What config.json says of the codes: how many of them share a scale, and in which dtype the
    rest is computed."""

    version: int
    group: int
    dtype: str

    @classmethod
    def read(cls, raw: Any, where: str) -> Page:
        """The page in a config.json; UserError for one that this version does not read."""
        version = raw.get("version") if isinstance(raw, dict) else None
        known = (
            f'{where} has a "{KEY}" of version {json.dumps(version, default=str)[:20]} and '
            "this version reads"
        )
        need(
            version == VERSION and type(version) is int, f"{known} {VERSION}; upgrade glassformer."
        )
        page: Page = serial.from_dict(cls, raw)
        need(page.group > 0, f"{where}: groups of {page.group} codes cannot be; restore it.")
        return page


def page_of(model: nn.Module) -> Page | None:
    """What a model's config.json says of its codes; None where nothing is quantised."""
    held = nn_quantized.quantized(model)
    groups = {weight.quantized_data.group for weight in held.values()}
    need(len(groups) < 2, "The layout holds groups of one size; quantise the model with one.")
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return Page(VERSION, groups.pop(), dtype) if groups else None


def contents(model: nn.Module, page: Page, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The files of a quantised model, by name; ``state`` is every weight by its path."""
    said = {KEY: json.dumps(asdict(page))}
    return tensorfiles.contents(tensorfiles.plain(dict(_named(state))), metadata=said)


def _named(state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, weight in state.items():
        if isinstance(weight, nn_quantized.QuantizedWeight):
            yield name + CODES, weight.quantized_data.codes
            yield name + SCALES, weight.quantized_data.scales
        else:
            yield name, weight


def load(
    cfg: config.Model,
    page: Page,
    files: tensorfiles.Files,
    dtype: torch.dtype,
    device: torch.device | str | None,
) -> Model:
    """The model with the files' weights, every name and shape compared before anything is read."""
    shapes = weights.shapes(cfg)
    held = {name: shape for name, shape in shapes.items() if name + CODES in files.entries}
    for name, shape in held.items():
        _check(files, name, shape, page.group)
    own = {name + end for name in held for end in (CODES, SCALES)}
    rest = tensorfiles.Files(
        Headers(files.folder, {n: e for n, e in files.entries.items() if n not in own})
    )
    plain = {name: shape for name, shape in shapes.items() if name not in held}
    links = weights.check(Table(()), plain, rest)
    model = build_model(cfg, device="meta", dtype=dtype)
    where = device or torch.get_default_device()
    for name in held:
        codes, scales = files.take(name + CODES), files.read(name + SCALES)
        need(
            is_finite(scales), f"{files.folder}: {name}{SCALES} is not finite; copy the file again."
        )
        whole = nn_quantized.Codes(codes, scales, page.group).to(torch.device(where))
        nn_quantized.put(model, name, nn_quantized.parameter(whole, dtype))
    allocate(model, where)
    weights.fill(links, rest, dict(model.named_parameters()), plain)
    return model


def _check(files: tensorfiles.Files, name: str, shape: Shape, group: int) -> None:
    """UserError where codes and scales are not those of a weight of this shape."""
    codes, scales = files.entries[name + CODES], files.entries.get(name + SCALES)
    need(scales is not None, f"{files.folder} lacks {name}{SCALES}; copy the file again.")
    assert scales is not None
    fits = len(shape) in (2, 3) and codes.dtype in ("I8", "U8") and scales.dtype == "F16"
    wide = codes.shape[-1] * (2 if codes.dtype == "U8" else 1) if codes.shape else 0
    fits = fits and (*codes.shape[:-1], wide) == shape
    if not fits or scales.shape != (*shape[:-1], -(-shape[-1] // group)):
        found = f"{codes.dtype} {list(codes.shape)} and {scales.dtype} {list(scales.shape)}"
        said = f"{files.folder}: {name} of {list(shape)} has codes and scales {found}"
        raise UserError(f"{said}, which do not fit it in groups of {group}; copy the folder again.")
