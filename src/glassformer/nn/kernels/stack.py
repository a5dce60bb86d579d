"""What blocks do beside their products, and blocks one after another without Python between them
(stack.c).

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

from .library import function, path
from .pages import CHUNK, Pages
from .products import scratch
from .weights import Packed

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
        where = packed.data.data_ptr(), _pointer(packed.scales), _pointer(bias)
        return Matrix(*where, packed.outputs, KINDS.index(packed.kind))


class Heads(ctypes.Structure):
    """One attention: its matrices (of one to the encoder's output: q and out), its norms, its
    numbers."""

    _fields_ = [
        *(("q_norm", Norm), ("k_norm", Norm), ("qkv", Matrix * 3), ("out", Matrix)),
        *((name, _long) for name in ("heads", "kv_heads", "dim", "window")),
        *(("scale", _float), ("softcap", _float)),
    ]


class Block(ctypes.Structure):
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


class Where(ctypes.Structure):
    """Where tokens' keys lie."""

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
            ("own", Where),
            ("source", Where),
            ("slots", _address),
            ("distance_bias", _address),
            ("biases", _long),
        ),
        *(("room", _address), ("bf16", _long), ("threads", _long)),
        *(("windows", Where), ("window_slots", _address)),
    ]


@dataclass
class Seen:
    """What T tokens see: ``tables``, ``rows`` and ``lengths`` as attention over pages takes them,
    ``longest`` of these lengths."""

    tables: Tensor
    rows: Tensor
    lengths: Tensor
    longest: int

    def where(self) -> Where:
        """As stack.c takes it; all three are contiguous int32."""
        numbers = self.tables.shape[1], -(-self.longest // CHUNK)
        return Where(*(one.data_ptr() for one in (self.tables, self.rows, self.lengths)), *numbers)


@dataclass
class Rows:
    """What a pass is told of its T tokens.

    They see the keys of their ``own`` text and, in blocks that look there, of their ``source``.
    ``slots`` (T,) int64 say where each token's keys and values are put; ``bias`` is as attention
    over pages takes it. ``cos`` and ``sin`` (T, turned) turn queries and keys, pairs being
    ``neighbours`` or halves; None: nothing is turned. ``windows`` and ``window_slots`` are the same
    as ``own`` and ``slots`` for layers with windows, where these have other pages.
    """

    own: Seen
    slots: Tensor
    source: Seen | None = None
    bias: Tensor | None = None
    cos: Tensor | None = None
    sin: Tensor | None = None
    neighbours: bool = False
    windows: Seen | None = None
    window_slots: Tensor | None = None


def addresses(pages: Sequence[tuple[Pages, Pages | None]]) -> Any:
    """Where each block's pages lie, its own and those of its source, as ``run_stack`` takes
    them."""
    both = [one for pair in pages for one in pair]
    parts = [x for one in both for x in ((None, None) if one is None else (one.keys, one.values))]
    return (_address * len(parts))(*map(_pointer, parts))


def run_stack(blocks: Any, pages: Any, x: Tensor, told: Rows) -> None:
    """x (T, C) fp32 or bf16, changed in place by ``blocks`` (an array of Block), whose keys are
    kept in ``pages``.

    At most 512 tokens at once; those of a text in their order.
    """
    turned = 0 if told.cos is None else told.cos.shape[-1]
    biases = 0 if told.bias is None else told.bias.shape[1]
    given = _Pass(
        *(ctypes.addressof(blocks), ctypes.addressof(pages), len(blocks), x.data_ptr(), *x.shape),
        *(_pointer(told.cos), _pointer(told.sin), turned, told.neighbours),
        *(told.own.where(), Where() if told.source is None else told.source.where()),
        *(told.slots.data_ptr(), _pointer(told.bias), biases),
        *(None, x.dtype == torch.bfloat16, torch.get_num_threads()),
        *(
            (told.windows or told.own).where(),
            _pointer(told.slots if told.window_slots is None else told.window_slots),
        ),
    )
    size, build = ctypes.c_long(), path()
    function("stack_room", build)(ctypes.addressof(given), ctypes.addressof(size))
    given.room = scratch(size.value).data_ptr()
    function("stack", build)(ctypes.addressof(given))


def norm(x: Tensor, how: Norm, held: Sequence[Tensor] = ()) -> Tensor:
    """Each row of x (.., C) normed, by the gain and shift that are ``held``; no gradients."""
    x = x.detach().contiguous()
    y, width = torch.empty_like(x), x.shape[-1]
    rows = x.numel() // max(width, 1)
    function("norm", path())(
        x.data_ptr(), y.data_ptr(), ctypes.addressof(how), rows, width, x.dtype == torch.bfloat16
    )
    return y


def activation(name: str, x: Tensor) -> Tensor:
    """relu, relu2, gelu_tanh or silu of each number; no gradients."""
    x = x.detach().contiguous()
    y = torch.empty_like(x)
    which = ACTIVATIONS.index(name)
    function("activation", path())(
        x.data_ptr(), y.data_ptr(), which, x.numel(), x.dtype == torch.bfloat16
    )
    return y


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
