"""The module of ``GatedExpert``."""

from __future__ import annotations

from torch import Tensor

from ...core.nn.build import builds
from ...core.nn.flow import Flow
from ...core.nn.layers import GatedMLP, fused_linear
from ..gated_expert import GatedExpert
from .scan import ShapedModule


@builds(GatedExpert)
class GatedExpertModule(ShapedModule, GatedMLP):
    """down(act(gate(x)) * up(x) * sigmoid(share(x)))."""

    exact = ("share",)

    def forward(self, x: Tensor, flow: Flow) -> Tensor:
        x = flow.look(self, "in", x)
        gate, up = fused_linear(x, self.gate, self.up)
        gate = flow.look(self, "gate", self.act(flow.look(self, "pre", gate)))
        hidden = gate * flow.look(self, "up", up) * self.share(x).sigmoid()
        return flow.look(self, "write", self.down(flow.look(self, "hidden", hidden)))
