"""Weights, gradients and the optimizer's numbers in shards, one a process (FSDP2; Zhao et al.
2023), to the bit.

Three things differ from plain FSDP2, so that N processes make the bits of one that works through
the same micro-batches: gradients are added up in the order of micro-batches (``OrderedSum``), each optimizer's
kernel meets a number at the place in its row of 64 where one process would have it (``WeightWindow``),
and the gradient's norm is a sum in one order (``ShardedOptimizer.norm``).
"""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..core.memory import available_memory
from ..core.nn import build_model
from ..core.nn.build import build
from . import expert_parallel, pipeline, tensor
from .mesh import Mesh
from .place import Cut, TensorBox, place_of
from .windows import WeightWindow

COPIES = ("replicate", "expert")
"""The axes along which shards are the same: each process has a copy."""


def shard(model: nn.Module, mesh: Mesh, dtype: str = "float32", exact: bool = True) -> None:
    """Leave each process its rows of every weight of ``model``; forward and backward compute in
    ``dtype``.

    What the pipeline, tensor and expert axes cut is cut first. A block of a stack is gathered when
    it computes and let go afterwards; what belongs to no block, while the whole model computes.
    ``model`` may be on the "meta" device; ``exact`` adds gradients up as one process would.
    """
    model.cuts = {}  # type: ignore[assignment]
    if mesh.extent("pipeline") > 1:
        stream = torch.bfloat16 if dtype == "bfloat16" else next(model.parameters()).dtype
        model.cuts = pipeline.split_model(model, mesh, stream)  # type: ignore[arg-type, assignment]
    if mesh.extent("tensor") > 1:
        model.cuts = tensor.split_model(model, mesh.group("tensor"))  # type: ignore[arg-type, assignment]
    if mesh.extent("expert") > 1:
        model.cuts = expert_parallel.split_model(model, mesh.group("expert"))  # type: ignore[arg-type, assignment]
    tables = {name for name, cut in cuts_of(model).items() if cut.axis == "expert"}
    fsdp: Any = importlib.import_module("torch.distributed.fsdp")
    meshes: Any = importlib.import_module("torch.distributed.device_mesh")
    group = mesh.group("data") or mesh.own_group()
    along = meshes.DeviceMesh.from_group(group, mesh.device.type, mesh_dim_names=("data",))
    low = (
        {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
        if dtype == "bfloat16"
        else {}
    )
    policy = fsdp.MixedPrecisionPolicy(**low, cast_forward_inputs=False)
    stacks = [
        module for name, module in model.named_modules() if name.rpartition(".")[2] == "blocks"
    ]
    blocks = [block for stack in stacks for block in stack.children()]
    homes = Counter(weight for block in blocks for weight in block.parameters())
    # one that is passed again belongs to the model as a whole
    blocks = [block for block in blocks if all(homes[x] == 1 for x in block.parameters())]
    # nothing is changed in place
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")

    def sharded(module: Any, copies: tuple[str, ...], *ignored: nn.Parameter) -> None:
        fsdp.fully_shard(module, mesh=along, mp_policy=policy, ignored_params=set(ignored))
        module.set_gradient_divide_factor(1.0)  # losses are sums
        module.set_force_sum_reduction_for_comms(True)  # gloo has no other
        module.gradient_sums = (OrderedSum if exact else UnorderedSum)(
            mesh, dtype == "bfloat16", copies
        )
        module.set_custom_reduce_scatter(module.gradient_sums)
        module.set_all_reduce_hook(module.gradient_sums.settle)

    apart = [weight for name, weight in model.named_parameters() if name in tables]
    for module in (*blocks, model):
        sharded(module, COPIES, *apart)
    # their gradients come from all rows already
    for path in {name.rpartition(".")[0]: None for name in tables}:
        mixture = model.get_submodule(path)
        sharded(
            mixture,
            ("replicate",),
            *(weight for weight in mixture.parameters() if hasattr(weight, "placements")),
        )


def cuts_of(model: nn.Module) -> Mapping[str, Cut]:
    """Cuts of the weights that an axis splits, by their paths."""
    return getattr(model, "cuts", {})


def place_in(model: nn.Module, name: str, mesh: Mesh) -> TensorBox | None:
    """Place of this process's numbers in a weight; None where the weight is not sharded."""
    weight: Any = model.get_parameter(name)
    return (
        place_of(tuple(weight.shape), mesh, cuts_of(model).get(name))
        if hasattr(weight, "to_local")
        else None
    )


@torch.no_grad()
def draw(model: Any, mesh: Mesh, seed: int) -> None:
    """Draw the weights of a model in shards, to the bits of ``build_model``: no process holds more
    than a whole weight at a time, and those of the modules that ``reset`` their own."""
    twin: Any = build_model(model.config, device="meta")

    def put(name: str, full: Tensor) -> None:
        place = place_in(model, name, mesh)
        assert place is not None
        box = tuple(
            slice(low, low + size) for low, size in zip(place.start, place.size, strict=True)
        )
        model.get_parameter(name).to_local().copy_(full[box])

    def one_by_one(recurse: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        for name, weight in type(twin).named_parameters(twin, recurse=recurse):
            if not weight.is_meta:
                yield name, weight
                continue
            drawn = nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype))
            yield name, drawn
            put(name, drawn)

    for module in twin.modules():
        if hasattr(module, "reset") or any(
            weight.ndim < 2 for weight in module.parameters(recurse=False)
        ):
            for name, weight in module.named_parameters(recurse=False):
                module._parameters[name] = nn.Parameter(
                    torch.empty(weight.shape, dtype=weight.dtype)
                )
    twin.named_parameters = one_by_one
    build(model.config.init, twin, model.config.stacks.values(), seed)
    for name, weight in type(twin).named_parameters(twin):
        if not weight.is_meta:
            put(name, weight)


def reductions(model: nn.Module) -> Iterator[Any]:
    return (module.gradient_sums for module in model.modules() if hasattr(module, "gradient_sums"))


@contextlib.contextmanager
def gathered(model: Any, mesh: Mesh, needed: int) -> Iterator[None]:
    """While entered, blocks stay gathered after they computed, where everybody has ``needed`` bytes
    free for that.

    A text that is made token by token then gathers them once, not for each token.
    """
    modules = [module for module in model.modules() if hasattr(module, "gradient_sums")]
    free = available_memory(mesh.device)
    fits = bool(modules) and not mesh.maximum(float(free is not None and free < 2 * needed))
    for module in modules:
        module.set_reshard_after_forward(not fits and module is not model, recurse=False)
    if mesh.extent("pipeline") > 1:
        model.stage.lend_table(model)
    try:
        yield
    finally:
        for module in modules:
            module.set_reshard_after_forward(module is not model, recurse=False)
        reshard(model)


def reshard(model: nn.Module) -> None:
    """Forget what was gathered to compute without going back."""
    for module in model.modules():
        if hasattr(module, "gradient_sums"):
            module.reshard()  # type: ignore[operator]


class UnorderedSum:
    """The sum of everybody's gradients by the library's own collectives, in whatever order they
    take."""

    def __init__(self, mesh: Mesh, narrow: bool, copies: tuple[str, ...] = COPIES) -> None:
        self.mesh, self.narrow = mesh, narrow
        self.copies = mesh.group(*copies)

    def allocate(self, size: Iterable[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        dist: Any = torch.distributed
        # its older name
        reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        with self.mesh.watched():
            reduce_scatter(output_tensor, input_tensor, op, group)

    def settle(self, output: Tensor) -> None:
        if self.copies is not None:
            with self.mesh.watched():
                torch.distributed.all_reduce(output, group=self.copies)

    def start_round(self, first: bool, present: int) -> None:
        """Before the backward pass of a round of micro-batches, the ``first`` of a step or not: FSDP2 adds
        rounds up."""


class OrderedSum(UnorderedSum):
    """The sum of everybody's gradients, added in the order of micro-batches onto the sum of the rounds
    before.

    Everybody sends each shard of its gradient to whom it belongs, the traffic of a reduce-scatter;
    who owns it adds them up. Copies of a shard do so one after the other, and the last one tells
    the others.
    """

    def __init__(self, mesh: Mesh, narrow: bool, copies: tuple[str, ...] = COPIES) -> None:
        super().__init__(mesh, narrow, copies)
        self.near = mesh.neighbours(*copies)
        self.sum: Tensor | None = None  # of the rounds before
        self.received: tuple[Tensor, ...] = ()
        self.present = mesh.data_parallel_size

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        # they were bf16 before they were copied in
        sent = input_tensor.bfloat16() if self.narrow else input_tensor
        received = torch.empty_like(sent)
        with self.mesh.watched():
            torch.distributed.all_to_all_single(received, sent, group=group)
        self.received = received.view(group.size(), -1).unbind()

    def settle(self, output: Tensor) -> None:
        received = self.received or (output.clone(),)
        place = self.near.index(self.mesh.rank)
        last = len(self.near) - 1
        before, self.received = self.sum, ()
        with self.mesh.watched():
            if place:
                before = torch.empty_like(output)
                torch.distributed.recv(before, self.near[place - 1])
            for grad in received[: max(0, self.present - place * len(received))]:
                before = (
                    output.copy_(grad) if before is None else torch.add(before, grad, out=output)
                )
            if last:
                if before is not output and before is not None:
                    output.copy_(before)  # of this copy's micro-batches there were none
                if place < last:
                    torch.distributed.send(output, self.near[place + 1])
                torch.distributed.broadcast(output, self.near[last], group=self.copies)
        self.sum = output

    def start_round(self, first: bool, present: int) -> None:
        """The first ``present`` processes have a micro-batch in this round; what the others send does not
        count."""
        # else micro-batches do not follow ranks; what is not there is 0
        if self.mesh.extent("expert") == 1:
            self.present = present
        if first:
            self.sum = None


def begin_round(model: nn.Module, first: bool, present: int) -> None:
    """Before the backward pass of a round of micro-batches, the ``first`` of a step or not; ``present``
    processes have one."""
    for reduction in reductions(model):
        reduction.start_round(first, present)
    if not first and any(isinstance(reduction, OrderedSum) for reduction in reductions(model)):
        for parameter in model.parameters():
            parameter.grad = None  # the sum is carried by OrderedSum; FSDP2 would add it once more


def full_weights(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """A function that gives the whole of a weight of ``model`` as its forward pass computes with it,
    gathered from all processes if it lies in shards."""
    narrow = any(reduction.narrow for reduction in reductions(model))

    def gather(weight: Any) -> Tensor:
        full: Tensor = weight.detach()
        if hasattr(weight, "full_tensor"):
            full = weight.detach().full_tensor()
        return full.bfloat16() if narrow else full

    return gather


def in_shards(model: nn.Module) -> bool:
    return next(reductions(model), None) is not None


def windows(model: nn.Module, mesh: Mesh) -> dict[str, WeightWindow]:
    """A window on each weight that trains, by its path."""
    cuts = cuts_of(model)
    return {
        n: WeightWindow(weight, mesh, cuts.get(n))
        for n, weight in model.named_parameters()
        if weight.requires_grad
    }
