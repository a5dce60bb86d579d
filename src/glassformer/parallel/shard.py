"""Weights, gradients and the optimizer's numbers in shards, one a process (FSDP2; Zhao et al. 2023), to the bit.

Three things differ from plain FSDP2, so that N processes make the bits of one that works through the same pieces:
gradients are added up in the order of pieces (``InOrder``), each optimizer's kernel meets a number at the place in
its row of 64 where one process would have it (``Window``), and the gradient's norm is a sum in one order (``norm``).
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .mesh import Mesh, share

GRID = 64
"""Numbers that a vector loop of a kernel takes at most; those left over at a tensor's end are rounded otherwise."""
AT_ONCE = 1 << 20  # numbers whose squares are held in fp64 at once
COPIES = ("replicate", "expert")
"""The axes along which shards are the same: each process has a copy."""


def shard(model: nn.Module, mesh: Mesh, dtype: str = "float32", exact: bool = True) -> None:
    """Leave each process its rows of every weight of ``model``; forward and backward compute in ``dtype``.

    A block of a stack is gathered when it computes and let go afterwards; what belongs to no block, while the whole
    model computes. ``model`` may be on the "meta" device; ``exact`` adds gradients up as one process would.
    """
    fsdp: Any = importlib.import_module("torch.distributed.fsdp")
    meshes: Any = importlib.import_module("torch.distributed.device_mesh")
    group = mesh.group("data") or mesh.own_group()
    along = meshes.DeviceMesh.from_group(group, mesh.device.type, mesh_dim_names=("data",))
    low = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32} if dtype == "bfloat16" else {}
    policy = fsdp.MixedPrecisionPolicy(**low, cast_forward_inputs=False)
    stacks = [module for name, module in model.named_modules() if name.rpartition(".")[2] == "blocks"]
    blocks = [block for stack in stacks for block in stack.children()]
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # nothing is changed in place
    for module in (*blocks, model):
        fsdp.fully_shard(module, mesh=along, mp_policy=policy)
        module.set_gradient_divide_factor(1.0)  # losses are sums
        module.set_force_sum_reduction_for_comms(True)  # gloo has no other
        kind = InOrder if exact else Plain
        reduction = kind(mesh, narrow=dtype == "bfloat16")
        module.set_custom_reduce_scatter(reduction)
        module.set_all_reduce_hook(reduction.settle)
        module.gradient_sums = reduction


def reductions(model: nn.Module) -> Iterator[Any]:
    """What adds up the gradients of each group of weights."""
    return (module.gradient_sums for module in model.modules() if hasattr(module, "gradient_sums"))


def let_go(model: nn.Module) -> None:
    """Forget what was gathered to compute without going back."""
    for module in model.modules():
        if hasattr(module, "gradient_sums"):
            module.reshard()  # type: ignore[operator]


class Plain:
    """The sum of everybody's gradients by the library's own collectives, in whatever order they take."""

    def __init__(self, mesh: Mesh, narrow: bool) -> None:
        self.mesh, self.narrow = mesh, narrow
        self.copies = mesh.group(*COPIES)

    def allocate(self, size: Iterable[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for what is sent or received."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        with self.mesh.watched():
            torch.distributed.reduce_scatter_tensor(output_tensor, input_tensor, op, group)

    def settle(self, output: Tensor) -> None:
        """Add what the copies of this shard found."""
        if self.copies is not None:
            with self.mesh.watched():
                torch.distributed.all_reduce(output, group=self.copies)

    def begin(self, first: bool, present: int) -> None:
        """Before the backward pass of a round of pieces, the ``first`` of a step or not: FSDP2 adds rounds up."""


class InOrder(Plain):
    """The sum of everybody's gradients, added in the order of pieces onto the sum of the rounds before.

    Everybody sends each shard of its gradient to whom it belongs, the traffic of a reduce-scatter; who owns it adds
    them up. Copies of a shard do so one after the other, and the last one tells the others.
    """

    def __init__(self, mesh: Mesh, narrow: bool) -> None:
        super().__init__(mesh, narrow)
        self.near = mesh.neighbours(*COPIES)
        self.sum: Tensor | None = None  # of the rounds before
        self.parts: tuple[Tensor, ...] = ()
        self.present = mesh.rows

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        sent = input_tensor.bfloat16() if self.narrow else input_tensor  # they were bf16 before they were copied in
        received = torch.empty_like(sent)
        with self.mesh.watched():
            torch.distributed.all_to_all_single(received, sent, group=group)
        self.parts = received.view(group.size(), -1).unbind()

    def settle(self, output: Tensor) -> None:
        """Put the sum into ``output``."""
        parts = self.parts or (output.clone(),)
        place, last = self.near.index(self.mesh.rank), len(self.near) - 1
        before, self.parts = self.sum, ()
        with self.mesh.watched():
            if place:
                before = torch.empty_like(output)
                torch.distributed.recv(before, self.near[place - 1])
            for part in parts[: max(0, self.present - place * len(parts))]:
                before = output.copy_(part) if before is None else torch.add(before, part, out=output)
            if last:
                if before is not output and before is not None:
                    output.copy_(before)  # of this copy's pieces there were none
                if place < last:
                    torch.distributed.send(output, self.near[place + 1])
                torch.distributed.broadcast(output, self.near[last], group=self.copies)
        self.sum = output

    def begin(self, first: bool, present: int) -> None:
        """The first ``present`` processes have a piece in this round; what the others send does not count."""
        self.present = present
        if first:
            self.sum = None


def begin_round(model: nn.Module, first: bool, present: int) -> None:
    """Before the backward pass of a round of pieces, the ``first`` of a step or not; ``present`` processes have one."""
    for one in reductions(model):
        one.begin(first, present)
    if not first and any(isinstance(one, InOrder) for one in reductions(model)):
        for parameter in model.parameters():
            parameter.grad = None  # the sum is carried by InOrder; FSDP2 would add it once more


# ------------------------------------------------------------------------------ a shard's numbers


@dataclass(frozen=True)
class Share:
    """Flat ``numbers`` of a tensor of this ``shape``, from its number ``low`` on."""

    shape: tuple[int, ...]
    low: int
    numbers: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.numbers.dtype

    def detach(self) -> Share:
        """Itself, as of a tensor: it has no graph."""
        return self


class Window:
    """This process's numbers of a weight, as the optimizer's kernels see them: ``tensor`` is flat, and begins at a
    multiple of ``GRID`` in the whole weight's order.

    Of ``size`` numbers in all ``low`` to before ``high`` are ours; a row has ``width``. Where they begin or end between
    two multiples, the tensor is a copy with zeros around them.
    """

    def __init__(self, weight: Any, mesh: Mesh) -> None:
        self.weight, self.shape, self.size = weight, tuple(weight.shape), weight.numel()
        inside = self.size // max(1, self.shape[0])
        first, last = share(self.shape[0], mesh.extent("data"), mesh.index("data"))
        self.low, self.high = first * inside, last * inside
        self.begin = self.low - self.low % GRID
        self.end = min(self.size, -(-self.high // GRID) * GRID) if self.high > self.low else self.begin
        self.fits = (self.begin, self.end) == (self.low, self.high)
        self.tensor = self.widened(self.local(weight))

    @staticmethod
    def local(tensor: Any) -> Tensor:
        """This process's rows of a DTensor, flat."""
        return tensor.to_local().detach().reshape(-1)  # type: ignore[no-any-return]

    def widened(self, ours: Tensor) -> Tensor:
        """Our numbers in a window: the same memory where they fill it."""
        if self.fits:
            return ours
        wide = ours.new_zeros(self.end - self.begin)
        wide[self.low - self.begin : self.high - self.begin] = ours
        return wide

    def ours(self, wide: Tensor) -> Tensor:
        """Our numbers out of a window."""
        return wide if self.fits else wide[self.low - self.begin : self.high - self.begin]

    def share(self, wide: Tensor) -> Share:
        """Our numbers out of a window, with the place that they have in the whole."""
        return Share(self.shape, self.low, self.ours(wide))

    def pull(self) -> None:
        """Take up the gradient that backward left on the weight."""
        grad = self.weight.grad
        self.tensor.grad = None if grad is None else self.widened(self.local(grad))

    @torch.no_grad()
    def push(self) -> None:
        """Give the weight the numbers that the optimizer made."""
        if not self.fits:
            self.local(self.weight).copy_(self.ours(self.tensor))

    @torch.no_grad()
    def refresh(self) -> None:
        """Take up the weight's numbers where it was written to by another."""
        self.ours(self.tensor).copy_(self.local(self.weight))

    @property
    def width(self) -> int:
        """Numbers of a row, the last dimension."""
        return self.shape[-1] if len(self.shape) > 1 else 1


def in_shards(model: nn.Module) -> bool:
    """Whether ``shard`` has cut this model."""
    return next(reductions(model), None) is not None


def windows(model: nn.Module, mesh: Mesh) -> dict[str, Window]:
    """A window on each weight that trains, by its path."""
    return {name: Window(weight, mesh) for name, weight in model.named_parameters() if weight.requires_grad}


def norm(grads: Mapping[str, Tensor], found: Mapping[str, Window] | None, mesh: Mesh) -> float:
    """The norm of the whole gradient: squares are added up in fp64 row by row, then all rows in one order.

    ``grads`` are flat windows where ``found`` says so, else whole.
    """
    totals = []
    for name, grad in grads.items():
        if found is None:
            totals.append(squares(grad.reshape(-1), grad.shape[-1] if grad.ndim > 1 else 1))
            continue
        one = found[name]
        rows = torch.zeros(one.size // one.width, dtype=torch.float64)
        rows[one.low // one.width : one.high // one.width] = squares(one.ours(grad), one.width).cpu()
        totals.append(rows)
    if not totals:
        return 0.0
    whole = torch.cat(totals)
    if found is not None and mesh.extent("data") > 1:
        with mesh.watched():  # each row is one process's and 0 elsewhere, so that the order does not matter
            torch.distributed.all_reduce(whole, group=mesh.group("data"))
    return math.sqrt(float(whole.sum()))


def squares(numbers: Tensor, width: int) -> Tensor:
    """The sum of squares of each row of ``width`` numbers, in fp64."""
    if width == 1:
        return numbers.double().square()
    rows = numbers.view(-1, width)
    parts = [part.double().square().sum(-1) for part in torch.split(rows, max(1, AT_ONCE // width))]
    return torch.cat(parts) if len(parts) != 1 else parts[0]
