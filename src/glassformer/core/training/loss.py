"""The loss of a batch and its gradients: a forward pass, head and cross-entropy in one.

B batch, T tokens, N counted rows (B * T), C model dim, V vocabulary
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config.objective import Objective
from ..nn import Output, Tape
from ..nn.layers import autocast
from .batches import Batch, micro_batch_borders
from .micro_batches import MicroBatches

ONE_SHOT = 1 << 26
"""Logits up to this many (128 MiB in bf16) are held at once; beyond, in pieces of this size.

Smaller pieces pay for adding up the table's gradient more often, bigger ones only take memory.
"""

LOGITS_IN_CACHE = 1 << 18
"""Logits that one pass of the softmax works on in fp32: a megabyte stays in a core's own cache."""


@dataclass
class Loss:
    """A loss as ``sum`` over ``count`` targets, so that micro-batches add up to the batch.

    ``aux`` is a mean already (a mixture's balance and z-loss); ``total`` weighs it by the count.
    ``tokens`` were read for it. Both numbers may still lie on the device: asked for before the
    backward pass, they would make the host wait for the forward pass and the GPU for the host.
    ``metrics`` are means over the targets, for the log; ``predictions`` and ``labels`` what
    ``Objective.metrics`` reads of a whole validation.
    """

    sum: Tensor
    count: int | Tensor
    aux: Tensor | None = None
    tokens: int | Tensor = 0
    metrics: dict[str, Tensor] = field(default_factory=dict)
    predictions: Tensor | None = None
    labels: Tensor | None = None

    @property
    def total(self) -> Tensor:
        return self.sum if self.aux is None else self.sum + self.aux * self.count


def forward(model: Any, batch: Batch, tape: Tape | None = None) -> Output:
    """The output of a model of any shape for a batch; no logits, losses ask the head."""
    named: dict[str, Any] = {"pos": batch.pos, "document_ids": batch.document_ids, "logits": "none"}
    if tape is not None:  # each is another: it would be compiled anew each time
        model, named["tape"] = getattr(model, "_orig_mod", model), tape
    extras = ("source", "source_pos", "source_document_ids", "segments", "prefix")
    named |= {name: value for name in extras if (value := getattr(batch, name)) is not None}
    output: Output = model(batch.tokens, **named)
    return output


def token_loss(
    model: Any, output: Output, targets: Tensor, smoothing: float, indices: Tensor | None = None
) -> Loss:
    """The cross-entropy of the tokens at each place (B, T), or at a few ``indices``."""
    head, hidden, targets = model.head, output.hidden.flatten(0, 1), targets.flatten()
    counted = targets >= 0
    count = counted.sum()
    if indices is not None:
        hidden, targets = hidden[indices], targets[indices]
    total = (head.cross_entropy or cross_entropy)(
        head.prepare(hidden),
        targets,
        head.table(model.embed),
        head.proj.bias,
        head.softcap,
        smoothing,
    )
    return Loss(total, count, aux_loss(output), count, output.metrics)


def tokens_in(batch: Batch) -> int | Tensor:
    return batch.tokens.numel() if batch.pos is None else (batch.pos >= 0).sum()


def aux_loss(output: Output) -> Tensor | None:
    """The sum of the model's auxiliary losses; None without any."""
    return sum(output.aux.values()) if output.aux else None  # type: ignore[return-value]


@dataclass
class Sums:
    """A batch's ``total`` with aux and ``loss``, sums over ``count`` targets; tokens; metrics."""

    total: float
    loss: float
    count: int
    tokens: int
    metrics: dict[str, Any]


def gradients(
    model: Any,
    batch: Batch,
    objective: Objective,
    accumulate: int,
    smoothing: float = 0.0,
    start_rng: Callable[[int], None] | None = None,
) -> Sums:
    """Leave the gradients of the batch's summed loss in ``.grad``, by so many micro-batches.

    ``start_rng`` is called with each micro-batch's number before it: it starts the random
    generators that the micro-batch draws from.
    """
    device = next(model.parameters()).device
    micro_batches = [rows.to(device) for rows in split(batch, accumulate)]
    if objective.all_micro_batches is not None and len(micro_batches) > 1:
        losses = objective.all_micro_batches(
            model, MicroBatches(micro_batches, start_rng), smoothing
        )
    else:
        losses = []
        for number, micro_batch in enumerate(micro_batches):
            if start_rng is not None:
                start_rng(number)
            losses.append(backward(model, micro_batch, objective, smoothing))
    return sums(losses)


def backward(
    model: Any, micro_batch: Batch, objective: Objective, smoothing: float, weight: float = 1.0
) -> Loss:
    """Add a micro-batch's gradients, times a ``weight``, to ``.grad``; its loss, without a graph."""
    return backward_from(objective.loss(model, micro_batch, smoothing), weight)


def backward_from(loss: Loss, weight: float = 1.0) -> Loss:
    """Add the gradients of a loss, times a ``weight``, to ``.grad``; the loss without a graph."""
    (loss.total if weight == 1 else loss.total * weight).backward()  # type: ignore[no-untyped-call]
    aux = None if loss.aux is None else loss.aux.detach()  # the numbers alone: no graph is held
    return dataclasses.replace(loss, sum=loss.sum.detach(), aux=aux)


def sums(losses: Sequence[Loss]) -> Sums:
    """The ``Sums`` of a batch from its micro-batches' losses; a metric costs a device sync."""
    device = losses[0].sum.device
    totals: list[Any] = [sum(loss.total for loss in losses), sum(loss.sum for loss in losses)]
    totals += [sum(loss.count for loss in losses), sum(loss.tokens for loss in losses)]
    # fp32, and counts below 2^53
    scalars = [torch.as_tensor(value, device=device).detach().double() for value in totals]
    total, loss, count, tokens = torch.stack(scalars).tolist()
    return Sums(total, loss, int(count), int(tokens), mean_metrics(losses))


def mean_metrics(losses: Sequence[Loss]) -> dict[str, Any]:
    """Each fact's mean over the targets of several losses, as plain numbers."""
    count = int(sum(loss.count for loss in losses))
    names = dict.fromkeys(name for loss in losses for name in loss.metrics)
    sums = {
        n: sum(loss.metrics[n].detach() * loss.count for loss in losses if n in loss.metrics)
        for n in names
    }
    return {name: (total / count).tolist() for name, total in sums.items() if count}  # type: ignore[union-attr]


def split(batch: Batch, count: int) -> list[Batch]:
    """The batch as micro-batches of rows, none of them empty."""
    if count == 1:
        return [batch]
    borders = micro_batch_borders(len(batch.tokens), count)
    return [batch.rows(low, high) for low, high in borders if low < high]


def cross_entropy(
    hidden: Tensor,
    targets: Tensor,
    table: Tensor,
    bias: Tensor | None = None,
    softcap: float | None = None,
    smoothing: float = 0.0,
    to_grad: Callable[..., Tensor] | None = None,
) -> Tensor:
    """The summed cross-entropy of capped logits hidden table^T + bias against targets, in fp32.

    hidden (N, C), table (V, C), targets (N,) with -1 not counted. No more than ``ONE_SHOT`` logits
    exist at once; ``to_grad``: the function of this name, compiled.
    """
    hidden, table, bias = autocast(hidden, table, bias)
    rows, compute = max(1, ONE_SHOT // len(table)), to_grad or logits_to_grad
    mode = torch.is_grad_enabled()  # asked here: inside the function the mode is off
    args = (hidden, table, bias, targets, softcap, smoothing, rows, compute, mode)
    total: Tensor = _HeadLoss.apply(*args)  # type: ignore[no-untyped-call]
    return total


class _HeadLoss(torch.autograd.Function):
    """Head and loss in one: logits turn into their gradient in place, never whole in fp32."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        table: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        softcap: float | None,
        smoothing: float,
        rows: int,
        to_grad: Callable[..., Tensor],
        grad_enabled: bool,
    ) -> Tensor:
        train = grad_enabled and any(ctx.needs_input_grad)  # then a backward may come
        wide = _sum_dtype(hidden)
        total = hidden.new_zeros((), dtype=wide)
        to_hidden = torch.empty_like(hidden) if train else None
        to_table: Tensor | None = None
        to_bias = torch.zeros_like(bias, dtype=wide) if train and bias is not None else None
        for start in range(0, len(hidden), rows):
            chunk = hidden[start : start + rows]
            # (rows, V): logits now, their gradient after the next line
            grad = F.linear(chunk, table, bias)
            total += to_grad(grad, targets[start : start + rows], softcap, smoothing, train)
            if to_hidden is not None:
                torch.mm(grad, table, out=to_hidden[start : start + rows])
            if train and ctx.needs_input_grad[1]:
                product = torch.mm(grad.mT, chunk)
                if to_table is not None:
                    to_table.add_(product)
                else:  # the first of several: these are added up in fp32
                    to_table = product if len(hidden) <= rows else product.to(total.dtype)
            if to_bias is not None:
                to_bias += grad.sum(0, dtype=to_bias.dtype)
        ctx.save_for_backward(to_hidden, to_table, to_bias)
        ctx.dtype = hidden.dtype
        return total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        grads: tuple[Tensor | None, ...] = ctx.saved_tensors
        # usually it is 1: spare a pass over the vocabulary
        if not scale.is_cpu or float(scale) != 1.0:
            grads = tuple(None if grad is None else grad * scale for grad in grads)
        narrow = (None if grad is None else grad.to(ctx.dtype) for grad in grads)
        return (*narrow, None, None, None, None, None, None)


def logits_to_grad(
    logits: Tensor, targets: Tensor, softcap: float | None, smoothing: float, train: bool
) -> Tensor:
    """The summed loss of logits (rows, V), which become its gradient to them when ``train``."""
    total = logits.new_zeros((), dtype=_sum_dtype(logits))
    vocab = logits.shape[1]
    block_rows = max(1, LOGITS_IN_CACHE // vocab) if logits.is_cpu else len(logits)
    for block, block_targets in zip(
        torch.split(logits, block_rows), torch.split(targets, block_rows), strict=True
    ):
        scores = block.to(total.dtype)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        probabilities, target = scores.softmax(-1), block_targets.clamp(min=0)[:, None]
        # logsumexp from the largest probability, which is at least 1 / V, so that its logarithm is
        # exact
        denominator = scores.amax(-1) - probabilities.amax(-1).log()
        loss = denominator - (1 - smoothing) * scores.gather(1, target)[:, 0]
        if smoothing:
            loss -= smoothing * scores.mean(-1)
        total += loss.masked_fill(block_targets < 0, 0.0).sum()
        if train:
            change = probabilities.new_full(target.shape, smoothing - 1)
            probabilities.scatter_add_(1, target, change)
            if smoothing:
                probabilities -= smoothing / vocab
            if softcap is not None:
                probabilities *= 1 - (scores / softcap).square()
            block.copy_(probabilities.masked_fill_((block_targets < 0)[:, None], 0.0))
    return total


def _sum_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
