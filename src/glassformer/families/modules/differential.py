"""The module of ``DifferentialAttention``.

B batch, T queries, S keys, H heads, K key-value heads, D head dim.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.nn.attention import Attention
from ...core.nn.build import builds
from ...core.nn.flow import Flow
from ..mixers import LAMBDAS, DifferentialAttention
from .scan import ShapedModule, in_fp32


@builds(DifferentialAttention)
class DifferentialAttentionModule(ShapedModule, Attention):
    """out((1 - start) norm(z1 - lambda z2)), where z1 and z2 are of the two heads of a pair."""

    @property
    def start(self) -> float:
        """Lambda's first value, by the number of the block."""
        block = int(self.path.split(".")[2])  # of decoder.blocks.3.attn
        return 0.8 - 0.6 * math.exp(-0.3 * block)

    def attend(self, flow: Flow, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        """Each head's mixture of the values of two key-value heads (B, H, T, 2 D)."""
        pairs = torch.cat(v.chunk(2, 1), -1)  # (B, K / 2, S, 2 D)
        # engines take keys as wide as values: zeros add nothing to a score
        zeros = (0, self.head_dim)
        return super().attend(
            flow, F.pad(q, zeros), F.pad(k, zeros), torch.cat((pairs, pairs), 1), *rest
        )

    def finish(self, z: Tensor, x: Tensor) -> Tensor:
        """The mixtures z (B, H, T, 2 D) -> those of pairs (B, H / 2, T, 2 D)."""
        q1, k1, q2, k2 = (in_fp32(getattr(self, name)) for name in LAMBDAS)
        factor = (q1 * k1).sum().exp() - (q2 * k2).sum().exp() + self.start
        first, second = z.chunk(2, 1)
        return (1 - self.start) * F.rms_norm(
            first - factor * second, z.shape[-1:], None, self.cfg.eps
        )

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        for name in LAMBDAS:
            nn.init.normal_(getattr(self, name), std=self.cfg.lambda_std, generator=generator)
