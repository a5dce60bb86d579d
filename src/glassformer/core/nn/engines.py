"""softmax(q k^T) v by several engines, one of which is chosen for each call. ``eager`` is the
definition, which every other engine must equal; ``sdpa`` is PyTorch's fused kernels. Rooms register
theirs (``fast/attention_engines.py``).

B batch, T queries, S keys, H heads, K key-value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import registry
from ..errors import UserError
from .dropout import dropout as drop
from .mask import Mask

Look = Callable[[str, Tensor], Tensor]
"""(name of a value, the value) -> what is used instead (see ``Flow.look``)."""


def unwatched(name: str, x: Tensor) -> Tensor:
    """``x`` itself: the ``Look`` of a pass without a tape."""
    return x


class AttentionInputs(NamedTuple):
    """One attention call: dropout(softmax(cap(q k^T * scale) + bias, where ``mask`` allows)) v."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, K, S, D); query head h reads key-value head h // (H / K)
    v: Tensor  # (B, K, S, D)
    mask: Mask
    bias: Tensor | None  # (B or 1, H, T, S), added to the scores
    scale: float
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    dropout: float = 0.0  # share of the attention pattern set to 0
    look: Look = unwatched  # given "scores" and "pattern" (B, H, T, S), by the eager engine alone
    # the scheme whose ``bias`` that is: for an engine that asks for some pairs at a time
    position: Any = None
    # which heads q holds, where other processes hold other heads (scale/tensor.py)
    heads: Any = None

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
    def slow_gradients(self) -> bool:
        """A gradient in bf16 or with dropout: there PyTorch has no fast kernel for a CPU."""
        return (self.dropout > 0 or self.q.dtype == torch.bfloat16) and self.needs_grad

    @property
    def on_cpu(self) -> bool:
        """On a CPU and not under torch.compile, which can follow no engine written for it."""
        return self.q.device.type == "cpu" and not torch.compiler.is_compiling()


def fold_groups(x: Tensor, kv_heads: int) -> Tensor:
    """(B, H, T, ..) -> (B, K, H / K * T, ..): a group's queries, as if they were one head's."""
    return x.reshape(x.shape[0], kv_heads, x.shape[1] * x.shape[2] // kv_heads, x.shape[3])


def eager_attention(inputs: AttentionInputs) -> Tensor:
    """Attention as the paper writes it (Vaswani et al. 2017, section 3.2.1) -> (B, H, T, D)."""
    q, k, v, mask, bias, scale, softcap, dropout, look, _, heads = inputs
    kv_heads = k.shape[1]
    qk = (fold_groups(q, kv_heads) @ k.transpose(-1, -2)).view(*q.shape[:3], -1)  # (B, H, T, S)
    scaled = qk * scale
    capped = scaled if softcap is None else softcap * torch.tanh(scaled / softcap)
    biased = capped if bias is None else capped + bias
    scores = look("scores", biased.masked_fill(~mask.dense(), float("-inf")))
    pattern = look(
        "pattern", scores.softmax(-1, torch.promote_types(scores.dtype, torch.float32)).to(v.dtype)
    )
    dropped = drop(pattern, dropout, heads) if dropout > 0 else pattern
    return (fold_groups(dropped, kv_heads) @ v).view(*q.shape[:3], -1)


FOLD_UP_TO = 8
"""Queries a head up to which a dense mask is repeated for each head of a group, which then pays."""


def sdpa_attention(inputs: AttentionInputs) -> Tensor:
    """``F.scaled_dot_product_attention`` -> (B, H, T, D); it cannot cap scores."""
    q, k, v, mask, bias, scale, _, dropout, *_ = inputs
    group, queries = inputs.group_size, q.shape[2]
    fast = mask.fast_path if bias is None else None
    dense = None
    if fast is None:
        dense = (
            mask.dense()
            if bias is None
            else bias.to(q.dtype).masked_fill(~mask.dense(), float("-inf"))
        )
    if inputs.heads is not None and dropout > 0:
        result: Tensor = inputs.heads.attend(inputs, dense)
        return result
    if group > 1 and (fast == "full" or (fast is None and queries <= FOLD_UP_TO)):
        # (B, H, T, D) -> (B, K, H / K * T, D): the queries of a group of heads become queries of
        # its one key-value head
        if dense is not None:
            # where all heads have one mask: one for each of a group
            heads = max(group, dense.shape[1])
            dense = fold_groups(dense.expand(-1, heads, -1, -1), heads // group)
        options: dict[str, Any] = {"attn_mask": dense, "dropout_p": dropout, "scale": scale}
        return F.scaled_dot_product_attention(fold_groups(q, k.shape[1]), k, v, **options).reshape(
            *q.shape[:3], -1
        )
    if (
        fast == "full"
        and queries == 1
        and dropout == 0
        and q.dtype == torch.bfloat16
        and q.device.type == "cpu"
    ):
        # a second row takes the kernel from its slow products of one row: half the time
        twice = q.expand(-1, -1, 2, -1)
        return F.scaled_dot_product_attention(twice, k, v, scale=scale)[:, :, :1]
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=dense,
        dropout_p=dropout,
        is_causal=fast == "causal",
        scale=scale,
        enable_gqa=group > 1,
    )


class AttentionEngine(NamedTuple):
    """One way to compute ``AttentionInputs`` -> (B, H, T, D)."""

    name: str
    run: Callable[[AttentionInputs], Tensor]
    supports: Callable[[AttentionInputs], bool]  # True where it can compute them
    # True where it was measured to be the fastest of those that can; None: taken by name alone
    preferred: Callable[[AttentionInputs], bool] | None
    min_queries: int = 1  # asked for calls of so many queries and more
    for_slow_gradients: bool = False  # asked only where the fused kernels' backward pass is slow


ENGINES: dict[str, AttentionEngine] = {
    engine.name: engine
    for engine in (
        *(engine for module in registry.load("engines") for engine in module.ENGINES),
        # the fastest wherever no row before it says otherwise
        AttentionEngine(
            "sdpa", sdpa_attention, lambda inputs: inputs.softcap is None, lambda inputs: True
        ),
        # scores that are capped: no fused kernel does that
        AttentionEngine("eager", eager_attention, lambda inputs: True, lambda inputs: True),
    )
}
"""The table that chooses: the first engine that is preferred and supports a call."""


def engine_name(name: str | AttentionEngine) -> str | AttentionEngine:
    """The engine that a name means: of ENGINES, "auto", or an Engine itself; else UserError."""
    if isinstance(name, AttentionEngine):
        return name
    if name != "auto" and name not in ENGINES:
        raise UserError(
            f'There is no engine of attention "{name}"; give auto, {", ".join(ENGINES)}.'
        )
    return name


def choose(inputs: AttentionInputs, name: str | AttentionEngine = "auto") -> AttentionEngine:
    """The engine of that name where it supports the call; else, and for "auto", the table's.

    An Engine from outside (``scale/ring.py``) is always taken.
    """
    if isinstance(name, AttentionEngine):
        return name
    if name != "auto" and ENGINES[name].supports(inputs):
        return ENGINES[name]
    queries, slow_gradients = inputs.q.shape[2], inputs.slow_gradients
    for engine in ENGINES.values():
        if queries < engine.min_queries or (engine.for_slow_gradients and not slow_gradients):
            continue
        # preferred first: it is false more often
        if engine.preferred and engine.preferred(inputs) and engine.supports(inputs):
            return engine
    raise AssertionError("eager supports every call")


def attend(inputs: AttentionInputs, engine: str | AttentionEngine = "auto") -> Tensor:
    """Attention (B, H, T, D) by the engine that ``choose`` gives."""
    return choose(inputs, engine).run(inputs)
