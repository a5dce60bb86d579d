"""Feed-forward layers, applied to each token by itself: MLP and gated MLP (mixtures of them:
experts.py)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import config
from .build import builds
from .flow import Flow, TracedModule
from .linear import fused_linear, linear


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
class MLP(TracedModule):
    """down(act(up(x)))."""

    writes = ("down.weight",)

    def __init__(self, cfg: config.MLP, dim: int) -> None:
        super().__init__()
        self.act = ACTIVATIONS[cfg.act]
        self.up = linear(dim, cfg.hidden, cfg.bias)
        self.down = linear(cfg.hidden, dim, cfg.bias)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        x = flow.look(self, "in", x)
        hidden = flow.look(self, "hidden", self.act(flow.look(self, "pre", self.up(x))))
        return flow.look(self, "write", self.down(hidden))


@builds(config.GatedMLP)
class GatedMLP(TracedModule):
    """down(act(gate(x)) * up(x))."""

    fused_projections = ("gate", "up")  # of one and the same x
    writes = ("down.weight",)

    def __init__(self, cfg: config.GatedMLP, dim: int) -> None:
        super().__init__()
        self.act = ACTIVATIONS[cfg.act]
        self.gate = linear(dim, cfg.hidden, cfg.bias)
        self.up = linear(dim, cfg.hidden, cfg.bias)
        self.down = linear(cfg.hidden, dim, cfg.bias)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        x = flow.look(self, "in", x)
        gate, up = fused_linear(x, self.gate, self.up)
        gate = flow.look(self, "gate", self.act(flow.look(self, "pre", gate)))
        hidden = flow.look(self, "hidden", gate * flow.look(self, "up", up))
        return flow.look(self, "write", self.down(hidden))
