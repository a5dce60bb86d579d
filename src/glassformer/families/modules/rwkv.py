"""RWKV-4 and RWKV-7: a mean of values that forgets or a state that is replaced, and a feed-forward,
all of which read the token before.

B batch, T tokens, C channels, H heads, N channels of a head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import need
from ...core.nn.build import builds
from ...core.nn.flow import Flow
from ..mixers import ChannelMix, ChannelMix7, TimeMix, TimeMix7
from .scan import StateMixer, States, by_head, convolve, in_fp32, split_heads

CHUNK = 16  # tokens whose means are computed side by side
NEVER = -1e30  # logarithm of a weight that is none
FASTEST = -math.exp(-0.5)  # logarithm of the least that RWKV-7 keeps of a channel in a step
FIRST_VALUES = "values of the first TimeMix7"


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
        """Later channels of a token look more at itself."""
        start = float(self.share_of_previous)
        for name in self.names:
            share = getattr(self, f"mix_{name}")
            share.copy_(torch.linspace(start, 1 - start, len(share)))


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


def replacing_scan(
    r: Tensor,
    decay: Tensor,
    k: Tensor,
    v: Tensor,
    removal: Tensor,
    rate: Tensor,
    flow: Flow,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Read by r a state whose entries are replaced token by token; also returns the last state.

    S = exp(decay) S - rate removal (removal^T S) + k v^T with S of the token before on the right,
    and the output is r^T S. All are (B, H, T, N), the state is (B, H, N, N).
    """
    rows, heads, columns, size = k.shape
    if state is None:
        state = v.new_zeros(rows, heads, size, size)
    pos, outputs = flow.pos.expand(rows, columns)[:, None, :, None], []
    decay, k, write = (x * (pos >= 0) for x in (decay, k, rate * removal))
    tensors = (r, decay, k, v, removal, write, pos == 0)
    for piece in zip(*(torch.split(x, CHUNK, 2) for x in tensors), strict=True):
        output, state = _replacing_chunk(state, *piece)
        outputs.append(output)
    return torch.cat(outputs, 2), state


def _replacing_chunk(
    state: Tensor,
    r: Tensor,
    decay: Tensor,
    k: Tensor,
    v: Tensor,
    removal: Tensor,
    write: Tensor,
    starts: Tensor,
) -> tuple[Tensor, Tensor]:
    """``replacing_scan`` of one chunk; ``starts`` (B, 1, L, 1) marks where a document begins."""
    total, document = decay.cumsum(2), starts.cumsum(2)
    same = (document == document.mT).tril()
    before = document == 0  # tokens of the document that the state is of
    # What is left at row t of what was written at column s is exp(total_t - total_s). Its factors
    # stay below exp(0.61 * CHUNK), so that no number overflows and products are as exact as sums.
    growth = (-total).exp()
    k, write, r = k * growth, write * growth, r * total.exp()
    removal = removal * (total - decay).exp()
    answer = before * (removal @ state) + (removal @ k.mT * same).tril(-1) @ v
    overlap = (removal @ write.mT * same).tril(-1)
    answer = torch.linalg.solve_triangular(overlap, answer, upper=False, unitriangular=True)
    output = before * (r @ state) + (r @ k.mT * same) @ v - (r @ write.mT * same) @ answer
    last = same[..., -1:, :].mT
    state = before[..., -1:, :] * state + (k * last).mT @ v - (write * last).mT @ answer
    return output, total[..., -1:, :].exp().mT * state


@builds(TimeMix7)
class TimeMix7Module(ShiftMixer):
    """Mix with the token before, project, replace and read the state, norm, gate, project back."""

    names, writes, share_of_previous = "rwkvag", ("out_proj.weight",), True

    def mix(self, x: Tensor, flow: Flow, before: States) -> tuple[Tensor, States]:
        heads = self.cfg.heads
        last, state = before or (None, None)
        (r, w, k, v, a, g), last = self.mixes(x, flow, before)
        rate = in_fp32(self.a_up(self.a_down(a))).sigmoid()
        decay = FASTEST * in_fp32(self.w_up(self.w_down(w).tanh())).sigmoid()
        r, k, v = map(in_fp32, (self.r(r), self.k(k), self.mix_values(v, flow)))
        removal = F.normalize(by_head(k * self.removal, heads), dim=-1)
        k = k * (1 + (rate - 1) * self.damping)
        bonus = split_heads(r * k * self.bonus, heads).sum(-1, keepdim=True) * split_heads(v, heads)
        r, decay, k, v, rate = (by_head(x, heads) for x in (r, decay, k, v, rate))
        output, state = replacing_scan(r, decay, k, v, removal, rate, flow, state)
        unit = F.layer_norm(output.transpose(1, 2), output.shape[-1:], None, None, self.cfg.eps)
        output = unit.flatten(2) * self.gain + self.offset + bonus.flatten(2)
        gate = self.g_up(self.g_down(g).sigmoid())
        return self.out_proj(output.to(x.dtype) * gate), (last, state)

    def mix_values(self, x: Tensor, flow: Flow) -> Tensor:
        """The values of x (B, T, C), which draw near those of the first such block of this pass."""
        values, rank = self.v(x), self.cfg.value_rank

        def first() -> Tensor:
            before = "TimeMix7.value_rank mixes in the values of an earlier block"
            need(rank is None, f"{before}, and this is the first; leave value_rank out of it.")
            return values

        earliest = flow.cached(FIRST_VALUES, first)
        if rank is None:
            return values
        return torch.lerp(values, earliest, self.v_up(self.v_down(x)).sigmoid())

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        """Slow channels first, and small bonuses, as its authors begin."""
        super().reset(std, generator)
        self.w_up.bias.copy_(6 * torch.linspace(0, 1, self.cfg.inner) ** 2 - 5.5)
        for weight, start in (
            (self.removal, 0.7),
            (self.damping, 1.0),
            (self.bonus, -0.04),
            (self.gain, 1.0),
        ):
            nn.init.constant_(weight, start)


@builds(ChannelMix7)
class ChannelMix7Module(ShiftMixer):
    """Mix with the token before, up, square, down."""

    names, writes, share_of_previous = "k", ("down.weight",), True

    def mix(self, x: Tensor, flow: Flow, before: States) -> tuple[Tensor, States]:
        (k,), last = self.mixes(x, flow, before)
        pre = flow.look(self, "pre", self.up(k))
        return self.down(flow.look(self, "hidden", pre.relu().square())), (last,)
