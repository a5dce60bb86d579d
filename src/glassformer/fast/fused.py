"""Blocks in C: a view of a model whose stacks are computed by kernels/stack.c where nobody looks
into them.

    fuse(view)      of an exactly prepacked view (prepacked.py), or of a model with quantized weights

A token's step otherwise waits for Python between its products. ``FusedStack`` stands in a stack's
place and computes all its blocks in one call; with a tape, with gradients, or with a cache that is
not in pages, the blocks' own forward passes run. Their norms and activations are then the same
kernels, so that both ways give the same bits. A block of another kind (experts, a part of
somebody's own) leaves its stack as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core import config
from ..core.nn.additive_position import Alibi, Learned, RelativeBias, Sinusoidal
from ..core.nn.attention import Attention
from ..core.nn.cache import Cache
from ..core.nn.cross_attention import CrossAttention
from ..core.nn.flow import Flow
from ..core.nn.layers import ACTIVATIONS, MLP, GatedMLP, LayerNorm, RMSNorm
from ..core.nn.model import Block, Stack
from ..core.nn.position import Position, Rotary
from ..core.nn.replace import replace_modules
from . import kernels
from .kernels import stack as c
from .kernels.matrices import FLOATS
from .kernels.shared_library import has
from .packed_layers import PrepackedLinear
from .paged import PagedCache
from .quantized import QuantizedWeight

M = TypeVar("M", bound=nn.Module)
MAX_TOKENS = 512  # tokens of a call; what a longer row holds comes after it
VECTORS = 32  # numbers in the two vectors that torch's loops take at a time, at most
POSITIONS = (Position, Sinusoidal, Learned, Rotary, RelativeBias, Alibi)


class UnsupportedStack(Exception):
    """A stack whose weights the kernels cannot read stays as it is."""


def supports_model(model: nn.Module) -> bool:
    """True where stack.c has kernels for all of a decoder's blocks, whatever the format of their
    weights."""
    stack, dtype = getattr(model, "decoder", None), next(model.parameters()).dtype
    return has("stack") and type(stack) is Stack and supports_stack(stack, dtype)


def supports_stack(stack: Stack, dtype: torch.dtype) -> bool:
    """True where stack.c has kernels for a stack's position, blocks, attention and feed-forward,
    and no hook watches them."""
    watched = (
        module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
        for module in stack.modules()
    )
    if dtype not in FLOATS.values() or any(watched) or type(stack.position) not in POSITIONS:
        return False
    blocks: list[Any] = [*stack.blocks]
    if not all(type(block) is Block and type(block.attn) is Attention for block in blocks):
        return False
    if any(
        block.place not in c.PLACES
        or block.residual_scale != 1
        or block.position is not None
        or block.attn.whole_norm
        for block in blocks
    ):
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
        and all(type(attn) is CrossAttention for attn in across)
        and all(attn.head_dim % 2 == 0 for attn in attns + across)
        and all(type(ffn) in (MLP, GatedMLP) and ffn.act in acts for ffn in ffns)
    )


def fuse(model: M) -> M:
    """A view of ``model``, or of a view of it, whose stacks are FusedStacks where they can be.

    Where they cannot, a token's activations are in whole vectors.
    """
    if not has("stack"):
        return model
    dtype, modules = next(model.parameters()).dtype, list[Any](model.modules())
    swaps = {
        ffn: _around(ffn, type(ffn), act=partial(in_vectors, ffn.act))
        for ffn in modules
        if type(ffn) in (MLP, GatedMLP) and ffn.down.in_features % VECTORS
    }
    for stack in modules:
        if type(stack) is not Stack or not supports_stack(stack, dtype):
            continue
        replacements = {
            submodule: with_kernels(submodule)
            for submodule in stack.modules()
            if type(submodule) in (RMSNorm, LayerNorm, MLP, GatedMLP)
        }
        try:
            swaps[stack] = FusedStack(replace_modules(stack, replacements), dtype)
        except UnsupportedStack:
            continue
    return replace_modules(model, swaps)


def in_vectors(act: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``act`` of x (.., H) in whole vectors: torch's scalar loop, which takes the rest of all rows,
    rounds otherwise."""
    padding = -x.shape[-1] % VECTORS
    return act(F.pad(x, (0, padding)))[..., : x.shape[-1]] if padding else act(x)


def with_kernels(module: nn.Module) -> nn.Module:
    """A norm or feed-forward around the same parameters, computed by kernels of our own."""
    if isinstance(module, RMSNorm | LayerNorm):
        kind: type[nn.Module] = KernelRMSNorm if isinstance(module, RMSNorm) else KernelLayerNorm
        return _around(module, kind)
    name = next(name for name, act in ACTIVATIONS.items() if act is module.act)
    return _around(module, type(module), act=KernelActivation(name))


def _around(module: nn.Module, kind: type[nn.Module], **attributes: object) -> nn.Module:
    clone = object.__new__(kind)
    clone.__dict__.update(module.__dict__, **attributes)
    return clone


class KernelActivation:
    """An activation by our kernels."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, x: Tensor) -> Tensor:
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
    return not torch.is_grad_enabled() and x.dtype in FLOATS.values()


def norm_of(module: nn.Module, dtype: torch.dtype) -> tuple[c.Norm, list[Tensor]]:
    """A norm as stack.c takes it, and what must live as long; UnsupportedStack for one of another kind."""
    if isinstance(module, nn.Identity):
        return c.Norm(), []
    if not isinstance(module, RMSNorm | LayerNorm):
        raise UnsupportedStack
    shift = module.bias if isinstance(module, LayerNorm) else None
    gain: Tensor | None = module.weight
    if isinstance(module, RMSNorm) and module.offset and gain is not None:
        gain = gain + module.offset
    vectors = [
        None if vector is None else vector.detach().to(dtype).contiguous()
        for vector in (gain, shift)
    ]
    c_norm = c.Norm.of(vectors[0], vectors[1], module.eps, isinstance(module, LayerNorm))
    return c_norm, [vector for vector in vectors if vector is not None]


class FusedStack(Stack):
    """A stack of a decoder around the modules of another, whose blocks are computed together."""

    def __init__(self, stack: Stack, dtype: torch.dtype) -> None:
        self.__dict__.update(stack.__dict__)
        self.dtype, self.live_tensors = dtype, list[Any]()
        blocks: list[Any] = [*self.blocks]
        self.head_dim = blocks[0].attn.head_dim
        self.described = (c.CBlock * len(self.blocks))(*map(self.describe, blocks))

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
        bias = cache.bias(self.position)
        for first in range(0, x.shape[1], MAX_TOKENS):
            chunk = slice(first, first + MAX_TOKENS)
            places = texts.rows[chunk], texts.lengths[chunk]
            (tables, slots), (near, near_slots) = texts.full_layout, texts.window_layout
            self_keys, windows = (
                c.VisibleKeys(table, *places, texts.longest) for table in (tables, near)
            )
            inputs = c.StackInputs(self_keys, slots[chunk], windows, near_slots[chunk], bias=bias)
            if texts.source is not None:
                rows, lengths = texts.source.rows[chunk], texts.source.lengths[chunk]
                inputs.source = c.VisibleKeys(
                    texts.source.tables, rows, lengths, texts.source.longest
                )
            if cos is not None and sin is not None:
                inputs.cos, inputs.sin, inputs.neighbours = cos[chunk], sin[chunk], self.neighbours
            c.run_stack(self.described, cache.addresses, x[0, chunk], inputs)
        return self.last_norm(x)  # type: ignore[no-any-return]

    @property
    def neighbours(self) -> bool:
        """True where rotary embedding turns neighbouring numbers together."""
        return isinstance(self.position, Rotary) and self.position.interleaved

    def describe(self, block: Any) -> c.CBlock:
        """A block as stack.c takes it; UnsupportedStack where its weights are not in the kernels' order."""
        attn, cross, ffn = block.attn, block.cross, block.ffn
        names = [
            f"{name}{norm}" for name in ("attn", "cross", "ffn") for norm in ("_norm", "_post_norm")
        ]
        c_block = c.CBlock(**{name: self.norm(getattr(block, name, None)) for name in names})
        c_block.self = self.heads(attn, attn.q, attn.k, attn.v)
        if cross is not None:
            c_block.cross = self.heads(cross, cross.q)
        c_block.place = c.PLACES.index(block.place)
        if ffn is not None:
            c_block.gated = type(ffn) is GatedMLP
            c_block.up[:] = self.matrices(2, *([ffn.gate, ffn.up] if c_block.gated else [ffn.up]))
            (c_block.down,) = self.matrices(1, ffn.down)
            c_block.hidden = ffn.down.in_features
            c_block.activation = c.ACTIVATIONS.index(ffn.act.name)
        return c_block

    def heads(self, attn: Any, *layers: Any) -> c.Heads:
        """An attention whose heads ``layers`` make."""
        c_heads = c.Heads(q_norm=self.norm(attn.q_norm), k_norm=self.norm(attn.k_norm))
        c_heads.qkv[:] = self.matrices(3, *layers)
        (c_heads.out,) = self.matrices(1, attn.out)
        c_heads.heads, c_heads.kv_heads, c_heads.dim = attn.heads, attn.kv_heads, attn.head_dim
        c_heads.window = (
            attn.mask.size if isinstance(attn.mask, config.Window) and not attn.cross else 0
        )
        c_heads.scale, c_heads.softcap = attn.scale, attn.softcap or 0.0
        return c_heads

    def norm(self, module: nn.Module | None) -> c.Norm:
        """A norm, its parameters kept."""
        c_norm, tensors = norm_of(nn.Identity() if module is None else module, self.dtype)
        self.live_tensors += tensors
        return c_norm

    def matrices(self, room: int, *layers: Any) -> Sequence[c.Matrix]:
        """The products of layers on one input, filled up with empty ones."""
        first, products = layers[0], list[c.Matrix]()
        if isinstance(first, PrepackedLinear) and all(
            getattr(sibling, "packed", None) is first.packed for sibling in layers
        ):
            products.append(self.matrix(first.packed.matrix, first.packed.bias))
        else:
            for layer in layers:
                alone = isinstance(layer, PrepackedLinear) and len(layer.packed.rows) == 1
                if alone:
                    products.append(self.matrix(layer.packed.matrix, layer.packed.bias))
                elif isinstance(layer.weight, QuantizedWeight) and layer.prepackable:
                    products.append(self.matrix(layer.weight.quantized_data.packed(), layer.bias))
                else:
                    raise UnsupportedStack
        return products + [c.Matrix()] * (room - len(products))

    def matrix(self, packed: Any, bias: Tensor | None) -> c.Matrix:
        """A packed weight and its bias, kept."""
        if not isinstance(packed, kernels.Packed) or packed.build != kernels.path():
            raise UnsupportedStack
        if FLOATS.get(packed.kind, self.dtype) != self.dtype or (
            packed.kind == "bf16" and packed.inputs % 2
        ):
            raise UnsupportedStack
        bias = None if bias is None else bias.detach().float().contiguous()
        self.live_tensors += [packed, bias]
        return c.Matrix.of(packed, bias)
