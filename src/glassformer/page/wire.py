"""Tensors of a run as safetensors of at most 4 MiB; a larger request gets the address of a pooled
version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from ..errors import UserError, need
from .models import CancelCheck
from .runs import Run

MAX_BYTES = 4 << 20  # bytes of an answer
MAX_SIDE = 512  # cells a side of what is offered instead


class ResponseTooLarge(UserError):
    """A response beyond the size limit; ``pooled`` is the address of a smaller one."""

    def __init__(self, sentence: str, pooled: str) -> None:
        super().__init__(sentence)
        self.pooled = pooled


def values(run: Run, query: Mapping[str, str], check: CancelCheck) -> bytes:
    """Tensor ``address`` of a run as f32, f16 or u8, optionally pooled. Raises ResponseTooLarge."""
    from ..inspection import wire

    address, kind, shape = query.get("address", ""), query.get("as", "f32"), query.get("map", "lin")
    need(0 < len(address) <= 500, 'There is no address; give one, such as address="logits".')
    need(kind in wire.KINDS, f'"{kind[:20]}" is no way to send numbers; give as=f32, f16 or u8.')
    need(shape in wire.MAPS, f'"{shape[:20]}" is no map; give map=lin or sqrt.')
    pool, span = wire.pool_of(query.get("pool")), _span(query.get("range"))
    with run.loaded.acquire(check):
        tensor_slice = wire.Part(run.trace, address)
        sizes = tensor_slice.shape
        if pool is not None:
            pool = pool[-len(sizes) :] if sizes else None
        if pool is not None:
            last = sizes[-len(pool) :]
            sizes = [*sizes[: -len(pool)], *(min(pair) for pair in zip(last, pool, strict=True))]
        count = 1
        for size in sizes:
            count *= size
        if count * wire.KINDS[kind] > MAX_BYTES - 4096:
            pooled_query = {
                "address": address,
                "as": "u8",
                "pool": _suggested_pool(tensor_slice.shape),
                "map": shape,
            }
            message = (
                f"{address} is {count * wire.KINDS[kind]:,} bytes as {kind} and an answer has "
                f"{MAX_BYTES:,} at most"
            )
            raise ResponseTooLarge(
                f"{message}; ask for it pooled, or for a part.",
                f"api/runs/{run.id}/t?{urlencode(pooled_query)}",
            )
        array = tensor_slice.to_array(pool)
    coded, metadata = wire.coded(array, kind, shape, span)
    return wire.packed(
        {"values": coded},
        metadata | wire.facts(tensor_slice, pool if array.size < tensor_slice.cells else None),
    )


def _suggested_pool(shape: list[int]) -> str:
    """Max-pooling that fits a tensor into one response."""
    leading_size = 1
    for size in shape[:-2]:
        leading_size *= size
    side = MAX_SIDE
    while leading_size * side * side > MAX_BYTES - 4096 and side > 1:
        side //= 2
    return f"max:{side}x{side}" if len(shape) > 1 else f"max:{MAX_SIDE * MAX_SIDE}"


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


def thumbnails(run: Run, query: Mapping[str, str], check: CancelCheck) -> bytes:
    """Attention maps of all heads of the requested layers, pooled to ``px``, as u8: one tensor (H,
    px, px) a layer."""
    from ..inspection import wire

    kind = query.get("kind", "pattern")
    need(
        kind in ("pattern", "scores"),
        f'"{kind[:20]}" has no thumbnails; give kind=pattern or scores.',
    )
    px = parse_int(query.get("px", "48"), "px", 4, 128)
    squares = [
        op.id
        for op in run.trace.plan
        if op.quadratic and op.id.rpartition(".")[2] == kind and "H" in op.axes
    ]
    need(bool(squares), "This model has no attention with heads.")
    low, _, high = query.get("layers", "").partition(":")
    first = parse_int(low or "0", "layers", 0, len(squares))
    last = parse_int(high or str(len(squares)), "layers", 0, len(squares))
    tensors, layers, total = {}, {}, 0
    for address in squares[first:last]:
        with run.loaded.acquire(check):  # a layer at a time: others may come in between
            tensor_slice = wire.Part(run.trace, address)
            array = tensor_slice.to_array((px, px))
        span = (0.0, 1.0) if kind == "pattern" else None
        tensors[address], facts = wire.coded(
            array, "u8", "sqrt" if kind == "pattern" else "lin", span
        )
        total += array.size
        if total > MAX_BYTES - 65536:
            smaller_query = {
                "kind": kind,
                "px": str(px),
                "layers": f"{first}:{max(first + 1, first + len(tensors) - 1)}",
            }
            smaller = f"api/runs/{run.id}/thumbs?{urlencode(smaller_query)}"
            raise ResponseTooLarge(
                "That is more than an answer has; ask for fewer layers or smaller pictures.",
                smaller,
            )
        layers[address] = {**facts, **wire.facts(tensor_slice, (px, px))}
    return wire.packed(
        tensors, {"layers": json.dumps(layers), "total": str(len(squares)), "px": str(px)}
    )


def logits(run: Run, query: Mapping[str, str], check: CancelCheck) -> bytes:
    """Logits (V,) at ``position``, as f32; the first ``known`` of them are tokens."""
    from ..inspection import wire

    length = run.trace.tokens.shape[1]
    at = parse_int(query.get("position", "-1"), "position", -length, length - 1)
    need("logits" in run.trace.plan, "This model has no head over tokens and predicts none.")
    with run.loaded.acquire(check):
        row = wire.Part(run.trace, f"logits[{at}]").to_array()
    tokenizer = run.loaded.tokenizer
    vocab_size = len(row) if tokenizer is None else min(tokenizer.size, len(row))
    metadata = {
        "position": str(at % length),
        "known": str(vocab_size),
        "address": f"logits[{at % length}]",
    }
    return wire.packed({"logits": row}, metadata)


def experts(run: Run, check: CancelCheck) -> dict[str, Any]:
    """Expert loads of each mixture, and each token's expert with its weight."""
    from ..inspection import answers

    loads = answers.experts(run.trace, lambda: run.loaded.acquire(check))
    need(bool(loads["layers"]), "This model has no mixture of experts.")
    return loads


def parse_int(text: str, name: str, low: int, high: int) -> int:
    """Parses an integer within bounds. Raises UserError otherwise."""
    plain = text.removeprefix("-")
    value = int(text) if plain.isascii() and plain.isdigit() and len(plain) < 10 else None
    if value is None or not low <= value <= high:
        raise UserError(f'{name} is "{text[:20]}"; give a number from {low} to {high}.')
    return value
