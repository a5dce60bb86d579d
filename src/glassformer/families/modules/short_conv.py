"""LFM2's short convolution between two gates."""

from __future__ import annotations

from torch import Tensor

from ...core.nn.build import builds
from ...core.nn.flow import Flow
from ..mixers import ShortConv
from .scan import StateMixer, States


@builds(ShortConv)
class ShortConvModule(StateMixer):
    """out(c * convolution(b * x))."""

    def mix(self, x: Tensor, flow: Flow, before: States) -> tuple[Tensor, States]:
        b, c, x = self.in_proj(x).chunk(3, -1)
        mixed, last = self.conv(b * x, flow, *(before or (None,)))
        return self.out_proj(c * mixed), (last,)
