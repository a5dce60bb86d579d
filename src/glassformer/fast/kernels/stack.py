"""The work of blocks beside their products, and blocks one after another without Python between
them (stack.c).

    y = norm(x, Norm.of(gain, shift, eps, centred=False))    RMSNorm; centred: LayerNorm
    y = activation("silu", x)
    run_stack(blocks, pages, x, rows)                        x (T, C) through blocks, in place

The structures here are those of stack.c, field by field. T tokens, C model dim, H heads, D head
dim.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .matrices import Packed, scratch
from .pages import CHUNK, Pages
from .shared_library import function, path

ACTIVATIONS = ("relu", "relu2", "gelu_tanh", "silu")
KINDS = ("int8", "int4", "bf16", "fp32")
PLACES = ("pre", "post", "sandwich", "parallel")
_address, _long, _float = ctypes.c_void_p, ctypes.c_long, ctypes.c_float


class Norm(ctypes.Structure):
    """A norm of rows; all zeros: none."""

    _fields_ = [("gain", _address), ("shift", _address), ("kind", _long), ("eps", _float)]

    @staticmethod
    def of(gain: Tensor | None, shift: Tensor | None, eps: float, centred: bool) -> Norm:
        """RMSNorm, or with ``centred`` LayerNorm; gain and shift (C,) in the dtype of the rows, and
        contiguous."""
        return Norm(_pointer(gain), _pointer(shift), 2 if centred else 1, eps)


class Matrix(ctypes.Structure):
    """A product's packed weight and bias."""

    _fields_ = [
        ("weight", _address),
        ("scales", _address),
        ("bias", _address),
        ("outputs", _long),
        ("kind", _long),
    ]

    @staticmethod
    def of(packed: Packed, bias: Tensor | None) -> Matrix:
        """``bias`` (N,) in fp32."""
        pointers = packed.data.data_ptr(), _pointer(packed.scales), _pointer(bias)
        return Matrix(*pointers, packed.outputs, KINDS.index(packed.kind))


class Heads(ctypes.Structure):
    """One attention: its matrices (of one to the encoder's output: q and out), its norms, its
    numbers."""

    _fields_ = [
        *(("q_norm", Norm), ("k_norm", Norm), ("qkv", Matrix * 3), ("out", Matrix)),
        *((name, _long) for name in ("heads", "kv_heads", "dim", "window")),
        *(("scale", _float), ("softcap", _float)),
    ]


class CBlock(ctypes.Structure):
    """One block: its norms, its attentions (``cross``: all zeros where there is none), its
    feed-forward."""

    _fields_ = [
        *(
            (f"{name}{norm}", Norm)
            for name in ("attn", "cross", "ffn")
            for norm in ("_norm", "_post_norm")
        ),
        *(("self", Heads), ("cross", Heads), ("up", Matrix * 2), ("down", Matrix)),
        *((name, _long) for name in ("hidden", "gated", "activation", "place")),
    ]


class KeyLocation(ctypes.Structure):
    """Page tables and lengths that locate each token's keys."""

    _fields_ = [
        *((name, _address) for name in ("tables", "sequence", "lengths")),
        *(("width", _long), ("chunks", _long)),
    ]


class _Pass(ctypes.Structure):
    _fields_ = [
        *(("blocks", _address), ("pages", _address), ("count", _long)),
        *(("x", _address), ("rows", _long), ("width", _long)),
        *(("cos", _address), ("sin", _address), ("turned", _long), ("neighbours", _long)),
        *(
            ("self_keys", KeyLocation),
            ("source", KeyLocation),
            ("slots", _address),
            ("distance_bias", _address),
            ("biases", _long),
        ),
        *(("room", _address), ("bf16", _long), ("threads", _long)),
        *(("windows", KeyLocation), ("window_slots", _address)),
    ]


@dataclass
class VisibleKeys:
    """Keys that T tokens attend to: ``tables``, ``rows`` and ``lengths`` as in paged attention,
    ``longest`` the greatest of these lengths."""

    tables: Tensor
    rows: Tensor
    lengths: Tensor
    longest: int

    def location(self) -> KeyLocation:
        """The structure for stack.c; all three tensors are contiguous int32."""
        numbers = self.tables.shape[1], -(-self.longest // CHUNK)
        return KeyLocation(
            *(tensor.data_ptr() for tensor in (self.tables, self.rows, self.lengths)), *numbers
        )


@dataclass
class StackInputs:
    """Inputs of one pass over T tokens, beside their vectors.

    The tokens attend to ``self_keys``, those of their own text, and in cross-attention to those of
    their ``source``. ``slots`` (T,) int64 say where each token's keys and values are put; ``bias``
    is as in paged attention. ``cos`` and ``sin`` (T, turned) turn queries and keys, pairs being
    ``neighbours`` or halves; None: nothing is turned. ``windows`` and ``window_slots`` are
    ``self_keys`` and ``slots`` for layers with windows, where these have other pages.
    """

    self_keys: VisibleKeys
    slots: Tensor
    windows: VisibleKeys
    window_slots: Tensor
    source: VisibleKeys | None = None
    bias: Tensor | None = None
    cos: Tensor | None = None
    sin: Tensor | None = None
    neighbours: bool = False


def addresses(pages: Sequence[tuple[Pages, Pages | None]]) -> Any:
    """Addresses of each block's pages, its own and those of its source, as ``run_stack`` takes
    them."""
    flat_pages = [layer_pages for pair in pages for layer_pages in pair]
    tensors = [
        x
        for layer_pages in flat_pages
        for x in ((None, None) if layer_pages is None else (layer_pages.keys, layer_pages.values))
    ]
    return (_address * len(tensors))(*map(_pointer, tensors))


def run_stack(blocks: Any, pages: Any, x: Tensor, inputs: StackInputs) -> None:
    """x (T, C) fp32 or bf16, changed in place by ``blocks`` (an array of CBlock), whose keys are
    kept in ``pages``.

    At most 512 tokens at once; those of a text in their order.
    """
    turned = 0 if inputs.cos is None else inputs.cos.shape[-1]
    biases = 0 if inputs.bias is None else inputs.bias.shape[1]
    arguments = _Pass(
        *(ctypes.addressof(blocks), ctypes.addressof(pages), len(blocks), x.data_ptr(), *x.shape),
        *(_pointer(inputs.cos), _pointer(inputs.sin), turned, inputs.neighbours),
        *(
            inputs.self_keys.location(),
            KeyLocation() if inputs.source is None else inputs.source.location(),
        ),
        *(inputs.slots.data_ptr(), _pointer(inputs.bias), biases),
        *(None, x.dtype == torch.bfloat16, torch.get_num_threads()),
        *(inputs.windows.location(), inputs.window_slots.data_ptr()),
    )
    size, build = ctypes.c_long(), path()
    function("stack_room", build)(ctypes.addressof(arguments), ctypes.addressof(size))
    arguments.room = scratch(size.value).data_ptr()
    function("stack", build)(ctypes.addressof(arguments))


def norm(x: Tensor, params: Norm, tensors: Sequence[Tensor] = ()) -> Tensor:
    """Each row of x (.., C) normed, by the gain and shift that are ``held``; no gradients."""
    x = x.detach().contiguous()
    y, width = torch.empty_like(x), x.shape[-1]
    rows = x.numel() // max(width, 1)
    bf16, threads = x.dtype == torch.bfloat16, torch.get_num_threads()
    function("norm", path())(
        x.data_ptr(), y.data_ptr(), ctypes.addressof(params), rows, width, bf16, threads
    )
    return y


def activation(name: str, x: Tensor) -> Tensor:
    """relu, relu2, gelu_tanh or silu of each number; no gradients."""
    x = x.detach().contiguous()
    y = torch.empty_like(x)
    which, bf16 = ACTIVATIONS.index(name), x.dtype == torch.bfloat16
    function("activation", path())(
        x.data_ptr(), y.data_ptr(), which, x.numel(), bf16, torch.get_num_threads()
    )
    return y


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
