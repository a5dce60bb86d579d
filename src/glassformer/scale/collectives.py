"""Messages between the processes of a group within a pass, with the gradient of each.

enter      forward: as it is              backward: summed     into what each process computes a part of
leave      forward: summed                backward: as it is   out of it
total      forward: summed                backward: summed     a sum over processes that each goes on to use
exchange   forward: rows to their owners  backward: back
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def summed(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over the group's processes, the same on each; no gradient."""
    x = x.contiguous().clone()
    dist.all_reduce(x, group=group)
    return x


def every(x: Tensor, group: ProcessGroup) -> list[Tensor]:
    """The tensors of all processes, of one shape, in the order of their ranks; no gradient."""
    tensors = [
        torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size())
    ]
    dist.all_gather(tensors, x.contiguous(), group=group)
    return tensors


def enter(x: Tensor, group: ProcessGroup) -> Tensor:
    """``x`` itself, which is the same on all processes; its gradient is the sum of theirs
    (Megatron's f)."""
    out: Tensor = _Sum.apply(x, group, False, True)  # type: ignore[no-untyped-call]
    return out


def leave(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of what each process has; its gradient is the sum's own (Megatron's g)."""
    out: Tensor = _Sum.apply(x, group, True, False)  # type: ignore[no-untyped-call]
    return out


def total(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of what each process has, of which each makes a loss of its own: the gradient is the
    sum of theirs."""
    out: Tensor = _Sum.apply(x, group, True, True)  # type: ignore[no-untyped-call]
    return out


def exchange(rows: Tensor, send: list[int], receive: list[int], group: ProcessGroup) -> Tensor:
    """Rows (P, ..), the first ``send[0]`` to the first process, .. -> those received,
    ``receive[0]`` from the first."""
    out: Tensor = _Exchange.apply(rows, send, receive, group)  # type: ignore[no-untyped-call]
    return out


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, forward: bool, backward: bool) -> Tensor:
        ctx.group, ctx.backward = group, backward
        return summed(x, group) if forward else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return summed(grad, ctx.group) if ctx.backward else grad, None, None, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, send: list[int], receive: list[int], group: ProcessGroup
    ) -> Tensor:
        ctx.send, ctx.receive, ctx.group = send, receive, group
        received = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(received, rows.contiguous(), receive, send, group=group)
        return received

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Exchange.apply(grad, ctx.receive, ctx.send, ctx.group), None, None, None  # type: ignore[no-untyped-call]
