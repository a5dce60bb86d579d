"""Parts of a run as safetensors: never more than 4 MiB, and where it would be more, the address of
a pooled part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from ..errors import UserError, need
from .models import Check
from .runs import Run

MOST = 4 << 20  # bytes of an answer
PATCH = 512  # cells a side of what is offered instead


class TooMuch(UserError):
    """An answer beyond the bound; ``pooled`` is where a smaller one is."""

    def __init__(self, sentence: str, pooled: str) -> None:
        super().__init__(sentence)
        self.pooled = pooled


def values(run: Run, asked: Mapping[str, str], check: Check) -> bytes:
    """``address`` of a run as f32, f16 or u8, pooled where it is asked for. Raises TooMuch beyond
    the bound."""
    from ..inspection import wire

    address, kind, shape = asked.get("address", ""), asked.get("as", "f32"), asked.get("map", "lin")
    need(0 < len(address) <= 500, 'There is no address; give one, such as address="logits".')
    need(kind in wire.KINDS, f'"{kind[:20]}" is no way to send numbers; give as=f32, f16 or u8.')
    need(shape in wire.MAPS, f'"{shape[:20]}" is no map; give map=lin or sqrt.')
    pool, span = wire.pool_of(asked.get("pool")), _span(asked.get("range"))
    with run.loaded.held(check):
        part = wire.Part(run.trace, address)
        sizes = part.shape
        if pool is not None:
            pool = pool[-len(sizes) :] if sizes else None
        if pool is not None:
            last = sizes[-len(pool) :]
            sizes = [*sizes[: -len(pool)], *(min(pair) for pair in zip(last, pool, strict=True))]
        count = 1
        for size in sizes:
            count *= size
        if count * wire.KINDS[kind] > MOST - 4096:
            other = {"address": address, "as": "u8", "pool": _offer(part.shape), "map": shape}
            said = (
                f"{address} is {count * wire.KINDS[kind]:,} bytes as {kind} and an answer has "
                f"{MOST:,} at most"
            )
            raise TooMuch(
                f"{said}; ask for it pooled, or for a part.",
                f"api/runs/{run.id}/t?{urlencode(other)}",
            )
        made = part.to_array(pool)
    coded, told = wire.coded(made, kind, shape, span)
    return wire.packed(
        {"values": coded}, told | wire.facts(part, pool if made.size < part.cells else None)
    )


def _offer(shape: list[int]) -> str:
    """The tiles that fit in an answer."""
    others = 1
    for size in shape[:-2]:
        others *= size
    side = PATCH
    while others * side * side > MOST - 4096 and side > 1:
        side //= 2
    return f"max:{side}x{side}" if len(shape) > 1 else f"max:{PATCH * PATCH}"


def _span(said: str | None) -> tuple[float, float] | None:
    if not said:
        return None
    low, _, high = said.partition(":")
    try:
        span = float(low), float(high)
    except ValueError:
        span = (0.0, 0.0)
    need(-1e30 < span[0] < span[1] < 1e30, f'"{said[:40]}" is no range; give range=0:1.')
    return span


def thumbnails(run: Run, asked: Mapping[str, str], check: Check) -> bytes:
    """Every head of the layers asked for, pooled to ``px``, as u8: a tensor (H, px, px) a layer."""
    from ..inspection import wire

    kind = asked.get("kind", "pattern")
    need(
        kind in ("pattern", "scores"),
        f'"{kind[:20]}" has no thumbnails; give kind=pattern or scores.',
    )
    px = number(asked.get("px", "48"), "px", 4, 128)
    squares = [
        op.id
        for op in run.trace.plan
        if op.quadratic and op.id.rpartition(".")[2] == kind and "H" in op.axes
    ]
    need(bool(squares), "This model has no attention with heads.")
    low, _, high = asked.get("layers", "").partition(":")
    first = number(low or "0", "layers", 0, len(squares))
    last = number(high or str(len(squares)), "layers", 0, len(squares))
    tensors, told, total = {}, {}, 0
    for address in squares[first:last]:
        with run.loaded.held(check):  # a layer at a time: others may come in between
            part = wire.Part(run.trace, address)
            made = part.to_array((px, px))
        span = (0.0, 1.0) if kind == "pattern" else None
        tensors[address], facts = wire.coded(
            made, "u8", "sqrt" if kind == "pattern" else "lin", span
        )
        total += made.size
        if total > MOST - 65536:
            other = {
                "kind": kind,
                "px": str(px),
                "layers": f"{first}:{max(first + 1, first + len(tensors) - 1)}",
            }
            where = f"api/runs/{run.id}/thumbs?{urlencode(other)}"
            raise TooMuch(
                "That is more than an answer has; ask for fewer layers or smaller pictures.", where
            )
        told[address] = {**facts, **wire.facts(part, (px, px))}
    return wire.packed(
        tensors, {"layers": json.dumps(told), "total": str(len(squares)), "px": str(px)}
    )


def logits(run: Run, asked: Mapping[str, str], check: Check) -> bytes:
    """The whole row of logits (V) at ``position``, as f32; ``known`` of them are tokens."""
    from ..inspection import wire

    length = run.trace.tokens.shape[1]
    at = number(asked.get("position", "-1"), "position", -length, length - 1)
    need("logits" in run.trace.plan, "This model has no head over tokens and predicts none.")
    with run.loaded.held(check):
        row = wire.Part(run.trace, f"logits[{at}]").to_array()
    tokenizer = run.loaded.tokenizer
    known = len(row) if tokenizer is None else min(tokenizer.size, len(row))
    told = {"position": str(at % length), "known": str(known), "address": f"logits[{at % length}]"}
    return wire.packed({"logits": row}, told)


def experts(run: Run, check: Check) -> dict[str, Any]:
    """For each mixture its experts' loads, and each token's choice with its weight."""
    from ..inspection import answers

    found = answers.experts(run.trace, lambda: run.loaded.held(check))
    need(bool(found["layers"]), "This model has no mixture of experts.")
    return found


def number(said: str, name: str, low: int, high: int) -> int:
    """A whole number that a query says. Raises UserError for another one."""
    plain = said.removeprefix("-")
    value = int(said) if plain.isascii() and plain.isdigit() and len(plain) < 10 else None
    if value is None or not low <= value <= high:
        raise UserError(f'{name} is "{said[:20]}"; give a number from {low} to {high}.')
    return value
