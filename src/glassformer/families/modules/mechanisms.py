"""The modules of ``families.mechanisms``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...core import config
from ...core.errors import need
from ...core.nn.additive_position import Learned, RelativeBias
from ...core.nn.build import builds
from ...core.nn.flow import Flow, TracedModule, document_starts
from ...core.nn.layers import Embed
from ...core.nn.model import Block, Stack
from ...core.nn.position import Rotary
from ..mechanisms import FirstBlock, LearnedWithBias, LoopedStack, MaskedEmbed, StoredRotary


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
        super().__init__(replace(cfg, depth=min(cfg.depth, 1)), dim, width)
        self.blocks.extend([again(self.blocks[0]) for _ in range(1, cfg.depth)])


@builds(MaskedEmbed)
class MaskedEmbedModule(Embed):
    """One vector a token, zeros for a masked one, scaled by the share of tokens that are left."""

    def __init__(self, cfg: MaskedEmbed, dim: int) -> None:
        super().__init__(cfg, dim)
        self.mask = cfg.mask

    def forward(self, tokens: Tensor, flow: Flow, segments: Tensor | None = None) -> Tensor:
        """tokens (B, T) -> (B, T, C)."""
        need(
            getattr(flow.engine, "name", "") != "ring",
            "MaskedEmbed counts the masked tokens of a whole document; train without "
            "parallel.context.",
        )
        pos, masked = flow.pos.expand_as(tokens), tokens == self.mask
        document = document_starts(pos).cumsum(1)  # (B, T)
        near = (document[:, :, None] == document[:, None, :]) & (pos >= 0)[:, None, :]
        kind = self.token.weight.dtype
        near = near.to(torch.promote_types(kind, torch.float32))  # (B, T, T): of one document
        hidden = (near @ masked[..., None].to(near.dtype)) / near.sum(-1, keepdim=True).clamp(min=1)
        factor = (TRAINED / (1 - hidden)).masked_fill(masked[..., None], 0.0).to(kind)
        return flow.look(flow.embed_path, "token", self.token(tokens) * factor)


TRAINED = 1 - 0.15 * 0.8  # the share of tokens that no mask hid while the family was trained


@builds(StoredRotary)
class StoredRotaryModule(Rotary):
    """Rotary positions whose frequencies are weights that do not train."""

    def __init__(self, cfg: StoredRotary, dim: int, heads: int, causal: bool) -> None:
        super().__init__(cfg, dim, heads, causal)
        self.inv_freq = nn.Parameter(torch.empty(dim // heads // 2), requires_grad=False)

    def frequencies(self, turned: int, device: torch.device) -> tuple[Tensor, float]:
        """Radians a position (turned / 2), and no factor."""
        return self.inv_freq, 1.0

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> StoredRotaryModule:
        """Moves them to another device, and leaves them in single precision."""

        def move(x: Tensor) -> Tensor:
            moved = fn(x)
            return moved if moved.dtype == x.dtype else x.to(moved.device)

        return super()._apply(move, recurse)  # type: ignore[no-any-return, no-untyped-call]

    def reset(self, std: float, generator: torch.Generator | None) -> None:
        self.inv_freq.copy_(super().frequencies(2 * len(self.inv_freq), self.inv_freq.device)[0])


def again(module: Any) -> Any:
    """The module in one more place: what is set in the one is set in the other."""
    copy = object.__new__(type(module))
    nn.Module.__init__(copy)  # hooks of its own
    copy.__dict__.update({name: x for name, x in vars(module).items() if "hooks" not in name})
    traced = {
        name: again(child)
        for name, child in module._modules.items()
        if isinstance(child, TracedModule)
    }
    if traced:
        copy._modules = module._modules | traced
    return copy
