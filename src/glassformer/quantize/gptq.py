"""GPTQ (Frantar et al. 2022, arXiv 2210.17323): what rounding an input loses is made up for by those not rounded yet.

    inputs in the order of their weight in the output, the heaviest first; scales fixed before (searched)
    code c of every output; its error / U[c, c] times row c of U is taken from the inputs after it

U is the upper Cholesky factor of the inverse of H = sum x x^T (+ a little on its diagonal). N outputs, C inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..nn import rounding

DAMP = 0.01  # of the mean of H's diagonal, on the diagonal
BLOCK = 128  # inputs whose errors reach the others together


def calibrated(weight: Tensor, bits: int, group: int, gram: Tensor) -> rounding.Rounded:
    """Codes and scales of weight (.., N, C) with the least squared error of the outputs; ``gram`` is (.., C, C)."""
    if weight.ndim == 3:
        parts = [calibrated(one, bits, group, own) for one, own in zip(weight, gram, strict=True)]
        return torch.stack([codes for codes, _ in parts]), torch.stack([scales for _, scales in parts])
    matters = gram.diagonal().clamp(min=0.0)
    if not bool(matters.any()):  # an expert that no token went to
        return rounding.searched(weight, bits, group)
    floor = DAMP * matters.mean()
    plain = rounding.searched(weight, bits, group, matters + floor)
    order = matters.argsort(descending=True, stable=True)
    wide = plain[1].float().repeat_interleave(group, -1)[:, : weight.shape[1]][:, order]
    factor = _factor(gram[order][:, order], float(floor))
    codes = torch.empty(weight.shape, dtype=torch.int8)
    codes[:, order] = _descend(weight.detach().float()[:, order].clone(), wide, factor, bits)
    better = _output_error(weight, codes, plain[1], group, gram) < _output_error(weight, *plain, group, gram)
    return torch.where(better[:, None], codes, plain[0]), plain[1]


def _factor(gram: Tensor, floor: float) -> Tensor:
    """U (C, C); with more on the diagonal where the sums are too few for an inverse."""
    eye = torch.eye(len(gram), dtype=torch.float64)
    while True:
        lower, failed = torch.linalg.cholesky_ex(gram.double() + floor * eye)
        if not int(failed):
            inverse = torch.cholesky_inverse(lower)
            upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
            if not int(failed):
                found: Tensor = upper.float()
                return found
        floor = max(10 * floor, 1e-8)


def _descend(weight: Tensor, scales: Tensor, factor: Tensor, bits: int) -> Tensor:
    """The codes (N, C) of ``weight``, which is changed, input after input."""
    codes = torch.empty(weight.shape, dtype=torch.int8)
    for begin in range(0, weight.shape[1], BLOCK):
        end = min(begin + BLOCK, weight.shape[1])
        errors = torch.empty(len(weight), end - begin)
        for c in range(begin, end):
            code = (weight[:, c] / scales[:, c]).round().clamp(rounding.LOWEST[bits], rounding.HIGHEST[bits])
            codes[:, c] = code.to(torch.int8)
            errors[:, c - begin] = (weight[:, c] - code * scales[:, c]) / factor[c, c]
            weight[:, c:end] -= errors[:, c - begin, None] * factor[c, c:end]
        weight[:, end:] -= errors @ factor[begin:end, end:]
    return codes


def _output_error(weight: Tensor, codes: Tensor, scales: Tensor, group: int, gram: Tensor) -> Tensor:
    """The squared error of each output over the text (N)."""
    apart = rounding.decode(codes, scales, group, torch.float32) - weight.detach().float()
    return ((apart @ gram) * apart).sum(-1)
