"""The product of weights of 8 bits, readable, in torch; slow. The compiled one must equal it bit for
bit, and it computes where there is no compiler. What the other C files compute is written out in
tests/kernel_reference.py.

M rows, N outputs, C inputs, G groups of 32 inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

GROUP = 32


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (M, C) -> whole numbers (M, G, 32) from -127 to 127 and their scales (M, G), one for each
    32 of a row.

    A group with something that is not a number, or infinite, has a scale that is not a number: it
    cannot hide.
    """
    groups = F.pad(x.float(), (0, -x.shape[1] % GROUP)).view(len(x), -1, GROUP)
    largest = groups.abs().amax(-1)
    sound = largest.isfinite()
    # truly divided
    inverse = torch.where(sound & (largest > 1e-30), torch.full_like(largest, 127) / largest, 0.0)
    scale = torch.where(largest > 1e-30, largest / 127, 0.0)
    integers = (groups * inverse[..., None]).nan_to_num(0.0).round()
    return integers, torch.where(sound, scale, torch.nan)


def integer_product(
    x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None = None
) -> Tensor:
    """x (M, C) times weight (N, C) int8 with scales (N, G) -> (M, N) fp32.

    The sum over a group is a whole number below 2^24, exact in fp32 in any order. Groups are added
    from the first to the last, each product and each sum rounded.
    """
    integers, row_scale = quantize_rows(x)
    wide = F.pad(weight, (0, -weight.shape[1] % GROUP)).view(len(weight), -1, GROUP).float()
    y = integers.new_zeros(len(x), len(weight))
    for group in range(wide.shape[1]):
        sums = integers[:, group] @ wide[:, group].T
        y = y + sums * (row_scale[:, group, None] * scales[:, group].float())
    return y if bias is None else y + bias.float()
