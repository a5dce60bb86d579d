"""torch's optimizers over parameters grouped by path, and the schedules of their rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from ..config import run
from ..config.run import Constant, Cosine, InverseSqrt, Schedule, WarmupStableDecay
from ..errors import UserError
from ..nn.build import matches, vectors


class Optimizer:
    """One or two of torch's optimizers that step together, each group at its own rate."""

    move: Any = None  # what Muon does with a group and its momenta; None: ``move_matrices``

    def __init__(self, model: nn.Module, settings: run.Optimizer) -> None:
        """Builds the parameter groups: what shares a rate and a decay is together, since few groups
        are few kernel launches.

        A group's ``name`` is its optimizer's and, where a rule set its rate, the rule's ``paths``.
        """
        self.model = model
        self.parameters = self.tensors()
        flat = vectors(model)
        groups: dict[type, dict[Any, dict[str, Any]]] = {run.Muon: {}, run.AdamW: {}}
        for name, parameter in self.parameters.items():
            chosen, decays = settings, True
            if isinstance(chosen, run.Muon):
                is_matrix = model.get_parameter(name).ndim in (2, 3) and name not in flat
                chosen = chosen if is_matrix and matches(name, chosen.paths) else chosen.rest
            if isinstance(chosen, run.AdamW):
                decays = name not in flat and not matches(name, chosen.undecayed)
            rule = next((r for r in chosen.groups if fnmatchcase(name, r.pattern)), run.Group(""))
            title = type(chosen).__name__ + f" {rule.pattern}" * (rule.lr_scale != 1)
            rate, decay = chosen.lr * rule.lr_scale, rule.weight_decay
            if decay is None:
                decay = chosen.weight_decay if decays else 0.0
            rates = {"name": title, "base_lr": rate, "lr": rate, "weight_decay": decay}
            group = groups[type(chosen)].setdefault(
                tuple(rates.values()), {"params": [], "paths": [], **rates}
            )
            group["params"].append(parameter)
            group["paths"].append(name)
        matrices, adamw_groups = (list(alike.values()) for alike in groups.values())
        self.optimizers: list[torch.optim.Optimizer] = []
        if isinstance(settings, run.Muon):
            if matrices:
                self.optimizers.append(Muon(matrices, settings.momentum, self.move))
            settings = settings.rest
        if adamw_groups:
            parameters = [parameter for group in adamw_groups for parameter in group["params"]]
            fused = all(
                p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters
            )
            self.optimizers.append(
                torch.optim.AdamW(adamw_groups, betas=settings.betas, eps=settings.eps, fused=fused)
            )

    def groups(self) -> Iterator[dict[str, Any]]:
        """Every parameter group: its ``name``, ``paths``, ``base_lr``, ``lr``, ``weight_decay``."""
        for optimizer in self.optimizers:
            yield from optimizer.param_groups

    def tensors(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def place(self, key: str) -> Any:
        """Place of this process's numbers in a tensor of ``state()``; None where they are all."""
        return None

    def gradients(self) -> dict[str, Tensor]:
        return {name: p.grad for name, p in self.parameters.items() if p.grad is not None}

    def norm(self, grads: Mapping[str, Tensor]) -> float:
        """The norm of all ``gradients()``; on a CPU the same bits on any number of processes."""
        if any(grad.is_cuda for grad in grads.values()):
            return float(torch.nn.utils.get_total_norm(list(grads.values())))
        rows = [
            squares(grad.reshape(-1), grad.shape[-1] if grad.ndim > 1 else 1)
            for grad in grads.values()
        ]
        return math.sqrt(float(torch.cat(rows).sum())) if rows else 0.0

    def step(self, factor: float) -> None:
        """Move the weights along their gradients at ``factor`` times each group's rate."""
        for group in self.groups():
            group["lr"] = group["base_lr"] * factor
        for optimizer in self.optimizers:
            optimizer.step()

    def clear(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def state(self) -> dict[str, Any]:
        """The moments and counts, each named ``parameter path:what``."""
        tensors: dict[str, Any] = {}
        for optimizer in self.optimizers:
            for name, parameter in self.parameters.items():
                for state_name, value in optimizer.state.get(parameter, {}).items():
                    tensors[f"{name}:{state_name}"] = torch.as_tensor(value)
        return tensors

    def restore(self, tensors: Mapping[str, Any]) -> None:
        """Take up a ``state()`` again; UserError when it is another model's or optimizer's."""
        optimizer_of = {
            name: optimizer
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for name in group["paths"]
        }
        for optimizer in self.optimizers:
            optimizer.state.clear()
        for key, tensor in tensors.items():
            name, _, state_name = key.rpartition(":")
            parameter = self.parameters.get(name)
            if parameter is None:
                raise UserError(
                    f'The checkpoint\'s optimizer knows "{name}", this model does '
                    "not; check the config."
                )
            if state_name not in STATE_NAMES[type(optimizer_of[name])]:
                raise UserError(
                    f'The checkpoint keeps "{state_name}" of "{name}": it is another '
                    "optimizer's; set that one."
                )
            if state_name != "step" and tensor.shape != parameter.shape:
                shapes = f"{list(tensor.shape)}, this model {list(parameter.shape)}"
                raise UserError(
                    f'The checkpoint\'s optimizer has "{name}" as {shapes}; check the config.'
                )
            optimizer_of[name].state[parameter][state_name] = tensor.to(parameter.device, copy=True)


AT_ONCE = 1 << 20  # numbers whose squares are held in fp64 at once


def squares(numbers: Tensor, width: int) -> Tensor:
    """The sum of squares of each row of ``width`` numbers, in fp64."""
    if width == 1:
        return numbers.double().square()
    rows = numbers.view(-1, width)
    sums = [
        chunk.double().square().sum(-1) for chunk in torch.split(rows, max(1, AT_ONCE // width))
    ]
    return torch.cat(sums) if len(sums) != 1 else sums[0]


class Muon(torch.optim.Optimizer):
    """torch's Muon, with matrices of one shape worked on together: small ones are all overhead.

    A parameter of three sides is a stack of matrices, an expert's each.
    """

    def __init__(self, groups: list[dict[str, Any]], momentum: float, move: Any = None) -> None:
        super().__init__(groups, {"momentum": momentum})
        self.move = move or move_matrices

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Updates the weights as torch's Muon does; there is no closure."""
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in moved]
            for p in moved:
                if "momentum_buffer" not in self.state[p]:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            buffers = [self.state[p]["momentum_buffer"] for p in moved]
            torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
            # Nesterov: the gradient as the momentum of the next step will see it, as in
            # torch.optim.Muon
            ahead = torch._foreach_lerp(grads, buffers, group["momentum"])
            torch._foreach_mul_(moved, 1 - group["lr"] * group["weight_decay"])
            self.move(group, ahead)


def move_matrices(group: dict[str, Any], ahead: Sequence[Tensor]) -> None:
    """Moves the weights that have a gradient along their orthogonalised momentum."""
    weights = _matrices(p for p in group["params"] if p.grad is not None)
    directions = _matrices(ahead)
    for indices in stack_indices([weight.shape for weight in weights], stack_numel(weights)):
        updates = orthogonal(torch.stack([wide(directions[i]).bfloat16() for i in indices]))
        rate = update_rate(group["lr"], updates.shape[2])
        for i, update in zip(indices, updates, strict=True):
            wide(weights[i]).add_(update, alpha=-rate)


def orthogonal(x: Tensor) -> Tensor:
    """Each matrix of x (M, rows, columns >= rows) with singular values near 1 (Newton-Schulz)."""
    a, b, c = 3.4445, -4.775, 2.0315  # Jordan et al. 2024
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def update_rate(lr: float, longer_side: int) -> float:
    """The rate at which an orthogonal update is as large as one of AdamW's."""
    return lr * 0.2 * math.sqrt(longer_side)


STACK_NUMEL = 1 << 20
"""Numbers in a stack of matrices at most: they stay in the cache; bigger ones gain nothing."""
STACK_NUMEL_GPU = 1 << 24
"""There a matrix alone is fifteen launches: 28 of 768 x 768 at once. Not measured yet."""


def stack_numel(weights: Sequence[Tensor]) -> int:
    return STACK_NUMEL if not weights or weights[0].is_cpu else STACK_NUMEL_GPU


def stack_indices(
    matrices: Iterable[tuple[int, ...]], max_numel: int = STACK_NUMEL
) -> list[list[int]]:
    """Indices of matrices to stack: of one shape, wide or tall, ``max_numel`` numbers at most."""
    shapes: dict[tuple[int, ...], list[int]] = {}
    for i, shape in enumerate(matrices):
        shapes.setdefault((min(shape), max(shape)), []).append(i)
    sizes = {shape: max(1, max_numel // math.prod(shape)) for shape in shapes}
    return [
        indices[i : i + sizes[shape]]
        for shape, indices in shapes.items()
        for i in range(0, len(indices), sizes[shape])
    ]


def _matrices(weights: Iterable[Tensor]) -> list[Tensor]:
    """The matrices (R, C): a stack of experts (E, R, C) as E of them."""
    return [
        matrix
        for weight in weights
        for matrix in (weight.unbind() if weight.ndim == 3 else (weight,))
    ]


def wide(matrix: Tensor) -> Tensor:
    return matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix


STATE_NAMES = {torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"), Muon: ("momentum_buffer",)}


def factor(schedule: Schedule, step: int, steps: int) -> float:
    """The multiplier of the rate for update ``step`` (1 is the first) of ``steps``."""
    warmup = _steps(schedule.warmup, steps)
    match schedule:
        case InverseSqrt(dim=None):
            return min(step / warmup, math.sqrt(warmup / step)) if warmup else 1 / math.sqrt(step)
        case InverseSqrt(dim=int(dim)):
            rising = step * warmup**-1.5 if warmup else math.inf
            return min(1 / math.sqrt(step), rising) / math.sqrt(dim)
    if step < warmup:
        return step / warmup
    match schedule:
        case Constant():
            return 1.0
        case Cosine(floor=floor):
            done = (step - warmup) / max(1, steps - warmup)
            return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        case WarmupStableDecay(decay=decay, floor=floor):
            decaying = _steps(decay, steps)
            share = 1.0
            if decaying:  # + 1: no step is without effect
                share = min(1.0, (max(0, steps - step) + 1) / (decaying + 1))
            return floor + (1 - floor) * share
    raise TypeError(schedule)


def factor_in_extended_run(
    schedule: Schedule, step: int, steps: int, ended: Sequence[int] = ()
) -> float:
    """``factor`` in a run that was extended: it had ended at each step of ``ended`` before.

    Constant and InverseSqrt go on as if nothing had been; Cosine and WarmupStableDecay, whose rate
    has fallen, begin anew for the steps that were added.
    """
    if isinstance(schedule, Constant | InverseSqrt):
        return factor(schedule, step, ended[0] if ended else steps)
    start = max((end for end in ended if end < step), default=0)
    return factor(
        schedule, step - start, min(end for end in (*ended, steps) if end >= step) - start
    )


def _steps(length: float, steps: int) -> int:
    """A length given in steps, or below 1 as a share of the run."""
    return round(length * steps) if length < 1 else round(length)
