"""Weights of 8 or 4 bits in groups: in the place of a parameter, whichever module multiplies with
it.

    quantize_weights(model, Layout(bits=4))   the model's matrices become QuantizedWeights

    F.linear(x, weight)                       x to int8; sums of a group in integers; groups in their order
    F.embedding(tokens, weight)               the rows of a table
    weight[expert], weight.unbind()           a table of a stack of them
    anything else                             the numbers, in the weight's dtype

So a row of a product has the same bits alone and in a batch, and every module, tape and tool that
reads a weight goes on as it was. A quantized weight does not train: gradients pass through the
product to x, and to LoRA beside it.

N outputs, C inputs, G groups of a row, R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import need
from ..core.nn.build import declared
from ..core.nn.replace import replace_parameter
from . import kernels, rounding

Rounding = Callable[[str, Tensor, int, int], rounding.Rounded]
"""(a weight's path, the weight, bits, group) -> its codes and scales."""
ENDS = ("embed.", "source_embed.", "head.", "pool.", "token_head.")  # tables and what answers


@dataclass(frozen=True)
class QuantizedLayout:
    """Bits and groups of a quantized model: ``bits`` of its matrices, ``head`` of its embeddings
    and heads (16: left as they are), ``group``."""

    bits: int
    group: int = rounding.GROUP
    head: int = 8

    def __post_init__(self) -> None:
        rounding.check(self.bits, self.group)
        need(
            self.head in (8, 16),
            f"The head is held in 8 or 16 bits, not {self.head}; give --head 8 or 16.",
        )

    def plan(self, model: nn.Module) -> dict[str, int]:
        """The bits of each weight that is quantized, by its path: what modules declare as
        ``products``.

        UserError where that is nothing but the ends of the model, and for groups longer than any
        row.
        """
        exact = tuple(f"{path}." for path in declared(model, "exact"))
        names = [name for name in declared(model, "products") if not name.startswith(exact)]
        parameters = dict(model.named_parameters())
        weight_names = [name for name in parameters if name in set(names)]
        bits = {name: self.head if name.startswith(ENDS) else self.bits for name in weight_names}
        inside = [name for name in weight_names if not name.startswith(ENDS)]
        need(
            bool(inside),
            "This model's layers are recurrent cells, which cannot be quantized; use a Stack.",
        )
        longest = max(parameters[name].shape[-1] for name in weight_names)
        fits = self.group - rounding.GROUP < longest
        most = -(-longest // rounding.GROUP) * rounding.GROUP
        rows = f"the longest row here has {longest} numbers; give {most} or less ({most}: a scale a row)."
        need(fits, f"Groups of {self.group} are longer than that: {rows}")
        # 4 bits lie two in a byte
        even = (name for name in weight_names if parameters[name].shape[-1] % 2 == 0)
        return {name: bits[name] for name in even if bits[name] < 16}

    def nbytes(self, model: nn.Module) -> int:
        """The bytes that a model's weights, of any device, take in this layout."""
        bits, total = self.plan(model), 0
        for path, weight in model.named_parameters():
            rows, longest = (
                weight.numel() // max(1, weight.shape[-1]),
                weight.shape[-1] if weight.ndim else 1,
            )
            few = weight.numel() * bits.get(path, 0) // 8 + 2 * rows * -(-longest // self.group)
            total += few if path in bits else weight.numel() * weight.itemsize
        return total

    def quantize(
        self, model: nn.Module, chosen: Mapping[str, int], rounder: Rounding | None = None
    ) -> None:
        """Put quantized weights in the place of those whose paths and bits are given."""
        for path, bits in chosen.items():
            weight = model.get_parameter(path)
            rounded = (
                rounder(path, weight, bits, self.group)
                if rounder
                else rounding.searched(weight, bits, self.group)
            )
            replace_parameter(
                model, path, parameter(Codes.of(rounded, bits, self.group), weight.dtype)
            )


class Codes:
    """Codes (..., N, C) of one weight, in int8 or two in a byte (..., N, C / 2), and scales fp16
    (..., N, G).

    What is only multiplied with is held once: after the first product in the kernels' order, from
    which ``codes`` are read back when they are asked for.
    """

    def __init__(self, codes: Tensor, scales: Tensor, group: int) -> None:
        self.bits = 4 if codes.dtype == torch.uint8 else 8
        self.shape = (*codes.shape[:-1], codes.shape[-1] * (8 // self.bits))
        self.group, self.scales, self.device = group, scales, codes.device
        self.nbytes = codes.nbytes + scales.nbytes
        self.looked_up = False
        self._codes: Tensor | None = codes
        self._packed: kernels.Packed | None = None
        self._parts: dict[int, Codes] = {}

    @classmethod
    def of(cls, rounded: rounding.Rounded, bits: int, group: int) -> Codes:
        codes, scales = rounded
        return cls(rounding.pack(codes) if bits == 4 else codes, scales, group)

    @property
    def codes(self) -> Tensor:
        """Codes in the checkpoint's format."""
        if self._codes is None:
            assert self._packed is not None
            codes, _ = self._packed.integers()
            return rounding.pack(codes) if self.bits == 4 else codes
        return self._codes

    def unpacked(self) -> Tensor:
        """The codes as int8 (..., N, C)."""
        return rounding.unpack(self.codes) if self.bits == 4 else self.codes

    def decoded(self, dtype: torch.dtype) -> Tensor:
        """The numbers."""
        return rounding.decode(self.unpacked(), self.scales, self.group, dtype)

    def rows(self, index: Any, dtype: torch.dtype) -> Tensor:
        """The numbers of some rows of a table, (..., C)."""
        self._codes, self.looked_up = self.codes, True
        codes = rounding.unpack(self._codes[index]) if self.bits == 4 else self._codes[index]
        return rounding.decode(codes, self.scales[index], self.group, dtype)

    def select(self, index: int) -> Codes:
        """One table of a stack."""
        index = index % len(self.scales)
        if index not in self._parts:
            self._parts[index] = Codes(self.codes[index], self.scales[index], self.group)
        return self._parts[index]

    def clone(self) -> Codes:
        """The same in memory of its own."""
        return Codes(self.codes.clone(), self.scales.clone(), self.group)

    def to(self, device: torch.device) -> Codes:
        """On another device."""
        return (
            self
            if device == self.device
            else Codes(self.codes.to(device), self.scales.to(device), self.group)
        )

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x (..., C) times a table (N, C), plus the bias (N)."""
        if not x.numel():  # an expert without a token
            return x.new_zeros(*x.shape[:-1], self.shape[0])
        if self.device.type != "cpu":
            rows = x.reshape(-1, x.shape[-1])
            y = kernels.reference.integer_product(rows, self.unpacked(), self.fine_scales(), bias)
            return y.to(x.dtype).view(*x.shape[:-1], self.shape[0])
        return kernels.matmul(x, self.packed(), bias)

    def packed(self) -> kernels.Packed:
        """A table (N, C) in the kernels' order, on a CPU."""
        if self._packed is None:
            pack = kernels.pack_int4 if self.bits == 4 else kernels.pack_int8
            self._packed = pack(self.unpacked(), self.fine_scales())
            if self._packed.build != "torch" and not self.looked_up:
                self._codes = None
        return self._packed

    def fine_scales(self) -> Tensor:
        """The scale of each of the kernels' groups of 32: that of the group it lies in."""
        count = -(-self.shape[-1] // rounding.GROUP)
        return self.scales.repeat_interleave(self.group // rounding.GROUP, -1)[..., :count]


class QuantizedWeight(Tensor):
    """A weight (..., N, C) held as ``held``; to everything that knows nothing of it a tensor of
    ``dtype``."""

    quantized_data: Codes

    @staticmethod
    def __new__(cls, quantized_data: Codes, dtype: torch.dtype) -> QuantizedWeight:
        weight: QuantizedWeight = Tensor._make_wrapper_subclass(
            cls, quantized_data.shape, dtype=dtype, device=quantized_data.device
        )
        return weight

    def __init__(self, quantized_data: Codes, dtype: torch.dtype) -> None:
        self.quantized_data = quantized_data

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        data = self.quantized_data
        return f"QuantizedWeight({tuple(self.shape)}, bits={data.bits}, group={data.group})"

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantizedWeight:
        copied: QuantizedWeight = parameter(self.quantized_data.clone(), self.dtype)
        return copied

    def decoded(self) -> Tensor:
        """The numbers, as a plain tensor."""
        return self.quantized_data.decoded(self.dtype)

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        override = _OVERRIDES.get(func)
        if override is not None:
            result = override(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        return torch._C._disabled_torch_function_impl(func, types, args, dict(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs, first = dict(kwargs or {}), args[0]
        if isinstance(first, QuantizedWeight) and func in _SAME:
            dtype, device = kwargs.get("dtype") or first.dtype, kwargs.get("device") or first.device
            quantized_data = first.quantized_data.to(torch.device(device))
            if func is torch.ops.aten.clone.default:
                quantized_data = quantized_data.clone()
            return QuantizedWeight(quantized_data, dtype)
        return func(*_plain(args), **{name: _plain(value) for name, value in kwargs.items()})

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["codes", "scales"], (self.quantized_data.group, self.dtype)

    @staticmethod
    def __tensor_unflatten__(inner: Mapping[str, Tensor], context: Any, *_: Any) -> QuantizedWeight:
        return QuantizedWeight(Codes(inner["codes"], inner["scales"], context[0]), context[1])

    @property
    def codes(self) -> Tensor:
        return self.quantized_data.codes

    @property
    def scales(self) -> Tensor:
        return self.quantized_data.scales


_SAME = {torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.clone.default}
_SAME |= {torch.ops.aten._to_copy.default}


def _plain(value: Any) -> Any:
    if isinstance(value, QuantizedWeight):
        return value.decoded()
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value))
    return value


class _Product(torch.autograd.Function):
    """The product, and its gradient with regard to x: as if x had not been rounded (straight
    through)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, weight: QuantizedWeight) -> Tensor:
        ctx.weight = weight
        return weight.quantized_data.product(x, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (grad,) = grads
        to_x = grad @ ctx.weight.decoded().to(grad.dtype) if ctx.needs_input_grad[0] else None
        return to_x, grad.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None, None


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not isinstance(weight, QuantizedWeight) or weight.ndim != 2:
        return NotImplemented
    if torch.is_autocast_enabled(input.device.type):
        input = input.to(torch.get_autocast_dtype(input.device.type))
    if torch.is_grad_enabled() and (
        input.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return _Product.apply(input, bias, weight)  # type: ignore[no-untyped-call]
    return weight.quantized_data.product(input, bias)


def _embedding(input: Tensor, weight: Tensor, *_: Any, **__: Any) -> Any:
    return (
        weight.quantized_data.rows(input, weight.dtype)
        if isinstance(weight, QuantizedWeight)
        else NotImplemented
    )


def _item(weight: Tensor, index: Any) -> Any:
    if isinstance(weight, QuantizedWeight) and weight.ndim == 3 and isinstance(index, int):
        return QuantizedWeight(weight.quantized_data.select(index), weight.dtype)
    if (
        isinstance(weight, QuantizedWeight)
        and weight.ndim == 2
        and isinstance(index, int | slice | list | Tensor)
    ):
        return weight.quantized_data.rows(
            torch.as_tensor(index) if isinstance(index, list) else index, weight.dtype
        )
    return NotImplemented


def _unbind(weight: Tensor, dim: int = 0) -> Any:
    if isinstance(weight, QuantizedWeight) and weight.ndim == 3 and dim == 0:
        return tuple(_item(weight, number) for number in range(len(weight.quantized_data.scales)))
    return NotImplemented


_OVERRIDES: dict[Any, Callable[..., Any]] = {
    F.linear: _linear,
    F.embedding: _embedding,
    Tensor.__getitem__: _item,
    Tensor.unbind: _unbind,
    Tensor.requires_grad_: lambda weight, *_, **__: weight,  # it does not train
    Tensor.nbytes.__get__: lambda weight: weight.quantized_data.nbytes,  # type: ignore[attr-defined]
}


def parameter(quantized_data: Codes, dtype: torch.dtype) -> Any:
    """The weight as a parameter, which needs no gradient."""
    return nn.Parameter(QuantizedWeight(quantized_data, dtype), requires_grad=False)


# ------------------------------------------------------------------------------------------ models


def quantized(model: nn.Module) -> dict[str, QuantizedWeight]:
    """The quantized weights of a model by their paths."""
    return {
        path: weight
        for path, weight in model.named_parameters()
        if isinstance(weight, QuantizedWeight)
    }


def quantize_weights(
    model: nn.Module, layout: QuantizedLayout, rounder: Rounding | None = None
) -> dict[str, int]:
    """Put quantized weights in the place of a model's matrices, one after another; the bits of
    each, by path.

    ``how`` rounds (None: the scale of least error). UserError for a model that is quantized
    already, for one without such matrices, and for weights that are not finite.
    """
    need(not quantized(model), "This model is quantized already; give the original model.")
    chosen = layout.plan(model)
    layout.quantize(model, chosen, rounder)
    return chosen
