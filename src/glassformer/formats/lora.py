"""A trained model changed a little: frozen matrices with low-rank changes beside them, or a few
weights alone.

R rank, I inputs, O outputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.config import objective as objectives
from ..core.errors import need
from ..core.nn.build import matches
from ..core.nn.layers import Linear
from ..fast.prepacked import unpack
from ..fast.quantized import QuantizedWeight, quantized


class LoRALinear(Linear):
    """W x + scale * up (down (drop (x))), W frozen (Hu et al. 2021); ``up`` starts at zero, so that
    nothing changes.

    ``down`` and ``up`` are PEFT's ``lora_A`` and ``lora_B``.
    """

    def __init__(self, of: nn.Linear, rank: int, scale: float, dropout: float = 0.0) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.scale = of.in_features, of.out_features, scale
        self.weight, self.bias = of.weight, of.bias
        options: Any = {"dtype": of.weight.dtype, "device": of.weight.device}
        self.down = nn.Parameter(torch.zeros(rank, of.in_features, **options))  # (R, I)
        self.up = nn.Parameter(torch.zeros(of.out_features, rank, **options))  # (O, R)
        self.drop = nn.Dropout(dropout)
        self.original: Tensor | None = None  # W as it was, while the change is in it

    @property
    def mergeable(self) -> bool:
        """True unless W is quantized: a weight of few bits would lose most of the change."""
        return not isinstance(self.weight, QuantizedWeight)

    @property
    def prepackable(self) -> bool:
        return self.original is not None

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return (
            y + self.scale * F.linear(F.linear(self.drop(x), self.down), self.up)
            if self.original is None
            else y
        )

    def matrix(self) -> Tensor:
        """W with the change in it, through which gradients reach the change; the dropout of its
        input is left out."""
        return (
            self.weight + self.scale * (self.up @ self.down)
            if self.original is None
            else self.weight
        )

    def merged_weight(self) -> Tensor:
        """W with the change in it (O, I)."""
        if self.original is not None:
            return self.weight.detach()
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        update = self.scale * (self.up.detach().to(wide) @ self.down.detach().to(wide))
        return (self.weight.detach().to(wide) + update).to(self.weight.dtype)

    @torch.no_grad()
    def merge(self) -> None:
        """Put the change into W; W as it was is kept. UserError where W is quantised."""
        need(
            self.mergeable,
            "A quantised weight takes no change into it; leave the adapter beside it.",
        )
        if self.original is None:
            merged_weight = self.merged_weight()
            self.original = self.weight.detach().clone()
            self.weight.copy_(merged_weight)

    @torch.no_grad()
    def unmerge(self) -> None:
        """W as it was, bit for bit, and the change beside it again."""
        if self.original is not None:
            self.weight.copy_(self.original)
            self.original = None


def adapted(model: nn.Module) -> dict[str, LoRALinear]:
    """The layers of a model that have a change beside them or in them, by path."""
    return {
        path: module for path, module in model.named_modules() if isinstance(module, LoRALinear)
    }


def adapt(model: nn.Module, ranks: Mapping[str, tuple[int, float]], dropout: float = 0.0) -> None:
    """Give the linear layers at these paths a change of (rank, scale) that changes nothing yet."""
    unpack(model)
    for path, (rank, scale) in ranks.items():
        model.set_submodule(path, LoRALinear(model.get_submodule(path), rank, scale, dropout))  # type: ignore[arg-type]


def merge_and_unload(model: nn.Module) -> None:
    """Make an adapted model a plain one: each change becomes part of its matrix for good, save of a
    quantised one."""
    for path, layer in adapted(model).items():
        if not layer.mergeable:
            continue
        layer.merge()
        plain = Linear(layer.in_features, layer.out_features, bias=False, device="meta")
        plain.weight, plain.bias = layer.weight, layer.bias
        model.set_submodule(path, plain)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Every weight of the model as if it had never been adapted: changes are in their matrices."""
    layers = adapted(model)
    result = {name: weight.detach() for name, weight in model.named_parameters()}
    for path, layer in layers.items():
        result[f"{path}.weight"] = layer.merged_weight()
        del result[f"{path}.down"], result[f"{path}.up"]
    return result


def tune(model: nn.Module, method: objectives.Tune, new: Iterable[str] = (), seed: int = 0) -> None:
    """Leave only those weights to train that ``how`` names, and ``new`` ones, which nothing has
    trained yet.

    Raises UserError where a pattern that should name something names nothing, and for quantised
    weights, which do not train.
    """
    if isinstance(method, objectives.Full):
        _must_not_train(quantized(model))
        return
    if isinstance(method, objectives.LoRA):
        layers = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
        chosen = [path for path in layers if matches(path, method.target_modules)]
        _must_name(
            chosen,
            f"LoRA.target_modules {', '.join(method.target_modules)}",
            "linear layer",
            layers,
        )
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
    need(name is None, f"{name} is quantised, and codes do not train; {advice}.")


def _must_name(
    names: Sequence[object], description: str, kind: str, candidates: Sequence[str]
) -> None:
    need(
        bool(names),
        f"{description} names no {kind} of this model; give some, such as {candidates[0]}.",
    )
