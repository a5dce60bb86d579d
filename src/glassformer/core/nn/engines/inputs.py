"""What every attention engine is given.

B batch, T queries, S keys, H heads, K key-value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..dropout import HeadShard
from ..mask import Mask

Look = Callable[[str, Tensor], Tensor]
"""Called with the name of an intermediate value and the value; what it returns is used instead (see
``Flow.look``)."""


def unwatched(name: str, x: Tensor) -> Tensor:
    """``x`` itself: the ``Look`` of a pass without a tape."""
    return x


class AttentionInputs(NamedTuple):
    """One attention call: dropout(softmax(cap(q k^T * scale) + bias, over the keys that ``mask``
    allows)) v."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, K, S, D); query head h reads key-value head h // (H / K)
    v: Tensor  # (B, K, S, D)
    mask: Mask
    bias: Tensor | None  # (B or 1, H, T, S), added to the scores
    scale: float
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    dropout: float = 0.0  # share of the attention pattern set to 0
    look: Look = unwatched  # given "scores" and "pattern" (B, H, T, S), by the eager engine alone
    # the scheme whose ``bias(mask)`` that is: for an engine that asks for some pairs at a time
    position: Any = None
    # which ones those of q are, where other processes have others: what dropout draws
    heads: HeadShard | None = None

    @property
    def group_size(self) -> int:
        """Query heads to a key-value head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def needs_grad(self) -> bool:
        return torch.is_grad_enabled() and (
            self.q.requires_grad or self.k.requires_grad or self.v.requires_grad
        )

    @property
    def on_cpu(self) -> bool:
        """On a CPU and not under torch.compile, which can follow none of the engines written for
        it."""
        return self.q.device.type == "cpu" and not torch.compiler.is_compiling()


def fold_groups(x: Tensor, kv_heads: int) -> Tensor:
    """(B, H, T, ..) -> (B, K, H / K * T, ..): the queries of a group side by side, as if they were
    one head's."""
    return x.reshape(x.shape[0], kv_heads, x.shape[1] * x.shape[2] // kv_heads, x.shape[3])
