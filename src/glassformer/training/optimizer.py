"""torch's optimizers over a model's parameters, grouped by path; their state as named tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from .. import run
from ..errors import UserError


class Optimizer:
    """One or two of torch's optimizers that step together; each group's rate is its own times the schedule's."""

    def __init__(self, model: nn.Module, settings: run.Optimizer) -> None:
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        left = dict(self.parameters)
        self.parts: list[torch.optim.Optimizer] = []
        if isinstance(settings, run.Muon):
            chosen = {
                name: left.pop(name)
                for name, p in self.parameters.items()
                if p.ndim == 2 and _any(name, settings.paths)
            }
            if chosen:
                groups = _groups(chosen, settings.groups, settings.rate, settings.decay, ())
                self.parts.append(torch.optim.Muon(groups, momentum=settings.momentum, adjust_lr_fn="match_rms_adamw"))
            settings = settings.rest
        if left:
            groups = _groups(left, settings.groups, settings.rate, settings.decay, settings.undecayed)
            devices = {p.device.type for p in left.values()}
            fused = devices <= {"cpu", "cuda"} and all(p.is_floating_point() for p in left.values())
            self.parts.append(torch.optim.AdamW(groups, betas=settings.betas, eps=settings.eps, fused=fused))

    def groups(self) -> Iterator[dict[str, Any]]:
        """Every parameter group: its ``paths``, ``base`` rate, ``lr`` now and ``weight_decay``."""
        for part in self.parts:
            yield from part.param_groups

    def step(self, factor: float) -> None:
        """Move the weights along their gradients at ``factor`` times each group's rate."""
        for group in self.groups():
            group["lr"] = group["base"] * factor
        for part in self.parts:
            part.step()

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """The moments and counts, each named ``parameter path:what``."""
        kept: dict[str, Tensor] = {}
        for part in self.parts:
            for name, parameter in self.parameters.items():
                for what, value in part.state.get(parameter, {}).items():
                    kept[f"{name}:{what}"] = torch.as_tensor(value)
        return kept

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


KEPT = {torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"), torch.optim.Muon: ("momentum_buffer",)}


def _any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _groups(
    parameters: Mapping[str, Tensor],
    rules: tuple[run.Group, ...],
    rate: float,
    decay: float,
    undecayed: tuple[str, ...],
) -> list[dict[str, Any]]:
    """Parameters that share a rate and a decay, together: few groups are few kernel launches."""
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in parameters.items():
        plain = parameter.ndim < 2 or _any(name, undecayed)
        rule = next((r for r in rules if fnmatchcase(name, r.paths)), run.Group(name))
        base = rate * rule.rate
        weight_decay = rule.decay if rule.decay is not None else 0.0 if plain else decay
        group = groups.setdefault(
            (base, weight_decay),
            {"params": [], "paths": [], "base": base, "lr": base, "weight_decay": weight_decay},
        )
        group["params"].append(parameter)
        group["paths"].append(name)
    return list(groups.values())
