"""A model's copy in bf16: forward and backward run through it, the weights and their gradients stay
in fp32."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor, nn


class Bf16Replica:
    """``model`` in bf16, beside the fp32 masters it was made of (mixed precision, Micikevicius et
    al. 2018).

    Autocast rounds every weight anew for each product; here each is rounded once a step. Backward
    leaves nothing on the copy: each gradient is added, in fp32, to its master's as soon as it is
    whole.
    """

    def __init__(self, masters: nn.Module) -> None:
        self.of = masters
        pairs = {
            id(p): (p, nn.Parameter(p.detach().bfloat16(), p.requires_grad))
            for p in masters.parameters()
        }
        memo: dict[int, Any] = {key: half for key, (_, half) in pairs.items()}
        self.model: Any = copy.deepcopy(masters, memo)
        moving = [pair for pair in pairs.values() if pair[0].requires_grad]
        self.masters: list[Tensor] = [master for master, _ in moving]
        self.halves: list[Tensor] = [half for _, half in moving]
        for master, half in pairs.values():
            if half.requires_grad:
                half.register_post_accumulate_grad_hook(functools.partial(_deliver, master))  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def follow(self) -> None:
        """Copy the trainable fp32 masters, and each one's requires_grad; frozen weights were copied
        once."""
        torch._foreach_copy_(self.halves, self.masters)
        if self.model.training != self.of.training:
            self.model.train(self.of.training)


def _deliver(master: Tensor, half: Tensor) -> None:
    grad, half.grad = half.grad, None
    assert grad is not None
    master.grad = grad.to(master.dtype) if master.grad is None else master.grad.add_(grad)
