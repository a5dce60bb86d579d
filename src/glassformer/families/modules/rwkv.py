"""RWKV-4 and RWKV-7: a mean of values that forgets or a state that is replaced, and a feed-forward,
all of which read the token before.

B batch, T tokens, C channels, H heads, N channels of a head.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import need
from ...core.nn.build import builds
from ...core.nn.flow import Flow
from ..mixers import TABLES, ChannelMix, ChannelMix7, TimeMix, TimeMix7
from .scan import StateMixer, States, by_head, convolve, in_fp32, scan

CHUNK = 16  # tokens whose means are computed side by side
NEVER = -1e30  # logarithm of a weight that is none
FASTEST = -math.exp(-0.5)  # logarithm of the least that RWKV-7 keeps of a channel in a step
NO_VALUES = (
    "The first TimeMix7 of a pass has no earlier values to mix in; leave value_rank out of it."
)


class ShiftMixer(StateMixer):
    """A mixer whose layers ``names`` read a mix of each token and the one before, a share a channel."""

    names = ""
    share_of_previous = False  # a share is that of the token before, as RWKV-7 stores it

    def mixes(self, x: Tensor, flow: Flow, before: States) -> tuple[list[Tensor], Tensor]:
        """The mixes of x (B, T, C) for each layer, and the last token."""
        taps = F.pad(x.new_ones(x.shape[-1], 1, 1), (0, 1))  # the token before alone
        previous, last = convolve(x, taps, None, flow, before[0] if before else None)
        shares = [getattr(self, f"mix_{name}") for name in self.names]
        near, far = (previous, x) if self.share_of_previous else (x, previous)
        return [near * share + far * (1 - share) for share in shares], last

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        """Shares rise from one channel to the next."""
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
    pieces = (torch.split(x, CHUNK, 1) for x in (k, v, flow.pos.expand(k.shape[:2])))
    means = []
    for keys, values, pos in zip(*pieces, strict=True):
        is_token = F.pad(pos >= 0, (1, 0), value=True)
        # the state stands before the tokens, as one more of their document
        keys = torch.cat((total[:, None], keys), 1)
        values = torch.cat((mean[:, None], values), 1)
        document, number = F.pad(pos == 0, (1, 0)).cumsum(1), is_token.cumsum(1)
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

    names = "kvr"

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
    """Mix with the token before, up, square, down, gate where there is one."""

    names, writes = "kr", ("down.weight",)

    def mix(self, x: Tensor, flow: Flow, before: States) -> tuple[Tensor, States]:
        (k, *gates), last = self.mixes(x, flow, before)
        pre = flow.look(self, "pre", self.up(k))
        hidden = flow.look(self, "hidden", pre.relu().square())
        if not gates:
            return self.down(hidden), (last,)
        return self.r(*gates).sigmoid() * self.down(hidden), (last,)


@builds(ChannelMix7)
class ChannelMix7Module(ChannelMixModule):
    """A channel mix without a gate."""

    names, share_of_previous = "k", True


@builds(TimeMix7)
class TimeMix7Module(ShiftMixer):
    """Mix with the token before, project, replace and read the state, norm, gate, project back.

    The state is S = exp(decay) S - rate removal (removal^T S) + k v^T, where S on the right is that
    of the token before, and r reads it.
    """

    names, share_of_previous = "rwkvag", True
    biases = TABLES

    def mix(self, x: Tensor, flow: Flow, before: States) -> tuple[Tensor, States]:
        (r, w, k, v, a, g), last = self.mixes(x, flow, before)
        w, a = self.w_up(self.w_down(w).tanh()), self.a_up(self.a_down(a))
        layers = in_fp32(torch.stack((self.r(r), w, self.k(k), self.values(v, flow), a)))
        r, w, k, v, a = by_head(layers, self.cfg.state_heads)
        decay, rate = FASTEST * (w + self.decay).sigmoid(), a.sigmoid()
        removal = F.normalize(k * self.removal, dim=-1)
        k = k * (1 + (rate - 1) * self.damping)
        # A token is two steps of a scan: the first removes, the second decays and writes. What is
        # removed is divided by the decay that comes after it.
        zero, write = torch.zeros_like(r), rate * removal / decay.exp()
        pairs = (zero, r), (write, k), (zero, v), (zero, decay), (removal, zero)
        q, keys, values, decays, removes = (torch.stack(pair, 3).flatten(2, 3) for pair in pairs)
        twice = Flow(flow.pos.repeat_interleave(2, 1), flow.contiguous)
        output, state = scan(q, keys, values, decays, twice, before[1] if before else None, removes)
        output = output[:, :, 1::2]
        output = F.layer_norm(output, output.shape[-1:], None, None, self.cfg.eps)
        output = output * self.gain + self.offset + (r * k * self.bonus).sum(-1, True) * v
        gate = self.g_up(self.g_down(g).sigmoid())
        return self.out_proj(output.transpose(1, 2).flatten(2).to(x.dtype) * gate), (last, state)

    def values(self, x: Tensor, flow: Flow) -> Tensor:
        """The values of x (B, T, C), which draw near those of the first such block of this pass."""
        values: Tensor = self.v(x)
        mixes = self.cfg.value_rank is not None
        first: Any = flow.cached(TimeMix7, lambda: None if mixes else values)
        need(first is not None, NO_VALUES)
        return torch.lerp(values, first, self.v_up(self.v_down(x)).sigmoid()) if mixes else values

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        """Slow channels first, and a removal of what stands at the key."""
        super().reset(std, generator)
        self.decay.copy_(torch.linspace(-5.5, 0.5, self.cfg.inner).view_as(self.decay))
        for weight in (self.removal, self.damping, self.gain):
            nn.init.ones_(weight)
