"""Numbers to few bits: integer codes in groups along the last dimension, each group with a scale of
16 bits.

    weight[n, c]  ~  codes[n, c] * scales[n, c // group]      int8: -127 .. 127      int4: -8 .. 7

The last group of a row may be a shorter one. N outputs, C inputs, G groups of a row.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import UserError, need

Rounded: TypeAlias = tuple[Tensor, Tensor]  # codes int8 (..., C), scales fp16 (..., G)
BITS = (8, 4)
GROUP = 32  # the kernels' own; a larger one is a multiple of it
LOWEST = {8: -127, 4: -8}
HIGHEST = {8: 127, 4: 7}
CANDIDATES = tuple(sign * step / 8 for sign in (1, -1) for step in range(44, 77, 2))
"""Sizes of a group's largest number in codes of 4 bits, tried by either sign: 5.5 to 9.5."""
AT_ONCE = 1 << 18  # numbers that are searched together: they stay in the processor's cache
SMALLEST = 2.0**-24  # of the scale's format


def check(bits: int, group: int) -> None:
    """UserError where no weight can be held so."""
    need(bits in BITS, f"Weights of {bits} bits are not supported; give 8 or 4.")
    fits = group > 0 and group % GROUP == 0
    need(
        fits,
        f"Groups of {group} do not fit the kernels; give a multiple of {GROUP}, such as "
        "32, 64 or 128.",
    )


def nearest(weight: Tensor, bits: int, group: int) -> Rounded:
    """Each number to the nearest code of a scale that takes the group's largest number to the last
    code."""
    wide = grouped(weight, group)
    return _flat(*encode(wide, largest(wide) / LOWEST[bits], bits), weight.shape[-1])


def searched(weight: Tensor, bits: int, group: int, importance: Tensor | None = None) -> Rounded:
    """The scale of least squared error among many; then the best one for its codes, twice.

    ``importance`` (C,), or as the weight, weighs the errors of the inputs, by the mean square of
    what they are multiplied with. In 8 bits the nearest codes are as good.
    """
    if bits == 8:
        return nearest(weight, bits, group)
    wide = grouped(weight, group)
    matters = None if importance is None else grouped(importance.expand_as(weight), group)
    flat = wide.flatten(0, -2)
    flat_weights = None if matters is None else matters.flatten(0, -2)
    step = max(1, AT_ONCE // group)
    chunks = [
        _search(
            flat[at : at + step],
            None if flat_weights is None else flat_weights[at : at + step],
            bits,
        )
        for at in range(0, len(flat), step)
    ]
    codes, scales = (torch.cat(side) for side in zip(*chunks, strict=True))
    return _flat(codes.view(wide.shape), scales.view(*wide.shape[:-1], 1), weight.shape[-1])


def _search(wide: Tensor, matters: Tensor | None, bits: int) -> Rounded:
    """Codes (n, group) and scales (n, 1) of some groups."""
    most = largest(wide)
    codes, scales = encode(wide, most / LOWEST[bits], bits)
    least = error(wide, codes, scales, matters)

    def better(scale: Tensor) -> None:
        nonlocal codes, scales, least
        tried, rounded = encode(wide, scale, bits)
        new_error = error(wide, tried, rounded, matters)
        codes = torch.where(new_error < least, tried, codes)
        scales, least = (
            torch.where(new_error < least, rounded, scales),
            torch.minimum(new_error, least),
        )

    for code in CANDIDATES:
        better(most / code)
    for _ in range(2):
        q = codes.float() if matters is None else codes.float() * matters
        better(
            (q * wide).sum(-1, keepdim=True) / (q * codes).sum(-1, keepdim=True).clamp(min=1e-30)
        )
    return codes, scales


def grouped(weight: Tensor, group: int) -> Tensor:
    """(..., C) -> (..., G, group) in fp32, zeros after the last."""
    wide = F.pad(weight.detach().to(torch.float32), (0, -weight.shape[-1] % group))
    return wide.reshape(*weight.shape[:-1], -(-weight.shape[-1] // group), group)


def largest(wide: Tensor) -> Tensor:
    """The number of the largest size of each group, with its sign (..., G, 1)."""
    return wide.gather(-1, wide.abs().argmax(-1, keepdim=True))


def encode(wide: Tensor, scale: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Codes (..., G, group) and the scale (..., G, 1) as it is kept: never 0, so that a scale says
    what it is of."""
    rounded = scale.clamp(-65504.0, 65504.0).to(torch.float16)
    rounded = torch.where(rounded == 0, torch.full_like(rounded, SMALLEST), rounded)
    codes = (wide / rounded.float()).round().clamp(LOWEST[bits], HIGHEST[bits])
    if not bool(codes.isfinite().all()):
        raise UserError(
            "A weight holds NaN or infinite numbers, which no code stands for; restore the model."
        )
    return codes.to(torch.int8), rounded


def error(wide: Tensor, codes: Tensor, scales: Tensor, matters: Tensor | None) -> Tensor:
    """The squared error of each group (..., G, 1)."""
    apart = (codes * scales.float() - wide).square()
    return (apart if matters is None else apart * matters).sum(-1, keepdim=True)


def decode(codes: Tensor, scales: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """The numbers (..., C) that codes and scales stand for."""
    wide = scales.to(torch.float32).repeat_interleave(group, -1)[..., : codes.shape[-1]]
    return (codes * wide).to(dtype)


def _flat(codes: Tensor, scales: Tensor, inputs: int) -> Rounded:
    return codes.flatten(-2)[..., :inputs].contiguous(), scales.squeeze(-1).contiguous()


def pack(codes: Tensor) -> Tensor:
    """Codes of 4 bits (..., C) -> bytes (..., C / 2): the even ones in the low half, each 8 more
    than it is."""
    pairs = (codes + 8).to(torch.uint8)
    return pairs[..., 0::2] | (pairs[..., 1::2] << 4)


def unpack(pairs: Tensor) -> Tensor:
    """Codes of 4 bits (..., C) from the bytes of ``pack``."""
    return torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2).to(torch.int8) - 8
