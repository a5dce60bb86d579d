"""What training makes small: the cross-entropy of the next token, and what the model adds to it.

B batch, T tokens, N counted rows (B * T), C model dim, V vocabulary
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from .data import Batch


ONE_SHOT = 1 << 22
"""Logits up to this many (16 MiB in fp32) are made at once; beyond, in pieces of this size.

Smaller pieces pay for adding up the table's gradient more often, bigger ones only take memory.
"""


@dataclass
class Loss:
    """A loss as ``sum`` over ``count`` targets, so that pieces of a batch add up to the batch.

    ``aux`` is a mean already (a mixture's balance and z-loss); ``total`` weighs it by the count.
    """

    sum: Tensor
    count: int
    aux: Tensor | None = None

    @property
    def total(self) -> Tensor:
        """What backward starts from; divide its gradients by the count of the whole batch."""
        return self.sum if self.aux is None else self.sum + self.aux * self.count

    @property
    def mean(self) -> float:
        """The loss a target, without ``aux``."""
        return float(self.sum.detach()) / max(1, self.count)


class Objective(Protocol):
    """What ``train`` asks: the loss of a batch."""

    def loss(self, model: Any, batch: Batch) -> Loss: ...


class Causal:
    """The next token's cross-entropy, with label smoothing (Szegedy et al. 2016); targets of -1 do not count."""

    def __init__(self, label_smoothing: float = 0.0) -> None:
        self.label_smoothing = label_smoothing

    def loss(self, model: Any, batch: Batch) -> Loss:
        """The loss of a batch; its gradients reach every parameter of ``model``."""
        output = model(batch.tokens, pos=batch.pos, docs=batch.docs, logits="none")
        hidden, targets = output.hidden.flatten(0, -2), batch.targets.flatten()  # (N, C), (N,)
        shared = [*model.head.parameters(), *model.embed.parameters()]
        total = cross_entropy(
            hidden,
            targets,
            lambda part: model.head(part, model.embed),
            shared,
            model.config.embed.vocab,
            self.label_smoothing,
        )
        aux = sum(output.aux.values()) if output.aux else None
        return Loss(total, int((targets >= 0).sum()), aux)


def gradients(
    model: Any, batch: Batch, objective: Objective, pieces: int, dtype: torch.dtype
) -> tuple[float, float, int]:
    """Leave the gradients of the batch's summed loss in ``.grad``; (total with aux, loss, count), all sums."""
    device = next(model.parameters()).device
    totals, losses, count = [], [], 0
    for piece in split(batch, pieces):
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = objective.loss(model, piece.to(device))
            total = loss.total
        total.backward()  # type: ignore[no-untyped-call]
        totals.append(total.detach())
        losses.append(loss.sum.detach())
        count += loss.count
    return float(sum(totals)), float(sum(losses)), count


def split(batch: Batch, pieces: int) -> list[Batch]:
    """The batch in pieces of rows."""
    if pieces == 1:
        return [batch]
    cuts = [
        [None] * pieces if (rows := getattr(batch, field.name)) is None else rows.tensor_split(pieces)
        for field in dataclasses.fields(batch)
    ]
    return [type(batch)(*parts) for parts in zip(*cuts, strict=True)]


def cross_entropy(
    hidden: Tensor,
    targets: Tensor,
    head: Callable[[Tensor], Tensor],
    parameters: Sequence[nn.Parameter],
    vocab: int,
    smoothing: float = 0.0,
    limit: int = ONE_SHOT,
) -> Tensor:
    """The summed cross-entropy of head(hidden) against targets; no more than ``limit`` logits exist at once.

    hidden (N, C), targets (N,) with -1 not counted; ``parameters`` are those that ``head`` may use.
    """
    rows = max(1, limit // vocab)
    if len(hidden) <= rows:
        return _once(head(hidden), targets, smoothing)
    wanted = [parameter for parameter in parameters if parameter.requires_grad]
    total: Tensor = _Pieces.apply(hidden, targets, head, smoothing, rows, *wanted)  # type: ignore[no-untyped-call]
    return total


def _once(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    precise = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(precise, targets, ignore_index=-1, reduction="sum", label_smoothing=smoothing)


class _Pieces(torch.autograd.Function):
    """Cross-entropy piece by piece, gradients made on the way forward while each piece's logits are at hand."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        targets: Tensor,
        head: Callable[[Tensor], Tensor],
        smoothing: float,
        rows: int,
        *parameters: Tensor,
    ) -> Tensor:
        # Any input that asks for a gradient means that a backward may come.
        train = any(ctx.needs_input_grad)
        total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
        to_hidden = torch.empty_like(hidden) if train else None
        to_parameters: list[Tensor | None] = [None] * len(parameters)
        for start in range(0, len(hidden), rows):
            part = hidden[start : start + rows].detach()
            if to_hidden is None:
                total += _once(head(part), targets[start : start + rows], smoothing)
                continue
            with torch.enable_grad():
                part.requires_grad_()
                loss = _once(head(part), targets[start : start + rows], smoothing)
                found = torch.autograd.grad(loss, (part, *parameters), allow_unused=True)
            total += loss.detach()
            to_hidden[start : start + rows] = found[0]
            for i, grad in enumerate(found[1:]):
                if grad is not None:
                    so_far = to_parameters[i]
                    to_parameters[i] = grad if so_far is None else so_far.add_(grad)
        ctx.used = [grad is not None for grad in to_parameters]
        ctx.save_for_backward(to_hidden, *(grad for grad in to_parameters if grad is not None))
        return total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        to_hidden, *rest = ctx.saved_tensors
        same = scale.device.type == "cpu" and float(scale) == 1.0  # the usual case: spare a pass over the vocabulary
        scaled = iter(rest if same else [grad * scale for grad in rest])
        to_parameters = [next(scaled) if used else None for used in ctx.used]
        return (to_hidden if same else to_hidden * scale, None, None, None, None, *to_parameters)
