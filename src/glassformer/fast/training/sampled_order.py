"""Training's forward pass in the sampler's order of sums: a token's log-probability has the same bits
where it is drawn and where it is learned from.

    model = sampled_order(model, sampler)          sampler: the view that an engine computes with
    hidden = hidden_states(model, documents, ...)  (N, C) of all documents' tokens, end to end

Every product, norm, activation, mixture and attention takes its value from the sampler's kernels, in
which a row's bits depend on nothing but the row, and its gradient from the model's own derivative.

N tokens of D documents, L of the longest, H heads, K key-value heads, W head dim, C model dim.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from ...core import config
from ...core.errors import need
from ...core.nn import Model
from ...core.nn.attention import AttentionEngine, AttentionInputs, attend
from ...core.nn.experts import MoE
from ...core.nn.flow import Flow
from ...core.nn.layers import MLP, GatedMLP, LayerNorm, Linear, Projection, RMSNorm, gelu_tanh
from ...core.nn.lora import LoRALinear
from ...core.nn.mask import Mask
from ...core.nn.replace import replace_modules
from .. import kernels
from ..kernels import PAGE, Pages, paged_attention

Change: TypeAlias = Callable[..., Tensor]
DERIVATIVES: dict[Change, Change] = {
    F.silu: torch.ops.aten.silu_backward,
    F.gelu: torch.ops.aten.gelu_backward,
    gelu_tanh: partial(torch.ops.aten.gelu_backward, approximate="tanh"),
}
"""The gradient of an activation, from that of its value and what it reads."""


class _WithGradient(torch.autograd.Function):
    """``value(x)``, where the gradient of x is ``gradient`` of the value's and what is ``saved``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Change, gradient: Change, *saved: Tensor) -> Tensor:
        ctx.gradient = gradient
        ctx.save_for_backward(*saved)
        return value(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        return ctx.gradient(grad, *saved), *[None] * (2 + len(saved))


def with_gradient(x: Tensor, value: Change, gradient: Change, *saved: Tensor) -> Tensor:
    """``value(x)``, where the gradient of x is ``gradient`` of the value's and what is ``saved``."""
    result: Tensor = _WithGradient.apply(x, value, gradient, *saved)  # type: ignore[no-untyped-call]
    return result


def with_value(sampler: Change, module: Change, *inputs: Any) -> Tensor:
    """The value of ``sampler(*inputs)`` with the gradient of ``module(*inputs)``."""
    with torch.no_grad():  # a norm asks whether x has a gradient
        value = sampler(*(x.detach() if isinstance(x, Tensor) else x for x in inputs))
    return with_gradient(module(*inputs), lambda _: value, lambda grad: grad)


def activation(sampler: Change, act: Change, x: Tensor) -> Tensor:
    """``with_value``, without the value of ``act`` where its derivative is known."""
    if act in DERIVATIVES:
        return with_gradient(x, sampler, DERIVATIVES[act], x)
    return with_value(sampler, act, x)


class _SampledProduct(torch.autograd.Function):
    """x (..., C) times a matrix (N, C), plus a bias, by the kernels; the gradient by ordinary
    products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, matrix)
        pack = kernels.pack_bf16 if matrix.dtype == torch.bfloat16 else kernels.pack_fp32
        return kernels.matmul(x, pack(matrix, transient=True), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, matrix = ctx.saved_tensors
        rows, needed = grad.flatten(0, -2), ctx.needs_input_grad
        return (
            grad @ matrix if needed[0] else None,
            rows.mT @ x.flatten(0, -2) if needed[1] else None,
            rows.sum(0) if needed[2] else None,
        )


def product(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """x (..., C) times a matrix (N, C), plus a bias (N,), in the sampler's order."""
    result: Tensor = _SampledProduct.apply(x, matrix, bias)  # type: ignore[no-untyped-call]
    return result


class SampledLinear(Linear):
    """A linear layer around the parameters of another; a low-rank change is in its matrix."""

    def __init__(self, layer: Linear) -> None:
        self.__dict__.update(layer.__dict__)
        self.effective = layer.matrix
        if isinstance(layer, LoRALinear):
            self.effective = lambda: with_value(layer.merged_weight, layer.matrix)

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.effective(), self.bias)


class SampledProjection(Projection):
    """The head's product."""

    def __init__(self, layer: Projection) -> None:
        self.__dict__.update(layer.__dict__)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return product(x, table, self.bias)


class SampledModule(nn.Module):
    """A module with the values of the sampler's and the gradient of its own."""

    def __init__(self, module: nn.Module, sampler: nn.Module) -> None:
        super().__init__()
        self.module, self.sampler = module, sampler

    def forward(self, x: Tensor, *flow: Flow) -> Tensor:
        apart = [copy.copy(one_pass) for one_pass in flow]
        for one_pass in apart:  # losses and metrics count once
            one_pass.aux, one_pass.metrics = {}, {}
        return with_value(lambda x: self.sampler(x, *apart), lambda x: self.module(x, *flow), x)


def sampled_order(model: Model, sampler: Model) -> Model:
    """A view of ``model`` that computes in the order of ``sampler``, a view of the same weights."""
    swaps = dict[nn.Module, nn.Module]()
    mixtures = list[str]()
    activations = list[str]()
    for path, module in model.named_modules():
        if any(path.startswith(mixture) for mixture in mixtures):
            continue
        if isinstance(module, MoE):
            mixtures.append(f"{path}.")
        if isinstance(module, MoE | RMSNorm | LayerNorm):
            swaps[module] = SampledModule(module, sampler.get_submodule(path))
        elif isinstance(module, Linear):
            swaps[module] = SampledLinear(module)
        elif isinstance(module, Projection):
            swaps[module] = SampledProjection(module)
        elif isinstance(module, MLP | GatedMLP):
            activations.append(path)
    view = replace_modules(model, swaps)
    for path in activations:  # their products were exchanged, so that each is a copy already
        feedforward: Any = view.get_submodule(path)
        twin: Any = sampler.get_submodule(path)
        feedforward.act = partial(activation, twin.act, feedforward.act)
    return view


@dataclass(frozen=True)
class PackedDocuments:
    """Texts end to end, each from position 0; ``context`` is the sampler's."""

    texts: Sequence[Sequence[int]]
    context: int

    def __post_init__(self) -> None:
        need(
            self.longest <= self.context,
            f"A text is longer than the {self.context} tokens that the sampler reads.",
        )

    @cached_property
    def rows(self) -> Tensor:
        """The text of each token (N,)."""
        return torch.arange(len(self.texts)).repeat_interleave(torch.tensor(self.lengths))

    @cached_property
    def pos(self) -> Tensor:
        """The place of each token in its text (N,)."""
        return torch.cat([torch.arange(len(text)) for text in self.texts])

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return max(self.lengths)

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return [*map(len, self.texts)]

    @cached_property
    def tables(self) -> Tensor:
        """The pages of each text."""
        pages = -(-self.longest // PAGE)
        return torch.arange(len(self.texts) * pages, dtype=torch.int32).view(-1, pages)

    def by_position(self, make: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """``make`` of all positions, as the sampler's pages have it."""
        return make(torch.arange(self.context)[None])

    def in_rows(self, x: Tensor) -> Tensor:
        """Texts end to end (1, H, N, W), each in a row of its own: (D, H, L, W), zeros behind."""
        texts = [*torch.split(x[0].transpose(0, 1), self.lengths)]
        return pad_sequence(texts, batch_first=True).transpose(1, 2)

    def end_to_end(self, rows: Tensor) -> Tensor:
        """Texts in rows (D, H, L, W) end to end: (1, H, N, W)."""
        texts = zip(rows.transpose(1, 2), self.lengths, strict=True)
        return torch.cat([row[:length] for row, length in texts]).transpose(0, 1)[None]

    def attention(self, inputs: AttentionInputs) -> Tensor:
        """z (1, H, N, W), from pages as the sampler reads them."""
        with torch.no_grad():
            value = self.from_pages(inputs)
        return with_gradient(self.differentiable(inputs), lambda _: value, self.in_rows)

    def from_pages(self, inputs: AttentionInputs) -> Tensor:
        """The value of an attention."""
        q, k, v = (x[0].transpose(0, 1) for x in inputs[:3])
        pages = Pages.empty(self.tables.numel(), k.shape[1], k.shape[2], k.dtype)
        slots = self.tables[self.rows, self.pos // PAGE].long() * PAGE + self.pos % PAGE
        pages.write(k, v, slots)
        rule, bias = inputs.mask.rule, None
        if inputs.position is not None:
            places = torch.arange(self.context)[None]
            term = inputs.position.bias(places[:, -1:], places)
            bias = None if term is None else term[0, :, 0].flip(-1).float().contiguous()
        layout = self.tables, self.rows.int(), self.pos.int() + 1
        window = rule.size if isinstance(rule, config.Window) else None
        z = paged_attention(q, pages, *layout, inputs.scale, window, inputs.softcap, bias)
        return z.transpose(0, 1)[None]

    def differentiable(self, inputs: AttentionInputs) -> Tensor:
        """The attention of each text in a row of its own (D, H, L, W)."""
        q, k, v = (with_gradient(x, self.in_rows, self.end_to_end) for x in inputs[:3])
        places = torch.arange(self.longest)[None]
        mask = Mask(places, places, True, inputs.mask.rule, contiguous=True)
        bias = None if inputs.position is None else mask.bias(inputs.position)
        return attend(AttentionInputs(q, k, v, mask, bias, inputs.scale, inputs.softcap))


def hidden_states(view: Any, documents: PackedDocuments) -> tuple[Tensor, dict[str, Tensor]]:
    """The last hidden states (N, C) of all tokens by a view that ``sampled_order`` made, and the
    auxiliary losses of the pass."""
    tokens = torch.tensor([*itertools.chain(*documents.texts)])[None]
    flow = view.flow(tokens, documents.pos[None], documents.rows[None])
    flow.by_position = lambda key, make: documents.by_position(make)
    flow.engine = AttentionEngine("sampled", documents.attention, lambda inputs: True, None)
    view.flow = lambda *inputs: flow
    output = view(tokens, logits="none")  # a call gathers weights that lie in shards
    return output.hidden[0], output.aux


def padded_states(model: Any, documents: PackedDocuments) -> tuple[Tensor, dict[str, Tensor]]:
    """The same by the ordinary forward pass, a text a row; its bits are not the sampler's."""
    tokens = torch.zeros(len(documents.texts), documents.longest, dtype=torch.long)
    tokens[documents.rows, documents.pos] = torch.tensor([*itertools.chain(*documents.texts)])
    pos = torch.full_like(tokens, -1)
    pos[documents.rows, documents.pos] = documents.pos
    output = model(tokens, pos=None if bool((pos >= 0).all()) else pos, logits="none")
    return output.hidden[documents.rows, documents.pos], output.aux
