"""LFM2's short convolution between two gates."""

from __future__ import annotations

from torch import Tensor

from ...core.errors import need
from ...core.nn.build import builds
from ...core.nn.cache import MixerState
from ...core.nn.flow import Flow, TracedModule
from ...core.nn.layers import linear
from ...core.nn.position import Position
from ..mixers import ShortConv
from .scan import CausalConv, states_of


@builds(ShortConv)
class ShortConvModule(TracedModule):
    """out(c * convolution(b * x))."""

    writes = ("out_proj.weight",)

    def __init__(self, cfg: ShortConv, dim: int, causal: bool, dropout: float) -> None:
        super().__init__()
        need(causal, "ShortConv reads from left to right; give it a causal stack.")
        self.in_proj = linear(dim, 3 * dim, cfg.bias)
        self.conv = CausalConv(dim, cfg.kernel, cfg.bias)
        self.out_proj = linear(dim, dim, cfg.bias)

    def forward(
        self, x: Tensor, flow: Flow, position: Position, state: MixerState | None = None
    ) -> Tensor:
        """x (B, T, C) -> what is added to the residual stream (B, T, C)."""
        b, c, x = self.in_proj(flow.look(self, "in", x)).chunk(3, -1)
        mixed, last = self.conv(b * x, flow, states_of(state)[0])
        if state is not None:
            state.tensors = (last,)
        return flow.look(self, "write", self.out_proj(c * mixed))
