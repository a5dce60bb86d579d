"""Blocks of numbers as GGUF files (llama.cpp's) hold them, to numbers of fp32 or codes, and codes
to blocks.

Q8_0   32 numbers: a scale (F16), then 32 codes
Q4_0   32 numbers: a scale, then 16 bytes, the first half's codes + 8 in their low bits
Q4_K   256 numbers: a scale and an offset of each of 8 groups, of 6 bits, times two F16s
Q6_K   256 numbers: codes of 6 bits, a scale of 8 bits for each of 16 groups, times an F16
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

CODED = {"Q8_0": 8, "Q4_0": 4}
"""Kinds that are codes and scales as ours are, with the bits of a code."""
Numbers: TypeAlias = np.ndarray[Any, Any]


def decode(kind: str, raw: Numbers) -> Numbers:
    """The numbers (.., block) in fp32 of blocks (.., bytes) of a kind."""
    if kind in ("F32", "F16"):
        return raw.view("<f4" if kind == "F32" else "<f2").astype(np.float32)
    if kind == "BF16":
        wide: Numbers = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        return wide
    return _DECODERS[kind](raw)


def split(kind: str, raw: Numbers) -> tuple[Numbers, Numbers]:
    """The codes (.., 32) int8 and the scale (.., 1) fp16 of blocks of Q8_0 and Q4_0."""
    scale, body = raw[..., :2].copy().view("<f2"), raw[..., 2:]
    if kind == "Q8_0":
        return body.view(np.int8), scale
    return np.concatenate((body & 15, body >> 4), -1).astype(np.int8) - 8, scale


def join(kind: str, codes: Numbers, scale: Numbers) -> Numbers:
    """The blocks (.., bytes) of codes (.., 32) and scales (.., 1)."""
    head = np.ascontiguousarray(scale.astype("<f2")).view(np.uint8)
    if kind == "Q8_0":
        return np.concatenate((head, codes.view(np.uint8)), -1)
    nibbles = (codes + 8).astype(np.uint8)
    return np.concatenate((head, nibbles[..., :16] | (nibbles[..., 16:] << 4)), -1)


def _coded(kind: str) -> Callable[[Numbers], Numbers]:
    def numbers(raw: Numbers) -> Numbers:
        codes, scale = split(kind, raw)
        return codes * scale.astype(np.float32)

    return numbers


def _q4_k(raw: Numbers) -> Numbers:
    super_scales = raw[..., :4].copy().view("<f2").astype(np.float32)  # of scales, of offsets
    first, second, last = (raw[..., 4 + 4 * i : 8 + 4 * i] for i in range(3))
    scales = np.concatenate((first & 63, (last & 15) | ((first >> 6) << 4)), -1).astype(np.float32)
    offsets = np.concatenate((second & 63, (last >> 4) | ((second >> 6) << 4)), -1).astype(
        np.float32
    )
    halves = raw[..., 16:].reshape(*raw.shape[:-1], 4, 1, 32)
    codes = np.concatenate((halves & 15, halves >> 4), -2).reshape(*raw.shape[:-1], 8, 32)
    wide = (super_scales[..., :1] * scales)[..., None] * codes - (super_scales[..., 1:] * offsets)[
        ..., None
    ]
    return wide.reshape(*raw.shape[:-1], 256)


def _q6_k(raw: Numbers) -> Numbers:
    low = raw[..., :128].reshape(*raw.shape[:-1], 2, 1, 2, 32)  # half, quarter of bits, part, place
    high = raw[..., 128:192].reshape(*raw.shape[:-1], 2, 1, 32)
    scales = raw[..., 192:208].view(np.int8).astype(np.float32) * raw[..., 208:].copy().view(
        "<f2"
    ).astype(np.float32)
    nibbles = np.concatenate((low & 15, low >> 4), -3).reshape(*raw.shape[:-1], 2, 4, 32)
    bits = (high >> (2 * np.arange(4, dtype=np.uint8))[:, None]) & 3
    codes = (nibbles | (bits << 4)).astype(np.int8) - 32
    wide = codes.reshape(*raw.shape[:-1], 16, 16) * scales[..., None]
    values: Numbers = wide.reshape(*raw.shape[:-1], 256).astype(np.float32)
    return values


_DECODERS: dict[str, Callable[[Numbers], Numbers]] = {"Q4_K": _q4_k, "Q6_K": _q6_k}
_DECODERS |= {kind: _coded(kind) for kind in CODED}
