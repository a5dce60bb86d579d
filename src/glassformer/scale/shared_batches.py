"""A step's or a validation's batches shared out to processes: each works on its micro-batches,
all know the loss of every one.

micro-batch 0  1   2   3 | 4   5   6   7        accumulate = 8
process    0   1   2   3 | 0   1   2   3        one round | the next
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.config import run
from ..core.config.objective import Objective
from ..core.errors import need
from ..core.nn.flow import Flow
from ..core.training.batches import Batch, Batches
from ..core.training.loop import State
from ..core.training.loss import Loss, Sums, backward, backward_from, sums
from ..core.training.micro_batches import MicroBatches
from ..core.training.optimizer import Optimizer
from .collectives import summed
from .mesh import ALONE, Mesh
from .parallel import ROWS
from .prefetch import Prefetched, next_micro_batches
from .ring import Ring
from .shard import begin_round, in_shards
from .sharded_optimizer import ShardedOptimizer

AT_ONCE = 1 << 22  # numbers of gradients that are copied out to be added up


def shared_gradients(
    model: Any,
    batches: Iterator[Batch],
    objective: Objective,
    settings: run.Train,
    start_step_rng: Callable[[int], None] | None,
    mesh: Mesh,
) -> Sums:
    """Leaves gradients as ``loss.gradients`` of the next batch does; this process's micro-batches
    are ``mesh.row`` and every ``mesh.data_parallel_size`` on."""
    indices = range(mesh.row, settings.accumulate, mesh.data_parallel_size)
    device = mesh.device
    source: Any = batches
    if isinstance(batches, Prefetched):
        source, local_batches = batches.batches, batches.micro_batches(settings.accumulate, indices)
    else:
        local_batches = next_micro_batches(batches, settings.accumulate, indices)
    local_batches = [batch.to(device) for batch in local_batches]
    present = [mesh.data_parallel_size] * len(local_batches)
    # what an objective prepares may have fewer rows than were read
    if not isinstance(source, Batches):
        full = mesh.gather(torch.tensor([int(len(batch.tokens) > 0) for batch in local_batches]))
        present = torch.stack([full[rank] for rank in mesh.neighbours(*ROWS)]).sum(0).tolist()
        few = f"A batch came to fewer than {mesh.data_parallel_size} rows, one for each process; raise train.batch."
        need(present[0] == mesh.data_parallel_size, few)

    def start_rng(place: int) -> None:
        # other columns of a micro-batch, and other stages, draw other numbers
        if start_step_rng is not None:
            start_step_rng(indices[place] + settings.accumulate * mesh.index("pipeline", "context"))

    micro_batches = SharedMicroBatches(local_batches, start_rng, model, present, mesh)
    losses: list[Loss] = []
    with columns(model, mesh) as cut:
        if objective.all_micro_batches is not None:
            losses = objective.all_micro_batches(model, micro_batches, settings.label_smoothing)
        elif mesh.extent("pipeline") > 1:
            compute = functools.partial(objective.loss, model, smoothing=settings.label_smoothing)
            losses = one_forward_one_backward(model, micro_batches, compute)
        else:
            for micro_batch, is_real in micro_batches.iterate(backward=True):
                loss = backward(
                    model,
                    cut(micro_batch),
                    objective,
                    settings.label_smoothing,
                    weight=float(is_real),
                )
                losses += [loss] * is_real
    add_columns(model, mesh)
    if mesh.extent("pipeline") > 1:
        model.stage.settle(model)
    return sums(in_order(losses, mesh))


def shared_state(
    model: Any, settings: run.Optimizer, batches: Any, mesh: Mesh, **fields: Any
) -> State:
    """The state of a training that the processes of ``mesh`` share."""
    if mesh.alone:
        return State(model, Optimizer(model, settings), batches, **fields)
    optimizer = ShardedOptimizer(model, settings, mesh)
    compute = functools.partial(shared_gradients, mesh=mesh)
    return State(model, optimizer, batches, gradients=compute, **fields)


def mesh_of(state: State) -> Mesh:
    """The processes that share a training."""
    return state.optimizer.mesh if isinstance(state.optimizer, ShardedOptimizer) else ALONE


def one_forward_one_backward(
    model: Any, micro_batches: SharedMicroBatches, loss: Callable[[Batch], Loss]
) -> list[Loss]:
    """The losses of this stage's micro-batches: it goes back through one as soon as the stages after
    it have, so that it holds no more of them than there are stages from here on (1F1B)."""
    losses: list[Loss] = []
    waiting: deque[tuple[int, Loss, bool]] = deque()

    begin_round(model, True, micro_batches.present[0])

    def back() -> None:
        place, loss_value, is_real = waiting.popleft()
        losses.extend([backward_from(loss_value, float(is_real))] * is_real)
        # now, while all weights are in shards: the next forward pass leaves some whole
        if place + 1 < len(micro_batches):
            begin_round(model, False, micro_batches.present[place + 1])

    for place, (micro_batch, is_real) in enumerate(micro_batches.iterate()):
        waiting.append((place, loss(micro_batch), is_real))
        if len(waiting) == model.stage.count - model.stage.index:
            back()
    while waiting:
        back()
    return losses


class SharedMicroBatches(MicroBatches):
    """The micro-batches of this process; in each round so many processes are ``present`` with one."""

    def __init__(
        self,
        batches: Sequence[Batch],
        start_rng: Callable[[int], None],
        model: Any,
        present: Sequence[int],
        mesh: Mesh,
    ) -> None:
        super().__init__(batches, start_rng)
        self.model, self.present, self.mesh = model, present, mesh

    def iterate(self, backward: bool = False) -> Iterator[tuple[Batch, bool]]:
        """Yields each micro-batch; where only other processes have one, the first again, not counted."""
        for place, (batch, present_count) in enumerate(
            zip(self.batches, self.present, strict=True)
        ):
            self.start_generators(place, batch.tokens.device)
            if backward and in_shards(self.model):
                begin_round(self.model, place == 0, present_count)
            is_real = len(batch.tokens) > 0
            if present_count:
                yield batch if is_real else self.batches[0], is_real

    def gather(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """Gathers the tensors of each round from all processes, in the order of their rows."""
        from safetensors.torch import load, save

        content = save(
            {f"{place:06}": tensor.cpu().contiguous() for place, tensor in enumerate(vectors)}
        )
        shares = [load(share) for share in self.mesh.gather_along(ROWS, content)]
        return [
            share[place].to(self.mesh.device) for place in sorted(shares[0]) for share in shares
        ]

    def local(self, every: Sequence[Tensor]) -> list[Tensor]:
        return list(every[self.mesh.row :: self.mesh.data_parallel_size])

    @property
    def has_first(self) -> bool:
        return self.mesh.row == 0


@contextlib.contextmanager
def columns(model: Any, mesh: Mesh) -> Iterator[Callable[[Batch], Batch]]:
    """While entered, ``model`` computes with those that hold the other columns of a row (ring
    attention).

    What is given leaves of a batch the columns of this process.
    """
    group = mesh.group("context")
    if group is None:
        if mesh.extent("pipeline") > 1:
            model.stage.lend_table(model)
        with (
            mesh.watched()
            if mesh.extent("pipeline", "tensor", "expert") > 1
            else contextlib.nullcontext()
        ):
            yield lambda batch: batch
        return
    ring = Ring(group)
    # what a training cannot do, ``processes.check`` has refused
    detach = ring.attach(model, training=False)
    try:
        with mesh.watched():
            yield ring.shard
    finally:
        detach()


def add_columns(model: Any, mesh: Mesh) -> None:
    """Add up what the gradients of a step are made of: each process that holds columns found a
    part."""
    group = mesh.group("context")
    if group is None:
        return
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    pending = [grad.to_local() if hasattr(grad, "to_local") else grad for grad in grads]
    while pending:
        bucket, size = [pending.pop()], 0
        while pending and (size := size + bucket[-1].numel()) + pending[-1].numel() <= AT_ONCE:
            bucket.append(pending.pop())
        with mesh.watched():
            total = summed(torch.cat([grad.reshape(-1) for grad in bucket]), group)
        for grad, reduced in zip(
            bucket, torch.split(total, [p.numel() for p in bucket]), strict=True
        ):
            grad.copy_(reduced.view_as(grad))


def in_order(losses: Sequence[Loss], mesh: Mesh) -> list[Loss]:
    """Everybody's losses, the first of each process, then the second of each, as tensors on this
    device."""
    every = [_unpacked(content, mesh.device) for content in mesh.gather_bytes(_packed(losses))]
    shares = []
    for rank in mesh.neighbours(*ROWS):
        axis, join = (
            ("pipeline", _of_stages) if mesh.extent("pipeline") > 1 else ("context", _joined)
        )
        losses_of_each = zip(
            *(every[neighbour] for neighbour in mesh.neighbours(axis, of=rank)), strict=True
        )
        shares.append([join(losses) for losses in losses_of_each])
    return [share[turn] for turn in range(len(shares[0])) for share in shares if turn < len(share)]


def _joined(column_losses: Sequence[Loss]) -> Loss:
    """The loss of a micro-batch from those of its columns; ``aux`` is of all of them on each."""
    if len(column_losses) == 1:
        return column_losses[0]
    sums, count = (
        [loss.sum for loss in column_losses],
        int(sum(loss.count for loss in column_losses)),
    )
    metrics: dict[str, Any] = {
        name: sum(loss.metrics[name] * loss.count for loss in column_losses) / max(1, count)
        for name in column_losses[0].metrics
    }
    outputs = {
        name: torch.cat([getattr(loss, name) for loss in column_losses])
        for name in ("predictions", "labels")
        if getattr(column_losses[0], name) is not None
    }
    tokens = sum(loss.tokens for loss in column_losses)
    return replace(
        column_losses[0],
        sum=torch.stack(sums).sum(),
        count=count,
        tokens=tokens,
        metrics=metrics,
        **outputs,
    )


def _of_stages(stage_losses: Sequence[Loss]) -> Loss:
    """The loss of a micro-batch: the last stage has it, with what the mixtures of all stages add to it
    and say."""
    flow, aux = (
        Flow(stage_losses[0].sum),
        [loss.aux for loss in stage_losses if loss.aux is not None],
    )
    for loss in stage_losses:
        for name, layers in loss.metrics.items():
            for layer in layers:
                flow.add_metric(name, layer)
    return replace(
        stage_losses[-1], aux=torch.stack(aux).sum() if aux else None, metrics=flow.metrics
    )


def _packed(losses: Sequence[Loss]) -> bytes:
    """Losses as the bytes of a safetensors file."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    for number, loss in enumerate(losses):
        named = {
            "sum": loss.sum,
            "aux": loss.aux,
            "predictions": loss.predictions,
            "labels": loss.labels,
        }
        named |= {f"metrics.{name}": metric for name, metric in loss.metrics.items()}
        named["counts"] = torch.tensor([int(loss.count), int(loss.tokens)])
        tensors |= {
            f"{number}.{name}": x.detach().cpu().clone()
            for name, x in named.items()
            if x is not None
        }
    return save(tensors)


def _unpacked(content: bytes, device: torch.device) -> list[Loss]:
    from safetensors.torch import load

    by_micro_batch: dict[int, dict[str, Tensor]] = {}
    for key, tensor in load(content).items():
        index, _, name = key.partition(".")
        by_micro_batch.setdefault(int(index), {})[name] = tensor.to(device)
    losses = []
    for _, fields in sorted(by_micro_batch.items()):
        count, tokens = fields.pop("counts").tolist()
        metrics = {
            name[8:]: fields.pop(name) for name in list(fields) if name.startswith("metrics.")
        }
        losses.append(Loss(count=count, tokens=tokens, metrics=metrics, **fields))
    return losses


def shared_out(batches: Iterable[Batch], mesh: Mesh) -> Iterator[tuple[Batch, bool]]:
    """This process's batches of those, and whether each counts: all take part in the last round."""
    last, turn = None, 0
    for number, batch in enumerate(batches):
        turn = number % mesh.data_parallel_size
        last = batch if last is None or turn == mesh.row else last
        if turn == mesh.row:
            yield batch, True
    if last is not None and turn < mesh.row:
        yield last, False
