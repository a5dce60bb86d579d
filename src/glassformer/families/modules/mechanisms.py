"""The modules of ``families.mechanisms``."""

from __future__ import annotations

from torch import nn

from ...core.nn.build import builds
from ...core.nn.model import Block
from ..mechanisms import FirstBlock


@builds(FirstBlock)
class FirstBlockModule(Block):
    """A block without the norm before its attention."""

    def __init__(self, cfg: FirstBlock, dim: int, causal: bool, dropout: float) -> None:
        super().__init__(cfg, dim, causal, dropout)
        self.attn_norm = nn.Identity()
