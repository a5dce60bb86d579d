"""The module of ``GatedExpert``."""

from __future__ import annotations

from torch import Tensor

from ...core.nn.build import builds
from ...core.nn.flow import Flow
from ...core.nn.layers import GatedMLP, fused_linear, linear
from ..gated_expert import GatedExpert


@builds(GatedExpert)
class GatedExpertModule(GatedMLP):
    """down(act(gate(x)) * up(x) * sigmoid(share(x)))."""

    exact = ("share",)

    def __init__(self, cfg: GatedExpert, dim: int) -> None:
        super().__init__(cfg, dim)
        self.share = linear(dim, 1, bias=False)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        x = flow.look(self, "in", x)
        gate, up = fused_linear(x, self.gate, self.up)
        gate = flow.look(self, "gate", self.act(flow.look(self, "pre", gate)))
        hidden = gate * flow.look(self, "up", up) * self.share(x).sigmoid()
        return flow.look(self, "write", self.down(flow.look(self, "hidden", hidden)))
