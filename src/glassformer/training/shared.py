"""A step's or a validation's batches shared out to processes: each works on its pieces, all know
every piece's loss.

piece      0   1   2   3 | 4   5   6   7        accumulate = 8
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

from ..config.objective import Objective
from ..config.parallel import ROWS
from ..config.run import Train
from ..errors import need
from ..nn.flow import Flow
from ..parallel.collectives import summed
from ..parallel.mesh import Mesh
from ..parallel.ring import Ring
from ..parallel.shard import begin_round, in_shards
from .batches import Batch, Batches, next_pieces
from .loss import Loss, Sums, backward, backward_from, sums
from .pieces import Pieces
from .prefetch import Prefetched

AT_ONCE = 1 << 22  # numbers of gradients that are copied out to be added up


def shared_gradients(
    model: Any,
    batches: Iterator[Batch],
    objective: Objective,
    settings: Train,
    draws: Callable[[int], None] | None,
    mesh: Mesh,
) -> Sums:
    """As ``loss.gradients`` of the next batch; this process's pieces are ``mesh.row`` and every
    ``mesh.rows`` on."""
    mine = range(mesh.row, settings.accumulate, mesh.rows)
    device = mesh.device
    source: Any = batches
    if isinstance(batches, Prefetched):
        source, own = batches.batches, batches.pieces(settings.accumulate, mine)
    else:
        own = next_pieces(batches, settings.accumulate, mine)
    parts = [piece.to(device) for piece in own]
    present = [mesh.rows] * len(parts)
    # what an objective prepares may have fewer rows than were read
    if not isinstance(source, Batches):
        full = mesh.gather(torch.tensor([int(len(part.tokens) > 0) for part in parts]))
        present = torch.stack([full[rank] for rank in mesh.neighbours(*ROWS)]).sum(0).tolist()
        few = (
            f"A batch came to fewer than {mesh.rows} rows, one for each process; raise train.batch."
        )
        need(present[0] == mesh.rows, few)

    def begin(place: int) -> None:
        if draws is not None:  # other columns of a piece, and other stages, draw other numbers
            draws(mine[place] + settings.accumulate * mesh.index("pipeline", "context"))

    pieces = SharedPieces(parts, begin, model, present, mesh)
    losses: list[Loss] = []
    with columns(model, mesh) as cut:
        if objective.all_pieces is not None:
            losses = objective.all_pieces(model, pieces, settings.label_smoothing)
        elif mesh.extent("pipeline") > 1:
            compute = functools.partial(objective.loss, model, smoothing=settings.label_smoothing)
            losses = one_forward_one_backward(model, pieces, compute)
        else:
            for part, counts in pieces.read(backward=True):
                loss = backward(
                    model, cut(part), objective, settings.label_smoothing, weight=float(counts)
                )
                losses += [loss] * counts
    add_columns(model, mesh)
    if mesh.extent("pipeline") > 1:
        model.stage.settle(model)
    return sums(in_order(losses, mesh))


def one_forward_one_backward(
    model: Any, pieces: SharedPieces, loss: Callable[[Batch], Loss]
) -> list[Loss]:
    """The losses of this stage's pieces: it goes back through one as soon as the stages after it
    have, so that it holds no more pieces than there are stages from here on (1F1B)."""
    losses: list[Loss] = []
    waiting: deque[tuple[int, Loss, bool]] = deque()

    begin_round(model, True, pieces.present[0])

    def back() -> None:
        place, found, counts = waiting.popleft()
        losses.extend([backward_from(found, float(counts))] * counts)
        # now, while all weights are in shards: the next forward pass leaves some whole
        if place + 1 < len(pieces):
            begin_round(model, False, pieces.present[place + 1])

    for place, (part, counts) in enumerate(pieces.read()):
        waiting.append((place, loss(part), counts))
        if len(waiting) == model.stage.count - model.stage.index:
            back()
    while waiting:
        back()
    return losses


class SharedPieces(Pieces):
    """Those of this process; in each round of pieces so many processes are ``present`` with one."""

    def __init__(
        self,
        batches: Sequence[Batch],
        draws: Callable[[int], None],
        model: Any,
        present: Sequence[int],
        mesh: Mesh,
    ) -> None:
        super().__init__(batches, draws)
        self.model, self.present, self.mesh = model, present, mesh

    def read(self, backward: bool = False) -> Iterator[tuple[Batch, bool]]:
        """Where this process has no piece and others have, its first one, which does not count."""
        for place, (batch, there) in enumerate(zip(self.batches, self.present, strict=True)):
            self.begin(place, batch.tokens.device)
            if backward and in_shards(self.model):
                begin_round(self.model, place == 0, there)
            counts = len(batch.tokens) > 0
            if there:
                yield batch if counts else self.batches[0], counts

    def gather(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """Of each round what the processes found, in the order of their rows."""
        from safetensors.torch import load, save

        content = save(
            {f"{place:06}": found.cpu().contiguous() for place, found in enumerate(vectors)}
        )
        every = [load(part) for part in self.mesh.gather_bytes(content)]
        shares = [every[rank] for rank in self.mesh.neighbours(*ROWS)]
        return [
            share[place].to(self.mesh.device) for place in sorted(shares[0]) for share in shares
        ]

    def own(self, every: Sequence[Tensor]) -> list[Tensor]:
        return list(every[self.mesh.row :: self.mesh.rows])

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
            model.stage.begin(model)
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
    left = [grad.to_local() if hasattr(grad, "to_local") else grad for grad in grads]
    while left:
        parts, size = [left.pop()], 0
        while left and (size := size + parts[-1].numel()) + left[-1].numel() <= AT_ONCE:
            parts.append(left.pop())
        with mesh.watched():
            whole = summed(torch.cat([part.reshape(-1) for part in parts]), group)
        for part, found in zip(parts, torch.split(whole, [p.numel() for p in parts]), strict=True):
            part.copy_(found.view_as(part))


def in_order(losses: Sequence[Loss], mesh: Mesh) -> list[Loss]:
    """Everybody's losses, the first of each process, then the second of each, as tensors on this
    device."""
    every = [_unpacked(part, mesh.device) for part in mesh.gather_bytes(_packed(losses))]
    shares = []
    for rank in mesh.neighbours(*ROWS):
        axis, join = (
            ("pipeline", _of_stages) if mesh.extent("pipeline") > 1 else ("context", _joined)
        )
        pieces = zip(*(every[other] for other in mesh.neighbours(axis, of=rank)), strict=True)
        shares.append([join(piece) for piece in pieces])
    return [share[turn] for turn in range(len(shares[0])) for share in shares if turn < len(share)]


def _joined(parts: Sequence[Loss]) -> Loss:
    """The loss of a piece from those of its columns; ``aux`` is of all of them on each."""
    if len(parts) == 1:
        return parts[0]
    sums, count = [loss.sum for loss in parts], int(sum(loss.count for loss in parts))
    metrics: dict[str, Any] = {
        name: sum(one.metrics[name] * one.count for one in parts) / max(1, count)
        for name in parts[0].metrics
    }
    said = {
        name: torch.cat([getattr(one, name) for one in parts])
        for name in ("predictions", "labels")
        if getattr(parts[0], name) is not None
    }
    tokens = sum(loss.tokens for loss in parts)
    return replace(
        parts[0], sum=torch.stack(sums).sum(), count=count, tokens=tokens, metrics=metrics, **said
    )


def _of_stages(parts: Sequence[Loss]) -> Loss:
    """The loss of a piece: the last stage has it, with what the mixtures of all stages add to it
    and say."""
    flow, aux = Flow(parts[0].sum), [loss.aux for loss in parts if loss.aux is not None]
    for loss in parts:
        for name, layers in loss.metrics.items():
            for layer in layers:
                flow.add_metric(name, layer)
    return replace(parts[-1], aux=torch.stack(aux).sum() if aux else None, metrics=flow.metrics)


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

    found: dict[int, dict[str, Tensor]] = {}
    for key, tensor in load(content).items():
        piece, _, name = key.partition(".")
        found.setdefault(int(piece), {})[name] = tensor.to(device)
    losses = []
    for _, parts in sorted(found.items()):
        count, tokens = parts.pop("counts").tolist()
        metrics = {name[8:]: parts.pop(name) for name in list(parts) if name.startswith("metrics.")}
        losses.append(Loss(count=count, tokens=tokens, metrics=metrics, **parts))
    return losses


def shared_out(batches: Iterable[Batch], mesh: Mesh) -> Iterator[tuple[Batch, bool]]:
    """This process's batches of those, and whether each counts: all take part in the last round."""
    last, turn = None, 0
    for number, batch in enumerate(batches):
        turn = number % mesh.rows
        last = batch if last is None or turn == mesh.row else last
        if turn == mesh.row:
            yield batch, True
    if last is not None and turn < mesh.row:
        yield last, False
