"""Models of few bits in files: our own layout, with codes and scales beside each other
(docs/quantize.md).

config.json          {"glassformer": 1, "model": ..., "quantization": {"version": 1, "group": 32, "dtype": "bfloat16"}}
model.safetensors    NAME.codes   I8 (.., N, C), or U8 (.., N, C / 2): two in a byte, the even one low, each + 8
                     NAME.scales  F16 (.., N, C / group, rounded up)
                     NAME         what is not quantized
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core import config
from ..core.checkpoints import tensors as tensorfiles
from ..core.checkpoints.headers import Headers, Shape
from ..core.config import serial
from ..core.errors import UserError, need
from ..core.nn import Model, build_model
from ..core.nn.finite import is_finite
from ..core.nn.init import allocate
from ..core.nn.replace import replace_parameter
from ..families.names import Table
from ..fast import quantized as nn_quantized
from . import weights

VERSION = 1  # of the layout
KEY = "quantization"  # in config.json and in the metadata of the tensors' file
CODES, SCALES = ".codes", ".scales"


@dataclass(frozen=True)
class CodesConfig:
    """Entry of config.json about the codes: how many of them share a scale, and the dtype in which
    the other weights are computed."""

    version: int
    group: int
    dtype: str

    @classmethod
    def parse(cls, raw: Any, source: str) -> CodesConfig:
        """The page in a config.json; UserError for one that this version does not read."""
        version = raw.get("version") if isinstance(raw, dict) else None
        message = (
            f'{source} has a "{KEY}" of version {json.dumps(version, default=str)[:20]} and '
            "this version reads"
        )
        need(
            version == VERSION and type(version) is int,
            f"{message} {VERSION}; upgrade glassformer.",
        )
        page: CodesConfig = serial.from_dict(cls, raw)
        need(page.group > 0, f"{source}: groups of {page.group} codes cannot be; restore it.")
        return page


def page_of(model: nn.Module) -> CodesConfig | None:
    """Entry for a model's config.json about its codes; None where nothing is quantized."""
    params = nn_quantized.quantized(model)
    groups = {weight.quantized_data.group for weight in params.values()}
    need(len(groups) < 2, "The layout holds groups of one size; quantize the model with one.")
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return CodesConfig(VERSION, groups.pop(), dtype) if groups else None


def contents(model: nn.Module, page: CodesConfig, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The files of a quantized model, by name; ``state`` is every weight by its path."""
    metadata = {KEY: json.dumps(asdict(page))}
    return tensorfiles.contents(tensorfiles.plain(dict(_named(state))), metadata=metadata)


def _named(state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, weight in state.items():
        if isinstance(weight, nn_quantized.QuantizedWeight):
            yield name + CODES, weight.quantized_data.codes
            yield name + SCALES, weight.quantized_data.scales
        else:
            yield name, weight


def load(
    cfg: config.Model,
    page: CodesConfig,
    files: tensorfiles.Files,
    dtype: torch.dtype,
    device: torch.device | str | None,
) -> Model:
    """The model with the files' weights, every name and shape compared before anything is read."""
    shapes = weights.shapes(cfg)
    coded_shapes = {name: shape for name, shape in shapes.items() if name + CODES in files.entries}
    for name, shape in coded_shapes.items():
        _check(files, name, shape, page.group)
    code_names = {name + end for name in coded_shapes for end in (CODES, SCALES)}
    plain_files = tensorfiles.Files(
        Headers(files.folder, {n: e for n, e in files.entries.items() if n not in code_names})
    )
    plain = {name: shape for name, shape in shapes.items() if name not in coded_shapes}
    links = weights.check(Table(()), plain, plain_files)
    model = build_model(cfg, device="meta", dtype=dtype)
    target_device = device or torch.get_default_device()
    for name in coded_shapes:
        codes, scales = files.take(name + CODES), files.load(name + SCALES)
        need(
            is_finite(scales), f"{files.folder}: {name}{SCALES} is not finite; copy the file again."
        )
        packed = nn_quantized.Codes(codes, scales, page.group).to(torch.device(target_device))
        replace_parameter(model, name, nn_quantized.parameter(packed, dtype))
    allocate(model, target_device)
    weights.fill(links, plain_files, dict(model.named_parameters()), plain)
    return model


def _check(files: tensorfiles.Files, name: str, shape: Shape, group: int) -> None:
    """UserError where codes and scales are not those of a weight of this shape."""
    codes = files.entries[name + CODES]
    scales = files.entries.get(name + SCALES)
    need(scales is not None, f"{files.folder} lacks {name}{SCALES}; copy the file again.")
    assert scales is not None
    fits = len(shape) in (2, 3) and codes.dtype in ("I8", "U8") and scales.dtype == "F16"
    wide = codes.shape[-1] * (2 if codes.dtype == "U8" else 1) if codes.shape else 0
    fits = fits and (*codes.shape[:-1], wide) == shape
    if not fits or scales.shape != (*shape[:-1], -(-shape[-1] // group)):
        stored = f"{codes.dtype} {list(codes.shape)} and {scales.dtype} {list(scales.shape)}"
        problem = f"{files.folder}: {name} of {list(shape)} has codes and scales {stored}"
        raise UserError(
            f"{problem}, which do not fit it in groups of {group}; copy the folder again."
        )
