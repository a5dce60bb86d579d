"""Prepacked weights: a second copy of each matrix, in oneDNN's blocked order, that its kernels read
straight through.

A row of numbers times a matrix costs what it costs to fetch the matrix. On x86 the kernels that
take a matrix as it lies fetch at about half of what the memory gives (bf16), or compute at half of
what the cores can (fp32). The copies are as large as the matrices.

    view = prepack(model)   a model around the same parameters, its products by copies; ``model`` stays as it is
    prepack(model, exact=True)   copies for the kernels of our own, where they are compiled: a row's bits are its own
    view.current()          whether every weight is still the one that was copied
    unpack(model)           the copies are forgotten; ``model.train()`` does it too

Nothing of ``model`` is changed, so threads may generate with it, each by a view of its own, while
others look at it or train it. The copies are kept beside the model for the next view, as long as it
lives; neither ``state_dict``, nor ``copy.deepcopy`` nor pickle sees them.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..core.nn.layers import Linear, Projection
from ..core.nn.model import on_training
from ..core.nn.replace import replace_modules
from .packed_layers import (
    PackedGroup,
    PackedWeight,
    PrepackedLinear,
    PrepackedProjection,
    State,
    state_of,
)
from .quantized import QuantizedWeight

M = TypeVar("M", bound=nn.Module)
Paths: TypeAlias = tuple[str, ...]  # of the layers that share a copy


@dataclass(frozen=True)
class View(Generic[M]):
    """A shallow copy of a model whose products read prepacked weights; it shares all parameters
    with the original."""

    model: M
    packed: list[PackedWeight]
    complete: bool  # whether there is a copy of all that can be copied

    def current(self) -> bool:
        """True while no weight or bias was written to or moved since its copy was made, as far as
        PyTorch counts it."""
        tensors, was = self._watched
        # asked at every token, so in as few steps of Python as can be
        return state_of(tensors) == was

    @cached_property
    def _watched(self) -> tuple[list[Tensor], State]:
        groups = [(packed.group, packed.state) for packed in self.packed]
        tensors = [tensor for group, _ in groups for tensor in [*group.weights, *group.biases]]
        return tensors, [entry for _, state in groups for entry in state]


_lock = threading.Lock()
_copies: WeakKeyDictionary[nn.Module, dict[bool, dict[Paths, PackedWeight]]] = WeakKeyDictionary()


def prepack(model: M, room: int | None = None, exact: bool = False) -> View[M]:
    """A view of ``model`` with up-to-date copies: those there are, and the missing ones if they fit
    ``room`` bytes.

    With ``exact`` the products are our kernels', in which a row's bits depend on nothing but the
    row. What was copied before is compared with the weights as they are now, by where they lie and
    the sum of their bits.
    """
    with _lock:
        cached, groups = (
            _copies.setdefault(model, {}).setdefault(exact, {}),
            dict(packable(model, exact)),
        )
        for paths, packed in list(cached.items()):
            group = groups.get(paths)
            if group is not None and (packed.state, packed.checksum) == (
                group.state(),
                group.checksum(),
            ):
                # a bias is small: copied every time
                cached[paths] = replace(packed, group=group, bias=group.bias())
            else:
                del cached[paths]
        # models that share their weights share the copies
        tables = [table.get(exact, {}) for table in _copies.values()]
        by_state = {tuple(packed.state): packed for table in tables for packed in table.values()}
        for paths in groups.keys() - cached.keys():
            twin = by_state.get(tuple(groups[paths].state()))
            if twin is not None and twin.checksum == groups[paths].checksum():
                cached[paths] = replace(twin, group=groups[paths])
        missing = [paths for paths in groups if paths not in cached]
        if room is None or sum(groups[paths].nbytes for paths in missing) <= room:
            cached.update({paths: PackedWeight.of(groups[paths], exact) for paths in missing})
        copies = dict(cached)
    swaps: dict[nn.Module, nn.Module] = {}
    for paths, packed in copies.items():
        for layer in map(model.get_submodule, paths):
            kind = PrepackedProjection if isinstance(layer, Projection) else PrepackedLinear
            swaps[layer] = kind(layer, packed)
    return View(replace_modules(model, swaps), list(copies.values()), len(copies) == len(groups))


def unpack(model: nn.Module) -> None:
    """Forget the copies of ``model``; views that there are go on with theirs."""
    _copies.pop(model, None)


on_training(unpack)


def packable(model: nn.Module, exact: bool = False) -> Iterator[tuple[Paths, PackedGroup]]:
    """The layers that multiply, on a processor whose kernels gain by copies; joined ones
    together.

    Those in fp16 are there for ``exact`` copies alone: PyTorch's products of fp16 round a row by
    the batch it is in, where the processor multiplies fp16 itself.
    """
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    # in shards: a copy would hold all of it
    if any(hasattr(weight, "placements") for weight in model.parameters()):
        return
    kinds = (
        {torch.float32, torch.bfloat16}
        if torch.ops.mkldnn._is_mkldnn_bf16_supported()
        else {torch.float32}
    )
    if exact:
        kinds.add(torch.float16)
    modules = {module: path for path, module in model.named_modules()}
    joined = [
        tuple(getattr(module, name) for name in getattr(module, "fused_projections", ()))
        for module in modules
    ]
    members = {layer for layers in joined for layer in layers}
    alone = [
        (module,) for module in modules if isinstance(module, Linear) and module not in members
    ]
    candidates: list[tuple[tuple[nn.Module, ...], list[Tensor]]] = [
        (layers, [layer.weight for layer in layers])
        for layers in joined + alone
        if layers and all(layer.prepackable for layer in layers)
    ]
    head = getattr(model, "head", None)
    if head is not None and not isinstance(weight := head.table(model.embed), QuantizedWeight):
        candidates.append(((head.proj,), [weight]))
    for layers, weights in candidates:
        group = PackedGroup(weights, [layer.bias for layer in layers if layer.bias is not None])  # type: ignore[misc]
        if group.packable(kinds):
            yield tuple(modules[layer] for layer in layers), group
