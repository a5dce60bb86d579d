"""The parts that mixers with a state share: layers, a convolution over tokens, a decaying state.

B batch, T tokens, C channels, H heads. ``flow.pos`` (B or 1, T) counts from 0 in each document, -1 is
padding: a document begins with an empty state, and padding changes none.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.config.layers import Shapes
from ...core.errors import need
from ...core.nn.cache import MixerState
from ...core.nn.flow import Flow, TracedModule
from ...core.nn.layers import linear
from ...core.nn.position import Position

CHUNK = 64  # tokens that are computed side by side


States: TypeAlias = tuple[Tensor, ...]  # that a cache keeps; () before a text begins


def add_layers(module: nn.Module, shapes: Shapes) -> None:
    """Gives a module the parameters, matrices and convolutions of ``shapes`` that it lacks."""
    for name, shape in shapes.items():
        layer, _, end = name.partition(".")
        bias = f"{layer}.bias" in shapes
        if hasattr(module, layer):
            continue
        if not end:
            setattr(module, name, nn.Parameter(torch.empty(shape)))
        elif len(shape) == 2:
            setattr(module, layer, linear(*shape[::-1], bias))
        elif len(shape) == 3:
            setattr(module, layer, CausalConv(shape[0], shape[2], bias))


class Layered(nn.Module):
    """A module whose layers the shapes of its config name."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class ShapedModule(Layered):
    """A module that has the layers of its config's shapes beside those of the class after this one."""

    def __init__(self, cfg: Any, dim: int, *place: Any) -> None:
        super().__init__(cfg, dim, *place)
        self.cfg: Any = cfg
        add_layers(self, cfg.shapes(dim, *place))


class StateMixer(Layered, TracedModule):
    """A mixer whose layers are those of its config's shapes, and whose ``mix`` makes new states of old."""

    writes: tuple[str, ...] = ("out_proj.weight",)

    def __init__(self, cfg: Any, dim: int, causal: bool, dropout: float) -> None:
        super().__init__()
        need(causal, f"{type(cfg).__name__} reads from left to right; give it a causal stack.")
        self.cfg = cfg
        add_layers(self, cfg.shapes(dim))

    def forward(
        self, x: Tensor, flow: Flow, position: Position, state: MixerState | None = None
    ) -> Tensor:
        """x (B, T, C) -> what is added to the residual stream (B, T, C)."""
        before = state.tensors if state is not None and state.tensors else ()
        added, after = self.mix(flow.look(self, "in", x), flow, before)
        if state is not None:
            state.tensors = after
        return flow.look(self, "write", added)

    def mix(self, x: Tensor, flow: Flow, before: States) -> tuple[Tensor, States]:
        """x (B, T, C) -> what is added (B, T, C), and the states after it."""
        raise NotImplementedError


class ScanMixer(StateMixer):
    """A mixer whose state decays by steps as long as each token says, at a speed of each head."""

    def steps(self, rates: Tensor) -> Tensor:
        """Rates (B, T, H) -> lengths of the steps (B, H, T)."""
        return F.softplus(in_fp32(rates) + in_fp32(self.dt_bias)).transpose(1, 2)

    def decays(self, steps: Tensor) -> Tensor:
        """The logarithm of what a state keeps in steps (B, H, T)."""
        return -in_fp32(self.A_log).exp()[:, None] * steps


class GatedNorm(nn.Module):
    """RMSNorm of each group of channels, and silu(gate), which comes before the norm or after it."""

    def __init__(self, dim: int, eps: float, groups: int = 1, gate_first: bool = False) -> None:
        super().__init__()
        self.groups, self.eps, self.gate_first = groups, eps, gate_first
        self.weight = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        gate = F.silu(gate.to(x.dtype))
        wide = split_heads(x * gate if self.gate_first else x, self.groups)
        unit = self.weight * F.rms_norm(wide, wide.shape[-1:], None, self.eps).flatten(-2)
        return unit if self.gate_first else unit * gate

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        nn.init.ones_(self.weight)


class CausalConv(nn.Module):
    """Each channel's weighted sum over the last K tokens of its document."""

    def __init__(self, channels: int, kernel: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def forward(self, x: Tensor, flow: Flow, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """x (B, T, C), after the tokens ``before`` (B, K-1, C) -> the sums, and the last K-1."""
        return convolve(x, self.weight, self.bias, flow, before)


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, flow: Flow, before: Tensor | None
) -> tuple[Tensor, Tensor]:
    """x (B, T, C) by a weight (C, 1, K): the sums of each document, and the last K-1 tokens."""
    rows, columns, channels = x.shape
    past = weight.shape[-1] - 1
    if before is None:
        before = x.new_zeros(rows, past, channels)
    x, pos, order = torch.cat((before, x), 1), flow.pos.expand(rows, columns), None
    if not flow.contiguous:  # padding first, then what a cache holds, then tokens
        pos = F.pad(pos, (past, 0), value=past + 1)
        order = (pos >= 0).to(pos.dtype).argsort(dim=1, stable=True)
        pos = pos.gather(1, order)[:, past:]
        x = x.gather(1, order[..., None].expand_as(x))
    total = x[:, past:] * weight[:, 0, -1]
    for back in range(1, past + 1):
        earlier = x[:, past - back : past - back + columns]
        if order is not None:
            earlier = torch.where((pos >= back)[..., None], earlier, 0.0)
        total = total + earlier * weight[:, 0, -1 - back]
    if bias is not None:
        total = total + bias
    last = x[:, columns:]
    if order is not None:  # back to the places where tokens stood
        places = (order.argsort(dim=1)[:, past:] - past).clamp(min=0)
        total = total.gather(1, places[..., None].expand_as(total))
    return total, last


def scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    flow: Flow,
    state: Tensor | None,
    removal: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Read by q a state that takes in k and v token by token; also returns the last state.

    S = exp(decay) S + k v^T, and the output is q^T S; with ``removal`` the delta rule, which writes
    v - removal^T S in place of v. q, k, removal (B, H, T, N), v (B, H, T, P), decay (B, H, T), or
    (B, H, T, N) where channels decay apart, state (B, H, N, P); tokens of a chunk are computed side
    by side.
    """
    rows, heads, columns, size = k.shape
    if state is None:
        state = v.new_zeros(rows, heads, size, v.shape[-1])
    outputs, starts = [], None
    if not flow.contiguous:
        pos = flow.pos.expand(rows, columns)[:, None]
        is_token = (pos >= 0)[..., None]
        decay = torch.where(is_token if decay.ndim == k.ndim else pos >= 0, decay, 0.0)
        k = torch.where(is_token, k, 0.0)
        starts = pos == 0
    pieces = (
        repeat(None) if x is None else torch.split(x, CHUNK, 2)
        for x in (q, k, v, decay, starts, removal)
    )
    for piece in zip(*pieces, strict=False):
        output, state = _chunk(state, *piece)
        outputs.append(output)
    return torch.cat(outputs, 2), state


def _chunk(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    starts: Tensor | None,
    removal: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """``scan`` of one chunk; ``starts`` (B, 1, L) marks where a document begins, None: none does."""
    length, scale = decay.shape[2], None
    if decay.ndim == k.ndim:  # what a channel keeps between two tokens is a product of two factors
        since = decay.cumsum(2).exp()  # the start of the chunk
        scale, decay = since[:, :, -1, :, None], torch.zeros_like(decay[..., 0])
        q, k, removal = q * since, k / since, None if removal is None else removal * since
    # what is left at row t of what was written at column s: exp of the decays between
    steps = decay[..., None].expand(*decay.shape, length).tril(-1).cumsum(-2)
    weight = steps.exp().tril()
    entered = decay.cumsum(-1).exp()[..., None]  # of what the state holds before the chunk
    if starts is not None:
        document = starts.cumsum(-1)
        weight = weight * (document[..., None] == document[..., None, :])
        entered = entered * (document == 0)[..., None]
    if removal is not None:
        overlap = (removal @ k.mT * weight).tril(-1)
        error = v - entered * (removal @ state)
        v = torch.linalg.solve_triangular(overlap, error, upper=False, unitriangular=True)
    output = entered * (q @ state) + ((q @ k.mT) * weight) @ v
    last = weight[..., -1, :, None] * k
    state = entered[..., -1:, :] * state + last.mT @ v
    return output, state if scale is None else scale * state


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(.., heads * D) -> (.., heads, D)."""
    return x.view(*x.shape[:-1], heads, -1)


def by_head(x: Tensor, heads: int) -> Tensor:
    """(.., T, heads * D) -> (.., heads, T, D)."""
    return split_heads(x, heads).transpose(-3, -2)


def in_fp32(x: Tensor) -> Tensor:
    """In fp32 at least: where sums are made."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
