"""torch's optimizers over a model's parameters, grouped by path; their state as named tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from ..config import run
from ..errors import UserError
from ..nn.build import matches, vectors


class Optimizer:
    """One or two of torch's optimizers that step together; each group's rate is its own times the schedule's."""

    def __init__(self, model: nn.Module, settings: run.Optimizer) -> None:
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        left, flat = dict(self.parameters), vectors(model)
        self.parts: list[torch.optim.Optimizer] = []
        if isinstance(settings, run.Muon):
            matrices = [name for name, p in left.items() if p.ndim in (2, 3) and name not in flat]
            if chosen := {name: left.pop(name) for name in matrices if matches(name, settings.paths)}:
                groups = _groups("Muon", chosen, settings.groups, settings.lr, settings.weight_decay, set())
                self.parts.append(Muon(groups, settings.momentum))
            settings = settings.rest
        if left:
            undecayed = flat | {name for name in left if matches(name, settings.undecayed)}
            groups = _groups("AdamW", left, settings.groups, settings.lr, settings.weight_decay, undecayed)
            devices = {p.device.type for p in left.values()}
            fused = devices <= {"cpu", "cuda"} and all(p.is_floating_point() for p in left.values())
            self.parts.append(torch.optim.AdamW(groups, betas=settings.betas, eps=settings.eps, fused=fused))

    def groups(self) -> Iterator[dict[str, Any]]:
        """Every parameter group: its ``name``, ``paths``, ``base_lr``, ``lr`` now and ``weight_decay``."""
        for part in self.parts:
            yield from part.param_groups

    def step(self, factor: float) -> None:
        """Move the weights along their gradients at ``factor`` times each group's rate."""
        for group in self.groups():
            group["lr"] = group["base_lr"] * factor
        for part in self.parts:
            part.step()

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """The moments and counts, each named ``parameter path:what``."""
        return {
            f"{name}:{what}": torch.as_tensor(value)
            for part in self.parts
            for name, parameter in self.parameters.items()
            for what, value in part.state.get(parameter, {}).items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up a ``state()`` again; UserError when it is another model's or another optimizer's."""
        parts = {name: part for part in self.parts for group in part.param_groups for name in group["paths"]}
        for part in self.parts:
            part.state.clear()
        for key, tensor in tensors.items():
            name, _, what = key.rpartition(":")
            parameter = self.parameters.get(name)
            if parameter is None:
                raise UserError(f'The checkpoint\'s optimizer knows "{name}", this model does not; check the config.')
            if what not in KEPT[type(parts[name])]:
                raise UserError(f'The checkpoint keeps "{what}" of "{name}": it is another optimizer\'s; set that one.')
            if what != "step" and tensor.shape != parameter.shape:
                shapes = f"{list(tensor.shape)}, this model {list(parameter.shape)}"
                raise UserError(f'The checkpoint\'s optimizer has "{name}" as {shapes}; check the config.')
            parts[name].state[parameter][what] = tensor.to(parameter.device, copy=True)


class Muon(torch.optim.Optimizer):
    """torch's Muon, with matrices of one shape, wide or tall, worked on together: small ones are all overhead.

    A parameter of three sides is a stack of matrices, an expert's each.
    """

    def __init__(self, groups: list[dict[str, Any]], momentum: float) -> None:
        super().__init__(groups, {"momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """As torch's; there is no closure."""
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in moved]
            for p in moved:
                if "momentum_buffer" not in self.state[p]:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            buffers = [self.state[p]["momentum_buffer"] for p in moved]
            torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
            # Nesterov: the gradient as the momentum of the next step will see it, as in torch.optim.Muon
            wanted = _matrices(torch._foreach_lerp(grads, buffers, group["momentum"]))
            torch._foreach_mul_(moved, 1 - group["lr"] * group["weight_decay"])
            weights = _matrices(moved)
            for indices in _alike(weights):
                wide = torch.stack([_wide(wanted[i]).bfloat16() for i in indices])
                found = orthogonal(wide)
                rate = group["lr"] * 0.2 * math.sqrt(found.shape[2])  # the longer side: of AdamW's size
                for i, update in zip(indices, found, strict=True):
                    _wide(weights[i]).add_(update, alpha=-rate)


def orthogonal(x: Tensor) -> Tensor:
    """Each matrix of x (M, rows, columns >= rows) with singular values near 1, by Newton and Schulz's iteration."""
    a, b, c = 3.4445, -4.775, 2.0315  # Jordan et al. 2024
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


TOGETHER = 1 << 20
"""Numbers in a stack of matrices at most: they stay in the cache, and bigger ones gain nothing from company."""


def _alike(matrices: list[Tensor]) -> list[list[int]]:
    """Indices of matrices to stack: of one shape once tall ones are transposed, ``TOGETHER`` numbers at most."""
    shapes: dict[tuple[int, ...], list[int]] = {}
    for i, matrix in enumerate(matrices):
        shapes.setdefault(_wide(matrix).shape, []).append(i)
    sizes = {shape: max(1, TOGETHER // math.prod(shape)) for shape in shapes}
    return [same[i : i + sizes[shape]] for shape, same in shapes.items() for i in range(0, len(same), sizes[shape])]


def _matrices(weights: Iterable[Tensor]) -> list[Tensor]:
    """The matrices (R, C): a stack of experts (E, R, C) as E of them."""
    return [matrix for weight in weights for matrix in (weight.unbind() if weight.ndim == 3 else (weight,))]


def _wide(matrix: Tensor) -> Tensor:
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix


KEPT = {torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"), Muon: ("momentum_buffer",)}


def _groups(
    kind: str,
    parameters: Mapping[str, Tensor],
    rules: tuple[run.Group, ...],
    rate: float,
    decay: float,
    undecayed: Collection[str],
) -> list[dict[str, Any]]:
    """Parameters that share a rate and a decay, together: few groups are few kernel launches.

    A group's ``name`` is its optimizer's and, where a rule set its rate, the rule's ``paths``.
    """
    groups: dict[tuple[str, float, float], dict[str, Any]] = {}
    for name, parameter in parameters.items():
        rule = next((r for r in rules if fnmatchcase(name, r.pattern)), run.Group(""))
        title = kind if rule.lr_scale == 1 else f"{kind} {rule.pattern}"
        base = rate * rule.lr_scale
        weight_decay = rule.weight_decay if rule.weight_decay is not None else 0.0 if name in undecayed else decay
        new = {"params": [], "paths": [], "name": title, "base_lr": base, "lr": base, "weight_decay": weight_decay}
        group = groups.setdefault((title, base, weight_decay), new)
        group["params"].append(parameter)
        group["paths"].append(name)
    return list(groups.values())
