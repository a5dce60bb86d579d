"""A trained model changed a little: frozen matrices with low-rank changes beside them, or a few
weights alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

from ..core.config import objective as objectives
from ..core.errors import need
from ..core.nn.build import matches
from ..core.nn.layers import Linear
from ..core.nn.lora import LoRALinear as LoRALinear
from ..core.nn.lora import adapted as adapted
from ..core.nn.lora import weights as weights
from ..fast.prepacked import unpack
from ..fast.quantized import quantized


def adapt(model: nn.Module, ranks: Mapping[str, tuple[int, float]], dropout: float = 0.0) -> None:
    """Give the linear layers at these paths a change of (rank, scale) that changes nothing yet."""
    unpack(model)
    for path, (rank, scale) in ranks.items():
        model.set_submodule(path, LoRALinear(model.get_submodule(path), rank, scale, dropout))  # type: ignore[arg-type]


def merge_and_unload(model: nn.Module) -> None:
    """Make an adapted model a plain one: each change becomes part of its matrix for good, save of a
    quantized one."""
    for path, layer in adapted(model).items():
        if not layer.mergeable:
            continue
        layer.merge()
        plain = Linear(layer.in_features, layer.out_features, bias=False, device="meta")
        plain.weight, plain.bias = layer.weight, layer.bias
        model.set_submodule(path, plain)


def tune(model: nn.Module, method: objectives.Tune, new: Iterable[str] = (), seed: int = 0) -> None:
    """Leave only those weights to train that ``how`` names, and ``new`` ones, which nothing has
    trained yet.

    Raises UserError where a pattern that should name something names nothing, and for quantized
    weights, which do not train.
    """
    if isinstance(method, objectives.Full):
        _must_not_train(quantized(model))
        return
    if isinstance(method, objectives.LoRA):
        layers = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
        chosen = [path for path in layers if matches(path, method.target_modules)]
        defaults = objectives.LoRA().target_modules  # of which a model may have only some
        needed = [(pattern,) for pattern in method.target_modules if pattern not in defaults]
        for patterns in (*needed, method.target_modules):
            names = [path for path in layers if matches(path, patterns)]
            setting = f"LoRA.target_modules {', '.join(patterns)}"
            _must_name(names, setting, "linear layer", layers)
        adapt(
            model, dict.fromkeys(chosen, (method.rank, method.alpha / method.rank)), method.dropout
        )
        draw = torch.Generator().manual_seed(seed)
        for layer in adapted(model).values():
            bound = 1 / math.sqrt(layer.in_features)
            layer.down.data.copy_(
                torch.empty(layer.down.shape).uniform_(-bound, bound, generator=draw)
            )
    free = {f"{path}.{matrix}" for path in adapted(model) for matrix in ("down", "up")} | set(new)
    setting, patterns = (
        ("train", method.train)
        if isinstance(method, objectives.Frozen)
        else ("modules_to_save", method.modules_to_save)
    )
    weights = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        is_default = pattern in getattr(type(method)(), setting)
        _must_name(
            is_default or [name for name in weights if matches(name, (pattern,))],
            f"{type(method).__name__}.{setting} {pattern}",
            "weight",
            weights,
        )
    for name, weight in model.named_parameters():
        weight.requires_grad_(name in free or matches(name, patterns))
    _must_not_train(name for name in quantized(model) if name in new or matches(name, patterns))
    names = [name for name, _ in model.named_parameters()]
    _must_name(
        list(trained(model)),
        f"{type(method).__name__}.{setting} {', '.join(patterns)}",
        "weight",
        names,
    )


def trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The weights that training moves, by path."""
    return ((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)


def _must_not_train(names: Iterable[str]) -> None:
    name = next(iter(names), None)
    advice = "train LoRA beside it (--train.tune LoRA), or the model that it was made of"
    need(name is None, f"{name} is quantized, and codes do not train; {advice}.")


def _must_name(names: object, description: str, kind: str, candidates: Sequence[str]) -> None:
    need(
        bool(names),
        f"{description} names no {kind} of this model; give some, such as {candidates[0]}.",
    )
