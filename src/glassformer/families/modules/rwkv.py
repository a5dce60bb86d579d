"""RWKV-4: a mean of values that forgets, and a feed-forward, both of which read the token before.

B batch, T tokens, C channels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.nn.build import builds
from ...core.nn.flow import Flow
from ..mixers import ChannelMix, TimeMix
from .scan import StateMixer, States, convolve, in_fp32

CHUNK = 16  # tokens whose means are computed side by side
NEVER = -1e30  # logarithm of a weight that is none


class ShiftMixer(StateMixer):
    """A mixer whose layers ``names`` read a mix of each token and the one before, a share a channel."""

    names = ""

    def mixes(self, x: Tensor, flow: Flow, before: States) -> tuple[list[Tensor], Tensor]:
        """The mixes of x (B, T, C) for each layer, and the last token."""
        taps = F.pad(x.new_ones(x.shape[-1], 1, 1), (0, 1))  # the token before alone
        previous, last = convolve(x, taps, None, flow, before[0] if before else None)
        shares = [getattr(self, f"mix_{name}") for name in self.names]
        return [x * share + previous * (1 - share) for share in shares], last

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        """Later channels of a token look more at itself."""
        for name in self.names:
            share = getattr(self, f"mix_{name}")
            share.copy_(torch.linspace(0, 1, len(share)))


def forgetting_mean(
    k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, flow: Flow, state: States
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The mean of a document's values so far, v (B, T, C), each weighed by exp(k - decay * age); a
    token's own by exp(k + bonus).

    The state is one more value and the logarithm of its weight, (B, C) each: the mean of all before.
    """
    total, mean = state or (k.new_full(k[:, 0].shape, NEVER), torch.zeros_like(v[:, 0]))
    pos, means = flow.pos.expand(k.shape[:2]), []
    for first in range(0, k.shape[1], CHUNK):
        piece = slice(first, first + CHUNK)
        is_token = F.pad(pos[:, piece] >= 0, (1, 0), value=True)
        # the state stands before the tokens, as one more of their document
        keys = torch.cat((total[:, None], k[:, piece]), 1)
        values = torch.cat((mean[:, None], v[:, piece]), 1)
        document, number = F.pad(pos[:, piece] == 0, (1, 0)).cumsum(1), is_token.cumsum(1)
        # rows: the tokens, and what comes after them
        reads = torch.cat((document[:, 1:], document[:, -1:]), 1)
        age = number[:, :, None] - number[:, None]
        visible = (reads[:, :, None] == document[:, None]) & is_token[:, None] & (age >= 0)
        scores = torch.where(visible[..., None], keys[:, None] - decay * age[..., None], NEVER)
        itself = torch.ones(keys.shape[1] - 1, device=k.device).diag(1) > 0
        scores = torch.where(itself[..., None], keys[:, None] + bonus, scores)
        result = (scores.softmax(2) * values[:, None]).sum(2)
        means.append(result[:, :-1])
        total, mean = scores[:, -1].logsumexp(1), result[:, -1]
    return torch.cat(means, 1), (total, mean)


@builds(TimeMix)
class TimeMixModule(ShiftMixer):
    """Mix with the token before, project, average, gate, project back."""

    names, writes = "kvr", ("out_proj.weight",)

    def mix(self, x: Tensor, flow: Flow, before: States) -> tuple[Tensor, States]:
        (k, v, r), last = self.mixes(x, flow, before)
        k, v, bonus = map(in_fp32, (self.k(k), self.v(v), self.bonus))
        mean, after = forgetting_mean(k, v, in_fp32(self.decay).exp(), bonus, flow, before[1:])
        return self.out_proj(self.r(r).sigmoid() * mean.to(x.dtype)), (last, *after)

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        """Slow channels first."""
        super().reset(std, generator)
        self.decay.copy_(8 * torch.linspace(0, 1, len(self.decay)) ** 0.7 - 5)
        nn.init.constant_(self.bonus, math.log(0.3))


@builds(ChannelMix)
class ChannelMixModule(ShiftMixer):
    """Mix with the token before, up, square, down, gate."""

    names, writes = "kr", ("down.weight",)

    def mix(self, x: Tensor, flow: Flow, before: States) -> tuple[Tensor, States]:
        (k, r), last = self.mixes(x, flow, before)
        pre = flow.look(self, "pre", self.up(k))
        hidden = flow.look(self, "hidden", pre.relu().square())
        return self.r(r).sigmoid() * self.down(hidden), (last,)
