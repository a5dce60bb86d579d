"""The modules of ``families.mechanisms``."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ...core import config
from ...core.nn.additive_position import Learned, RelativeBias
from ...core.nn.build import builds
from ...core.nn.flow import TracedModule
from ...core.nn.model import Block, Stack
from ..mechanisms import FirstBlock, LearnedWithBias, LoopedStack


@builds(FirstBlock)
class FirstBlockModule(Block):
    """A block without the norm before its attention."""

    def __init__(self, cfg: config.Block, dim: int, causal: bool, dropout: float) -> None:
        super().__init__(cfg, dim, causal, dropout)
        self.attn_norm = nn.Identity()


@builds(LearnedWithBias)
class LearnedWithBiasModule(Learned):
    """Vectors of positions beside the embeddings, biases of distances beside the scores."""

    def __init__(self, cfg: LearnedWithBias, dim: int, heads: int, causal: bool) -> None:
        super().__init__(cfg, dim, heads, causal)
        self.relative = RelativeBias(cfg.relative, dim, heads, causal)

    def bias(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Biases (B, H, T, S) of positions of queries (B or 1, T) and keys."""
        return self.relative.bias(q_pos, k_pos)


@builds(LoopedStack)
class LoopedStackModule(Stack):
    """A stack whose blocks have places of their own on a tape, and the weights of the first."""

    def __init__(self, cfg: config.Stack, dim: int, width: int) -> None:
        super().__init__(cfg, dim, width)
        first, *others = self.blocks
        self.blocks = nn.ModuleList([first, *(again(first) for _ in others)])


def again(module: Any) -> Any:
    """The module in one more place: what is set in the one is set in the other."""
    copy = object.__new__(type(module))
    copy.__dict__.update(module.__dict__)
    traced = {
        name: again(child)
        for name, child in module._modules.items()
        if isinstance(child, TracedModule)
    }
    if traced:
        copy._modules = module._modules | traced
    return copy
