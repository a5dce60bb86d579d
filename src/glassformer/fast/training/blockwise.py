"""Blocks compiled one by one: those alike by one program, in the time that one takes, however deep
a model is."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor, nn

from ...core.nn.build import compiled
from ...core.nn.flow import Flow
from ...core.nn.replace import replace_modules
from ...core.training.loss import cross_entropy, logits_to_grad


def blockwise(model: Any) -> Any:
    """A view of ``model`` whose blocks are compiled for one shape at a time; its other parts run as
    they are.

    A stack's first block, which makes the masks, has a program of its own.
    """
    stacks = [module for name, module in model.named_modules() if name.endswith(".blocks")]
    view: Any = replace_modules(
        model, {block: Compiled(block) for stack in stacks for block in stack}
    )
    if view is not model:  # a recurrent model has no blocks
        vars(view)["_orig_mod"] = model  # as torch.compile names it: what a tape looks into
    return view


class Compiled(nn.Module):
    """A block, compiled; what it adds to the losses and metrics of a pass it adds to empty ones, so
    that what earlier blocks left there is no part of the program."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = torch.compile(block, dynamic=False)

    def forward(self, x: Tensor, flow: Flow, *args: Any) -> Tensor:
        before = flow.aux, flow.metrics
        flow.aux, flow.metrics = {}, {}
        x = self.block(x, flow, *args)
        block_metrics = flow.aux, flow.metrics
        flow.aux, flow.metrics = before
        for name, loss in block_metrics[0].items():
            flow.add_loss(name, loss)
        for name, rows in block_metrics[1].items():
            flow.add_metric(name, rows[0])
        return x


def compiled_with_loss(model: Any, blocks: bool = False) -> Any:
    """``nn.build.compiled``, or ``nn.blockwise`` where ``blocks`` are; on a GPU, where the
    vocabulary's logits are the largest tensors, with the head's loss."""
    if model.head is not None and next(model.parameters()).device.type == "cuda":
        head = copy.copy(model.head)
        head.cross_entropy = head.cross_entropy or functools.partial(
            cross_entropy, to_grad=torch.compile(logits_to_grad, dynamic=False)
        )
        model = replace_modules(model, {model.head: head})
    return blockwise(model) if blocks else compiled(model)
