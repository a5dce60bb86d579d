"""What each token thinks by itself: MLP, gated MLP, mixture of experts.

N tokens, C model dim, E experts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import config
from ..errors import UserError
from .build import builds
from .flow import Flow, Part
from .linear import linear
from .packed import together


def relu2(x: Tensor) -> Tensor:
    """Squared ReLU (So et al. 2021)."""
    return F.relu(x).square()


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by its tanh approximation (GPT-2)."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": relu2,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
    "tanh": torch.tanh,
}


@builds(config.MLP)
class MLP(Part):
    """down(act(up(x)))."""

    def __init__(self, cfg: config.MLP, dim: int) -> None:
        super().__init__()
        self.act = ACTIVATIONS[cfg.act]
        self.up = linear(dim, cfg.hidden, cfg.bias)
        self.down = linear(cfg.hidden, dim, cfg.bias)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        hidden = flow.look(self, "hidden", self.act(self.up(x)))
        return flow.look(self, "write", self.down(hidden))


@builds(config.GatedMLP)
class GatedMLP(Part):
    """down(act(gate(x)) * up(x))."""

    joined = ("gate", "up")  # of one and the same x

    def __init__(self, cfg: config.GatedMLP, dim: int) -> None:
        super().__init__()
        self.act = ACTIVATIONS[cfg.act]
        self.gate = linear(dim, cfg.hidden, cfg.bias)
        self.up = linear(dim, cfg.hidden, cfg.bias)
        self.down = linear(cfg.hidden, dim, cfg.bias)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        gate, up = together(x, self.gate, self.up)
        hidden = flow.look(self, "hidden", self.act(gate) * up)
        return flow.look(self, "write", self.down(hidden))


@builds(config.MoE)
class MoE(Part):
    """Each token goes to its ``top_k`` experts; their answers are summed by the router's weights (Mixtral).

    The experts' tables are stacked: up and gate (E, hidden, C), down (E, C, hidden). Dropless: every token
    reaches every expert it chose. ``flow.aux`` gets "balance" and "z" where they are weighed.
    """

    def __init__(self, cfg: config.MoE, dim: int) -> None:
        super().__init__()
        if cfg.expert.bias:
            raise UserError("MoE experts have no biases here; set expert.bias = false.")
        self.cfg, self.act = cfg, ACTIVATIONS[cfg.expert.act]
        self.router = linear(dim, cfg.experts, bias=False)
        self.up = nn.Parameter(torch.empty(cfg.experts, cfg.expert.hidden, dim))
        self.down = nn.Parameter(torch.empty(cfg.experts, dim, cfg.expert.hidden))
        gated = isinstance(cfg.expert, config.GatedMLP)
        self.gate = nn.Parameter(torch.empty(cfg.experts, cfg.expert.hidden, dim)) if gated else None

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        tokens = x.flatten(0, -2)  # (N, C)
        logits = flow.look(self, "router", self.router(tokens).float())  # (N, E)
        share = logits.softmax(-1)
        weight, chosen = share.topk(self.cfg.top_k, dim=-1)  # (N, top_k)
        if self.cfg.normalize:
            weight = weight / weight.sum(-1, keepdim=True)
        weight, chosen = flow.look(self, "weight", weight), flow.look(self, "chosen", chosen)
        self.losses(flow, logits, share, chosen)
        write = torch.zeros_like(tokens)
        for expert in range(self.cfg.experts):
            token, slot = (chosen == expert).nonzero(as_tuple=True)
            answer = self.answer(expert, tokens[token]) * weight[token, slot, None].to(x.dtype)
            write.index_add_(0, token, answer.to(x.dtype))
        return flow.look(self, "write", write.view_as(x))

    def answer(self, expert: int, x: Tensor) -> Tensor:
        """What one expert writes for its tokens x (N, C)."""
        hidden = F.linear(x, self.up[expert])
        gated = self.act(hidden) if self.gate is None else self.act(F.linear(x, self.gate[expert])) * hidden
        return F.linear(gated, self.down[expert])

    def losses(self, flow: Flow, logits: Tensor, share: Tensor, chosen: Tensor) -> None:
        """Load balancing (Fedus et al. 2021, equation 4, over all chosen) and router z (Zoph et al. 2022, 5)."""
        if self.cfg.balance:
            used = F.one_hot(chosen, self.cfg.experts).float().sum(1).mean(0)  # choices per token, (E,)
            flow.add("balance", self.cfg.balance * self.cfg.experts * (used * share.mean(0)).sum() / self.cfg.top_k)
        if self.cfg.z:
            flow.add("z", self.cfg.z * logits.logsumexp(-1).square().mean())
