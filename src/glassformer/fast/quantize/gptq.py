"""GPTQ (Frantar et al. 2022, arXiv 2210.17323): what rounding an input loses is made up for by
those not rounded yet.

    inputs in the order of their weight in the output, the heaviest first; scales searched before,
    then fitted to codes code c of every output; its error / U[c, c] times row c of U is taken from
    the inputs after it

U is the upper Cholesky factor of the inverse of H = sum x x^T (+ a little on its diagonal). N
outputs, C inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.errors import need
from .. import rounding

DAMP = 0.01  # of the mean of H's diagonal, on the diagonal
BLOCK = 128  # inputs whose errors reach the others together
TURNS = 3  # of codes; between them scales are fitted to codes


def calibrated(weight: Tensor, bits: int, group: int, gram: Tensor) -> rounding.Rounded:
    """Codes and scales of weight (.., N, C) with the least squared error of the outputs; ``gram``
    is (.., C, C)."""
    if weight.ndim == 3:
        results = [
            calibrated(expert_weight, bits, group, expert_gram)
            for expert_weight, expert_gram in zip(weight, gram, strict=True)
        ]
        return torch.stack([codes for codes, _ in results]), torch.stack(
            [scales for _, scales in results]
        )
    matters = gram.diagonal().clamp(min=0.0)
    if not bool(matters.any()):  # an expert that no token went to
        return rounding.searched(weight, bits, group)
    floor = DAMP * matters.mean()
    order = matters.argsort(descending=True, stable=True)
    factor = _factor(gram[order][:, order], float(floor))
    best = rounding.searched(weight, bits, group, matters + floor)
    least = _output_error(weight, *best, group, gram)
    scales = best[1]
    for turn in range(TURNS):
        wide = scales.float().repeat_interleave(group, -1)[:, : weight.shape[1]][:, order]
        codes = torch.empty(weight.shape, dtype=torch.int8)
        codes[:, order] = _descend(weight.detach().float()[:, order].clone(), wide, factor, bits)
        if turn + 1 < TURNS:
            scales = _fitted(weight, codes, scales, group, gram)
        error = _output_error(weight, codes, scales, group, gram)
        better = (error < least)[:, None]
        best = torch.where(better, codes, best[0]), torch.where(better, scales, best[1])
        least = torch.minimum(error, least)
    return best


def _fitted(weight: Tensor, codes: Tensor, scales: Tensor, group: int, gram: Tensor) -> Tensor:
    """The scales with the least error for these codes, each in turn while the others stay."""
    fitted, residual = (
        scales.clone(),
        weight.detach().float() - rounding.decode(codes, scales, group, torch.float32),
    )
    slope = residual @ gram
    for g in range(scales.shape[1]):
        columns = slice(g * group, (g + 1) * group)
        q = codes[:, columns].float()
        step = (q * slope[:, columns]).sum(1) / ((q @ gram[columns, columns]) * q).sum(1).clamp(
            min=1e-30
        )
        old = scales[:, g]
        new = (old.float() + step).to(torch.float16)
        fitted[:, g] = torch.where(new.isfinite() & (new != 0), new, old)
        moved = fitted[:, g].float() - old.float()
        slope -= (moved[:, None] * q) @ gram[columns]
    return fitted


def _factor(gram: Tensor, floor: float) -> Tensor:
    """U (C, C); with more on the diagonal where the sums are too few for an inverse."""
    sound = bool(gram.isfinite().all())
    need(
        sound,
        "The calibration text makes numbers that are not finite in this model; quantize "
        "it without --calibrate.",
    )
    eye = torch.eye(len(gram), dtype=torch.float64)
    while True:
        lower, failed = torch.linalg.cholesky_ex(gram.double() + floor * eye)
        if not int(failed):
            inverse = torch.cholesky_inverse(lower)
            upper, failed = torch.linalg.cholesky_ex(inverse, upper=True)
            if not int(failed):
                factor: Tensor = upper.float()
                return factor
        floor = max(10 * floor, 1e-8)


def _descend(weight: Tensor, scales: Tensor, factor: Tensor, bits: int) -> Tensor:
    """The codes (N, C) of ``weight``, which is changed, input after input."""
    codes = torch.empty(weight.shape, dtype=torch.int8)
    for start in range(0, weight.shape[1], BLOCK):
        end = min(start + BLOCK, weight.shape[1])
        errors = torch.empty(len(weight), end - start)
        for c in range(start, end):
            code = (
                (weight[:, c] / scales[:, c])
                .round()
                .clamp(rounding.LOWEST[bits], rounding.HIGHEST[bits])
            )
            codes[:, c] = code.to(torch.int8)
            errors[:, c - start] = (weight[:, c] - code * scales[:, c]) / factor[c, c]
            weight[:, c:end] -= errors[:, c - start, None] * factor[c, c:end]
        weight[:, end:] -= errors @ factor[start:end, end:]
    return codes


def _output_error(
    weight: Tensor, codes: Tensor, scales: Tensor, group: int, gram: Tensor
) -> Tensor:
    """The squared error of each output over the text (N)."""
    apart = rounding.decode(codes, scales, group, torch.float32) - weight.detach().float()
    return ((apart @ gram) * apart).sum(-1)
