"""Blocks in C: a view of a model whose stacks are computed by kernels/stack.c where nobody looks
into them.

    fuse(view)      of an exactly prepacked view (prepacked.py), or of a model with quantised weights

A token's step otherwise waits for Python between its products. ``FusedStack`` stands in a stack's
place and computes all its blocks in one call; with a tape, with gradients, or with a cache that is
not in pages, the blocks' own forward passes run. Their norms and activations are then the same
kernels, so that both ways give the same bits. A block of another kind (experts, a part of
somebody's own) leaves its stack as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .. import config
from . import kernels
from .attention import Attention
from .block import Block, Stack
from .cache import Cache
from .feedforward import ACTIVATIONS, MLP, GatedMLP
from .flow import Flow
from .kernels import stack as c
from .kernels.library import has
from .norm import LayerNorm, RMSNorm
from .paged import PagedCache
from .position import Alibi, Learned, Position, RelativeBias, Rotary, Sinusoidal
from .prepacked import PrepackedLinear, replaced
from .quantized import QuantizedWeight

M = TypeVar("M", bound=nn.Module)
MOST = 512  # tokens of a call; what a longer row holds comes after it
POSITIONS = (Position, Sinusoidal, Learned, Rotary, RelativeBias, Alibi)


class Unfit(Exception):
    """A stack whose weights the kernels cannot read stays as it is."""


def fits(model: nn.Module) -> bool:
    """Whether a decoder's blocks are of the kinds that stack.c knows, whatever its weights lie
    in."""
    stack, dtype = getattr(model, "decoder", None), next(model.parameters()).dtype
    return has("stack") and type(stack) is Stack and suits(stack, dtype)


def suits(stack: Stack, dtype: torch.dtype) -> bool:
    """Whether a stack's position, blocks, attention and feed-forward are such, and nobody listens
    at them."""
    watched = (
        part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part)
        for part in stack.modules()
    )
    if (
        dtype not in (torch.float32, torch.bfloat16)
        or any(watched)
        or type(stack.position) not in POSITIONS
    ):
        return False
    blocks: list[Any] = [*stack.blocks]
    if not all(type(block) is Block and type(block.attn) is Attention for block in blocks):
        return False
    across = [block.cross for block in blocks if block.cross is not None]
    attns, ffns = (
        [block.attn for block in blocks],
        [block.ffn for block in blocks if block.ffn is not None],
    )
    acts = {ACTIVATIONS[name] for name in c.ACTIVATIONS}
    return (
        all(
            attn.causal and isinstance(attn.mask, config.Full | config.Causal | config.Window)
            for attn in attns
        )
        and len({attn.head_dim for attn in attns}) == 1
        and all(type(attn) is Attention for attn in across)
        and all(attn.head_dim % 2 == 0 for attn in attns + across)
        and all(type(ffn) in (MLP, GatedMLP) and ffn.act in acts for ffn in ffns)
    )


def fuse(model: M) -> M:
    """A view of ``model``, or of a view of it, whose stacks are FusedStacks where they can be."""
    if not has("stack"):
        return model
    dtype, swaps = next(model.parameters()).dtype, dict[nn.Module, nn.Module]()
    for stack in (
        module for module in model.modules() if type(module) is Stack and suits(module, dtype)
    ):
        parts = {
            part: exact(part)
            for part in stack.modules()
            if type(part) in (RMSNorm, LayerNorm, MLP, GatedMLP)
        }
        try:
            swaps[stack] = FusedStack(replaced(stack, parts), dtype)
        except Unfit:
            continue
    return replaced(model, swaps)


def exact(part: nn.Module) -> nn.Module:
    """A norm or feed-forward around the same parameters, computed by kernels of our own."""
    if isinstance(part, RMSNorm | LayerNorm):
        kind: type[nn.Module] = KernelRMSNorm if isinstance(part, RMSNorm) else KernelLayerNorm
        return _around(part, kind)
    name = next(name for name, act in ACTIVATIONS.items() if act is part.act)
    return _around(part, type(part), act=KernelActivation(name))


def _around(part: nn.Module, kind: type[nn.Module], **others: object) -> nn.Module:
    made = object.__new__(kind)
    made.__dict__.update(part.__dict__, **others)
    return made


class KernelActivation:
    """An activation by our kernels."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
        """Of each number of x."""
        return c.activation(self.name, x) if _computed(x) else ACTIVATIONS[self.name](x)


class KernelRMSNorm(RMSNorm):
    """An RMSNorm by our kernels."""

    def forward(self, x: Tensor) -> Tensor:
        return c.norm(x, *norm_of(self, x.dtype)) if _computed(x) else super().forward(x)


class KernelLayerNorm(LayerNorm):
    """A LayerNorm by our kernels."""

    def forward(self, x: Tensor) -> Tensor:
        return c.norm(x, *norm_of(self, x.dtype)) if _computed(x) else super().forward(x)


def _computed(x: Tensor) -> bool:
    return not torch.is_grad_enabled() and x.dtype in (torch.float32, torch.bfloat16)


def norm_of(part: nn.Module, dtype: torch.dtype) -> tuple[c.Norm, list[Tensor]]:
    """A norm as stack.c takes it, and what must live as long; Unfit for one of another kind."""
    if isinstance(part, nn.Identity):
        return c.Norm(), []
    if not isinstance(part, RMSNorm | LayerNorm):
        raise Unfit
    shift = part.bias if isinstance(part, LayerNorm) else None
    gain: Tensor | None = part.weight
    if isinstance(part, RMSNorm) and part.offset and gain is not None:
        gain = gain + part.offset
    own = [None if one is None else one.detach().to(dtype).contiguous() for one in (gain, shift)]
    made = c.Norm.of(own[0], own[1], part.eps, isinstance(part, LayerNorm))
    return made, [one for one in own if one is not None]


class FusedStack(Stack):
    """A stack of a decoder around the modules of another, whose blocks are computed together."""

    def __init__(self, stack: Stack, dtype: torch.dtype) -> None:
        self.__dict__.update(stack.__dict__)
        self.dtype, self.kept = dtype, list[Any]()
        blocks: list[Any] = [*self.blocks]
        self.head_dim = blocks[0].attn.head_dim
        self.described = (c.Block * len(self.blocks))(*map(self.describe, blocks))

    def forward(self, x: Tensor, flow: Flow, cache: Cache | None = None) -> Tensor:
        fits = isinstance(cache, PagedCache) and cache.dtype == x.dtype == self.dtype
        if not fits or flow.tape is not None or torch.is_grad_enabled() or self.training:
            return super().forward(x, flow, cache)
        assert isinstance(cache, PagedCache)
        x = self.project(self.first_norm(self.position.embed(x, flow))).clone()
        texts, cos, sin = cache.texts, None, None
        if isinstance(self.position, Rotary):
            cos, sin = (
                table.view(-1, table.shape[-1])
                for table in self.position.cos_sin(self.head_dim, x.dtype, flow)
            )
        bias = cache.bias(self.position, self.position.bias)
        for first in range(0, x.shape[1], MOST):
            own = slice(first, first + MOST)
            places = texts.rows[own], texts.lengths[own]
            (tables, slots), (near, near_slots) = texts.own, texts.windows
            told = c.Rows(c.Seen(tables, *places, texts.longest), slots[own], bias=bias)
            told.windows, told.window_slots = c.Seen(near, *places, texts.longest), near_slots[own]
            if texts.source is not None:
                rows, lengths = texts.source.rows[own], texts.source.lengths[own]
                told.source = c.Seen(texts.source.tables, rows, lengths, texts.source.longest)
            if cos is not None and sin is not None:
                told.cos, told.sin, told.neighbours = cos[own], sin[own], self.neighbours
            c.run_stack(self.described, cache.addresses, x[0, own], told)
        return self.last_norm(x)  # type: ignore[no-any-return]

    @property
    def neighbours(self) -> bool:
        """Whether it is neighbouring numbers that are turned together."""
        return isinstance(self.position, Rotary) and self.position.interleaved

    def describe(self, block: Any) -> c.Block:
        """A block as stack.c takes it; Unfit where its weights are not in the kernels' order."""
        attn, cross, ffn = block.attn, block.cross, block.ffn
        names = [
            f"{name}{norm}" for name in ("attn", "cross", "ffn") for norm in ("_norm", "_post_norm")
        ]
        made = c.Block(**{name: self.norm(getattr(block, name, None)) for name in names})
        made.self = self.heads(attn, attn.q, attn.k, attn.v)
        if cross is not None:
            made.cross = self.heads(cross, cross.q)
        made.place = c.PLACES.index(block.place)
        if ffn is not None:
            made.gated = type(ffn) is GatedMLP
            made.up[:] = self.matrices(2, *([ffn.gate, ffn.up] if made.gated else [ffn.up]))
            (made.down,) = self.matrices(1, ffn.down)
            made.hidden = ffn.down.in_features
            made.activation = c.ACTIVATIONS.index(ffn.act.name)
        return made

    def heads(self, attn: Any, *layers: Any) -> c.Heads:
        """An attention whose heads ``layers`` make."""
        made = c.Heads(q_norm=self.norm(attn.q_norm), k_norm=self.norm(attn.k_norm))
        made.qkv[:] = self.matrices(3, *layers)
        (made.out,) = self.matrices(1, attn.out)
        made.heads, made.kv_heads, made.dim = attn.heads, attn.kv_heads, attn.head_dim
        made.window = (
            attn.mask.size if isinstance(attn.mask, config.Window) and not attn.cross else 0
        )
        made.scale, made.softcap = attn.scale, attn.softcap or 0.0
        return made

    def norm(self, part: nn.Module | None) -> c.Norm:
        """A norm, its parameters kept."""
        made, held = norm_of(nn.Identity() if part is None else part, self.dtype)
        self.kept += held
        return made

    def matrices(self, room: int, *layers: Any) -> Sequence[c.Matrix]:
        """The products of layers on one input, filled up with empty ones."""
        first, found = layers[0], list[c.Matrix]()
        if isinstance(first, PrepackedLinear) and all(
            getattr(one, "packed", None) is first.packed for one in layers
        ):
            found.append(self.matrix(first.packed.matrix, first.packed.bias))
        else:
            for layer in layers:
                alone = isinstance(layer, PrepackedLinear) and len(layer.packed.rows) == 1
                if alone:
                    found.append(self.matrix(layer.packed.matrix, layer.packed.bias))
                elif isinstance(layer.weight, QuantizedWeight) and layer.prepackable:
                    found.append(self.matrix(layer.weight.held.packed(), layer.bias))
                else:
                    raise Unfit
        return found + [c.Matrix()] * (room - len(found))

    def matrix(self, packed: Any, bias: Tensor | None) -> c.Matrix:
        """A packed weight and its bias, kept."""
        of_floats = {"bf16": torch.bfloat16, "fp32": torch.float32}
        if not isinstance(packed, kernels.Packed) or packed.build != kernels.path():
            raise Unfit
        if of_floats.get(packed.kind, self.dtype) != self.dtype or (
            packed.kind == "bf16" and packed.inputs % 2
        ):
            raise Unfit
        bias = None if bias is None else bias.detach().float().contiguous()
        self.kept += [packed, bias]
        return c.Matrix.of(packed, bias)
