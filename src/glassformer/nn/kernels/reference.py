"""What each C file computes, readable, in torch; slow. The compiled functions must equal these bit for bit.

M rows, N outputs, C inputs, G groups of 32 inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

GROUP = 32
LANES = 16


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c in fp32, rounded once, as the processor's instruction does it.

    The product of two fp32 is exact in fp64. Their sum with c is rounded there to odd, after which rounding it again to
    fp32 cannot go wrong (Boldo and Melquiond, 2008).
    """
    product, c = a.double() * b.double(), c.double()
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)  # what the sum in fp64 lost (Knuth's two-sum)
    bits = total.view(torch.int64)
    nudge = torch.where((error > 0) == (total > 0), 1, -1)
    odd = torch.where((error != 0) & error.isfinite() & (bits % 2 == 0), bits + nudge, bits)
    return odd.view(torch.float64).float()


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (M, C) -> whole numbers (M, G, 32) from -127 to 127 and their scales (M, G), one for each 32 of a row.

    A group with something that is not a number, or infinite, has a scale that is not a number: it cannot hide.
    """
    groups = F.pad(x.float(), (0, -x.shape[1] % GROUP)).view(len(x), -1, GROUP)
    largest = groups.abs().amax(-1)
    sound = largest.isfinite()
    inverse = torch.where(sound & (largest > 1e-30), torch.full_like(largest, 127) / largest, 0.0)  # truly divided
    scale = torch.where(largest > 1e-30, largest / 127, 0.0)
    whole = (groups * inverse[..., None]).nan_to_num(0.0).round()
    return whole, torch.where(sound, scale, torch.nan)


def integer_product(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (M, C) times weight (N, C) int8 with scales (N, G) -> (M, N) fp32.

    The sum over a group is a whole number below 2^24, exact in fp32 in any order. Groups are added from the first to
    the last, each product and each sum rounded.
    """
    whole, row_scale = quantize_rows(x)
    wide = F.pad(weight, (0, -weight.shape[1] % GROUP)).view(len(weight), -1, GROUP).float()
    y = whole.new_zeros(len(x), len(weight))
    for group in range(wide.shape[1]):
        sums = whole[:, group] @ wide[:, group].T
        y = y + sums * (row_scale[:, group, None] * scales[:, group].float())
    return y if bias is None else y + bias.float()


def float_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (M, C) times weight (N, C), both fp32 or both bf16 -> (M, N) fp32: input by input, each a multiplication
    and addition rounded once. bf16 takes pairs of inputs, the second of each first, as vdpbf16ps does."""
    y = x.new_zeros(len(x), len(weight), dtype=torch.float32)
    last = x.shape[1] - 1
    swapped = x.dtype == torch.bfloat16
    for i in (min(i ^ 1, last) if swapped else i for i in range(last + 1)):
        y = fma(x[:, i, None].float(), weight[:, i].float(), y)
    return y if bias is None else y + bias.float()
