"""Fused functions of a recorded pass in steps."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .recorder import Operation, Recorder, Value
from .written_out import attention

STEPS = {"scaled_dot_product_attention": attention}
"""What a fused function computes, in steps."""


def write_out(operations: list[Operation]) -> list[Operation]:
    """The operations with each fused one in steps; what the steps give is computed when asked for,
    and the model's own result stays as it is."""
    written: list[Operation] = []
    for operation in operations:
        if operation.name in STEPS and len(operation.outputs) == 1:
            written += _steps(operation)
        written.append(operation)
    return written


def _steps(fused: Operation) -> list[Operation]:
    """The steps of a fused operation, recorded on tensors without numbers; its result becomes the
    last step's."""
    recorder = Recorder(keep=0)
    stand_ins: dict[Value, Tensor] = {}
    for x in fused.inputs:
        stand_ins[x] = torch.empty(x.shape, dtype=x.dtype, device="meta")
        recorder.alias(stand_ins[x], x)
    leaves = [stand_ins[x] if isinstance(x, Value) else x for x in fused.leaves]
    args, kwargs = pytree.tree_unflatten(leaves, fused.spec)
    with torch.no_grad(), recorder.inside(fused.place[0]):
        STEPS[fused.name](*args, **kwargs)
    *steps, last = recorder.operations
    for step in (*steps, last):
        step.is_written_out = True
    fused.function, fused.name, fused.leaves, fused.spec = (
        last.function,
        last.name,
        last.leaves,
        last.spec,
    )
    fused.is_written_out = True
    return steps
