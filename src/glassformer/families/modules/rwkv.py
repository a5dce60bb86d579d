"""RWKV-4: a mean of values that forgets, and a feed-forward, both of which read the token before.

B batch, T tokens, C channels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import need
from ...core.nn.build import builds
from ...core.nn.cache import MixerState
from ...core.nn.flow import Flow, TracedModule
from ...core.nn.layers import linear
from ...core.nn.position import Position
from ..mixers import ChannelMix, TimeMix
from .scan import convolve

CHUNK = 16  # tokens whose means are computed side by side
NEVER = -1e30  # logarithm of a weight that is none


class ShiftMixer(TracedModule):
    """A module whose layers read a mix of each token and the one before, a share for each channel."""

    def __init__(self, causal: bool, dim: int, names: str) -> None:
        super().__init__()
        need(causal, "RWKV reads from left to right; give it a causal stack.")
        self.names = names
        for name in names:
            setattr(self, f"mix_{name}", nn.Parameter(torch.empty(dim)))

    def mixes(
        self, x: Tensor, flow: Flow, state: MixerState | None
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """The mixes of x (B, T, C) for each layer, and the rest of the state, which holds the last token
        now."""
        before, *beside = state.tensors if state is not None and state.tensors else (None,)
        taps = F.pad(x.new_ones(x.shape[-1], 1, 1), (0, 1))  # the token before alone
        previous, last = convolve(x, taps, None, flow, before)
        if state is not None:
            state.tensors = (last,)
        shares = [getattr(self, f"mix_{name}") for name in self.names]
        return [x * share + previous * (1 - share) for share in shares], tuple(beside)

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        """Later channels of a token look more at itself."""
        for name in self.names:
            share = getattr(self, f"mix_{name}")
            share.copy_(torch.linspace(0, 1, len(share)))


def forgetting_mean(
    k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, flow: Flow, state: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The mean of a document's values so far, v (B, T, C), each weighed by exp(k - decay * age); a
    token's own by exp(k + bonus).

    The state is one more value and the logarithm of its weight, (B, C) each: the mean of all before.
    """
    total, mean = state or (k.new_full(k[:, 0].shape, NEVER), torch.zeros_like(v[:, 0]))
    pos, means = flow.pos.expand(k.shape[:2]), []
    for first in range(0, k.shape[1], CHUNK):
        piece = slice(first, first + CHUNK)
        is_token = pos[:, piece] >= 0
        document, number = (pos[:, piece] == 0).cumsum(1), is_token.cumsum(1)
        # one more row beside those of the tokens: what comes after them
        reader = torch.cat((number, number[:, -1:] + 1), 1)[:, :, None]
        reads = torch.cat((document, document[:, -1:]), 1)[:, :, None]
        visible = (reads == document[:, None]) & is_token[:, None] & (number[:, None] < reader)
        age = (reader - number[:, None] - 1)[..., None]  # (B, L + 1, L, 1)
        scores = torch.where(visible[..., None], k[:, None, piece] - decay * age, NEVER)
        itself = torch.eye(reader.shape[1], k[:, piece].shape[1], device=k.device)[..., None]
        scores = torch.where(itself > 0, k[:, None, piece] + bonus, scores)
        from_state = torch.where(reads == 0, total[:, None] - decay * (reader - 1), NEVER)
        scores = torch.cat((from_state[:, :, None], scores), 2)
        values = torch.cat((mean[:, None], v[:, piece]), 1)
        result = (scores.softmax(2) * values[:, None]).sum(2)
        means.append(result[:, :-1])
        total, mean = scores[:, -1].logsumexp(1), result[:, -1]
    return torch.cat(means, 1), (total, mean)


@builds(TimeMix)
class TimeMixModule(ShiftMixer):
    """Mix with the token before, project, average, gate, project back."""

    writes = ("out_proj.weight",)

    def __init__(self, cfg: TimeMix, dim: int, causal: bool, dropout: float) -> None:
        super().__init__(causal, dim, "kvr")
        self.decay = nn.Parameter(torch.empty(cfg.inner))
        self.bonus = nn.Parameter(torch.empty(cfg.inner))
        self.k, self.v, self.r = (linear(dim, cfg.inner, bias=False) for _ in "kvr")
        self.out_proj = linear(cfg.inner, dim, bias=False)

    def forward(
        self, x: Tensor, flow: Flow, position: Position, state: MixerState | None = None
    ) -> Tensor:
        """x (B, T, C) -> what is added to the residual stream (B, T, C)."""
        wide = torch.promote_types(x.dtype, torch.float32)
        (k, v, r), before = self.mixes(flow.look(self, "in", x), flow, state)
        k, v, r = self.k(k).to(wide), self.v(v).to(wide), self.r(r).sigmoid()
        speed, bonus = self.decay.to(wide).exp(), self.bonus.to(wide)
        mean, after = forgetting_mean(k, v, speed, bonus, flow, before)
        if state is not None:
            state.tensors += after
        return flow.look(self, "write", self.out_proj(r * mean.to(x.dtype)))

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        """Slow channels first."""
        super().reset(std, generator)
        self.decay.copy_(8 * torch.linspace(0, 1, len(self.decay)) ** 0.7 - 5)
        nn.init.constant_(self.bonus, math.log(0.3))


@builds(ChannelMix)
class ChannelMixModule(ShiftMixer):
    """Mix with the token before, up, square, down, gate."""

    writes = ("down.weight",)

    def __init__(self, cfg: ChannelMix, dim: int, causal: bool, dropout: float) -> None:
        super().__init__(causal, dim, "kr")
        self.up = linear(dim, cfg.hidden, bias=False)
        self.r = linear(dim, dim, bias=False)
        self.down = linear(cfg.hidden, dim, bias=False)

    def forward(
        self, x: Tensor, flow: Flow, position: Position, state: MixerState | None = None
    ) -> Tensor:
        """x (B, T, C) -> what is added to the residual stream (B, T, C)."""
        (k, r), _ = self.mixes(flow.look(self, "in", x), flow, state)
        pre = flow.look(self, "pre", self.up(k))
        hidden = flow.look(self, "hidden", pre.relu().square())
        return flow.look(self, "write", self.r(r).sigmoid() * self.down(hidden))
