"""Tensors of a run as safetensors of at most 4 MiB; a larger request gets the address of a pooled
version."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from urllib.parse import urlencode

from ...core.errors import UserError, need
from ..asgi.replies import CancelCheck, HttpError
from .fields import PositionFields, TensorFields, ThumbnailFields, within
from .runs import CachedTrace

MAX_BYTES = 4 << 20  # bytes of an answer
MAX_SIDE = 512  # cells a side of what is offered instead


def too_large(message: str, run: CachedTrace, part: str, query: Mapping[str, str]) -> HttpError:
    """Error for a response beyond the size limit, with the address of a smaller one."""
    return HttpError(413, message, pooled=f"api/runs/{run.id}/{part}?{urlencode(query)}")


def values(run: CachedTrace, fields: TensorFields, check: CancelCheck) -> bytes:
    """Tensor ``address`` of a run as f32, f16 or u8, optionally pooled. Raises HttpError 413."""
    from ...sight import wire

    kind, shape, address = fields.kind, fields.map, fields.address
    pool = wire.pool_of(fields.pool)
    span = _span(fields.range)
    with run.loaded.acquire(check):
        tensor_slice = wire.TracePart(run.trace, address)
        sizes = [*tensor_slice.shape]
        pool = pool[-len(sizes) :] if pool and sizes else None
        if pool is not None:
            sizes[-len(pool) :] = map(min, sizes[-len(pool) :], pool)
        size = math.prod(sizes) * wire.KINDS[kind]
        if size > MAX_BYTES - 4096:
            suggested = _suggested_pool(tensor_slice.shape)
            message = (
                f"{address} is {size:,} bytes as {kind} and an answer has {MAX_BYTES:,} at most; "
                "ask for it pooled, or for a part."
            )
            pooled = {"address": address, "as": "u8", "pool": suggested, "map": shape}
            raise too_large(message, run, "t", pooled)
        array = tensor_slice.to_array(pool)
    coded, metadata = wire.coded(array, kind, shape, span)
    used_pool = pool if array.size < tensor_slice.cells else None
    return wire.packed({"values": coded}, metadata | wire.facts(tensor_slice, used_pool))


def _suggested_pool(shape: list[int]) -> str:
    """Max-pooling that fits a tensor into one response."""
    leading_size = math.prod(shape[:-2])
    side = MAX_SIDE
    while leading_size * side * side > MAX_BYTES - 4096 and side > 1:
        side //= 2
    if len(shape) > 1:
        return f"max:{side}x{side}"
    return f"max:{MAX_SIDE * MAX_SIDE}"


def _span(text: str | None) -> tuple[float, float] | None:
    if not text:
        return None
    low, _, high = text.partition(":")
    try:
        span = float(low), float(high)
    except ValueError:
        span = (0.0, 0.0)
    need(-1e30 < span[0] < span[1] < 1e30, f'"{text[:40]}" is no range; give range=0:1.')
    return span


def thumbnails(run: CachedTrace, fields: ThumbnailFields, check: CancelCheck) -> bytes:
    """Attention maps of all heads of the requested layers, pooled to ``px``, as u8: one tensor (H,
    px, px) a layer."""
    from ...sight import wire

    kind, px = fields.kind, fields.px
    squares = [
        op.id
        for op in run.trace.plan
        if (op.is_attention if kind == "pattern" else op.quadratic and op.id.endswith(".scores"))
    ]
    need(bool(squares), "This model has no attention with heads.")
    low, _, high = fields.layers.partition(":")
    count = len(squares)
    first = int(low or 0)
    last = int(high or count)
    within("layers", max(first, last), 0, count)
    shape, span = ("sqrt", (0.0, 1.0)) if kind == "pattern" else ("lin", None)
    tensors = {}
    layers = {}
    total = 0
    for address in squares[first:last]:
        with run.loaded.acquire(check):  # a layer at a time: others may come in between
            tensor_slice = wire.TracePart(run.trace, address)
            array = tensor_slice.to_array((px, px))
        tensors[address], facts = wire.coded(array, "u8", shape, span)
        total += array.size
        if total > MAX_BYTES - 65536:
            fitting = max(1, len(tensors) - 1)
            message = "That is more than an answer has; ask for fewer layers or smaller pictures."
            smaller = {"kind": kind, "px": str(px), "layers": f"{first}:{first + fitting}"}
            raise too_large(message, run, "thumbs", smaller)
        layers[address] = {**facts, **wire.facts(tensor_slice, (px, px))}
    return wire.packed(tensors, {"layers": json.dumps(layers), "total": str(count), "px": str(px)})


def logits(run: CachedTrace, fields: PositionFields, check: CancelCheck) -> bytes:
    """Logits (V,) at ``position``, as f32; the first ``known`` of them are tokens."""
    from ...sight import wire

    length = run.trace.tokens.shape[1]
    within("position", fields.position, -length, length - 1)
    at = fields.position % length
    if (head := run.trace.plan.head) is None:
        raise UserError("This model has no head over tokens and predicts none.")
    address = head.at(at)
    with run.loaded.acquire(check):
        row = wire.TracePart(run.trace, address).to_array()
    tokenizer = run.loaded.tokenizer
    vocab_size = len(row) if tokenizer is None else min(tokenizer.size, len(row))
    metadata = {
        "position": str(at),
        "known": str(vocab_size),
        "address": address,
    }
    return wire.packed({"logits": row}, metadata)
