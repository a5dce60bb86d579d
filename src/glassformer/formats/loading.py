"""A config's model with the weights of files, every name and shape compared before anything is
allocated."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..core import config, memory
from ..core.checkpoints.headers import Shape
from ..core.checkpoints.names import Table
from ..core.checkpoints.tensors import Files
from ..core.errors import UserError
from ..core.nn import Model, build_model
from ..core.nn.finite import check_when_used
from ..core.nn.init import allocate
from ..core.nn.replace import is_packed, replace_parameter
from ..fast.quantized import QuantizedLayout
from . import weights

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
Device = torch.device | str | None


def new_model(
    cfg: config.Model,
    dtype: torch.dtype,
    device: Device,
    seed: int | None = None,
    layout: QuantizedLayout | None = None,
) -> Model:
    """The model of a config, newly initialised; a ``layout`` quantises it once all is drawn."""
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

    A ``layout`` quantises each weight as it is read, so the model never stands here as a whole.
    """
    links, shapes = check_links(cfg, table, published, files)
    must_fit(cfg, dtype, device, layout)
    model = build_model(cfg, device="meta", dtype=dtype)
    bits, mapped = {} if layout is None else layout.plan(model), list[str]()
    allocate(model, device or torch.get_default_device())
    params = dict(model.named_parameters())
    for link in links:
        mapped += [name for name in weights.fill([link], files, params, shapes) if name not in bits]
        if layout is not None:
            link_bits = {name: bits[name] for name in link.param_names if name in bits}
            layout.quantize(model, link_bits)
            for name in link_bits:
                del params[name]  # what was read of it is given back
    check_when_used(model, mapped)
    return model


def check_links(
    cfg: config.Model, table: Table, published: config.Model, files: Files
) -> tuple[list[weights.Link], dict[str, Shape]]:
    """Links that fill the model's parameters, every name and shape compared; and the shapes the
    files hold."""
    shapes = weights.shapes(published)
    return weights.check(table, shapes, files, shapes.keys() - weights.shapes(cfg).keys()), shapes


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
) -> None:
    """UserError where the device has not the memory for the model's weights.

    Those of a ``layout`` take what few bits take, but where they are ``drawn`` they stand there in
    ``dtype`` first.
    """
    target_device = torch.device(device) if device is not None else torch.get_default_device()
    numbers = sum(torch.Size(shape).numel() for shape in weights.shapes(cfg).values())
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
    if name not in DTYPES:
        raise UserError(f'There is no dtype "{name}" for a model; give one of {", ".join(DTYPES)}.')
    return DTYPES[name]
