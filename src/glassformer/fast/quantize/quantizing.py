"""A model to few bits, and the report of what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ...core.nn import Model
from ...core.nn.replace import replace_parameter
from .. import quantized, rounding
from .calibration import Gram, Progress, Text, grams
from .gptq import calibrated
from .quantization_report import (
    Answers,
    Effect,
    MatrixReport,
    QuantizationReport,
    Whole,
    ordered,
    relative_error,
)

TOKENS_EACH = 512  # of the held-out text, for each matrix alone
Roundings = dict[str, dict[str, quantized.Codes]]
"""The codes of every matrix by its path, by how they were rounded."""
Errors: TypeAlias = tuple[float, float | None]
"""Relative errors of a weight and of its outputs."""


def quantize_model(
    model: Model,
    layout: quantized.QuantizedLayout,
    text: Text | None = None,
    *,
    name: str = "model",
    progress: Progress = lambda _: None,
) -> QuantizationReport:
    """Quantize ``model`` in place, calibrated with ``text`` where it is given, and report what that
    costs.

    4 bits are rounded by GPTQ with a text and by a search of the scales without one; the report
    holds the simpler ways beside it. The whole text is read once for every GiB of sums, and its
    held-out rows once for each matrix. Raises UserError as ``nn.quantized.quantize_weights`` does.
    """
    plan = layout.plan(model)
    before: Gram = {path: model.get_parameter(path) for path in plan}
    answers = None if text is None else Answers(model, text.held_out)
    roundings, errors = _rounded(model, plan, layout, text, progress)
    chosen = list(roundings)[-1]
    effects = {} if answers is None else _alone(model, before, roundings[chosen], answers, progress)
    wholes = []
    for rounding_name, codes in roundings.items():
        for path, matrix_codes in codes.items():
            replace_parameter(model, path, quantized.parameter(matrix_codes, before[path].dtype))
        effect = None if answers is None else answers.effect(model)
        weights, outputs = zip(*errors[rounding_name].values(), strict=True)
        wholes.append(Whole(rounding_name, _mean(weights), _mean(outputs), effect))
    rows = [
        MatrixReport(
            path,
            tuple(before[path].shape),
            matrix_codes.bits,
            before[path].nbytes,
            matrix_codes.nbytes,
            *errors[chosen][path],
        )
        for path, matrix_codes in roundings[chosen].items()
    ]
    other_bytes = sum(
        weight.nbytes for path, weight in model.named_parameters() if path not in plan
    )
    return QuantizationReport(
        name,
        layout.bits,
        layout.group,
        layout.head,
        str(next(iter(before.values())).dtype).removeprefix("torch."),
        other_bytes + sum(row.before for row in rows),
        other_bytes + sum(row.after for row in rows),
        None if answers is None else answers.perplexity,
        0 if text is None else sum(row.numel() for row, _ in text.rows),
        0 if answers is None else answers.tokens,
        ordered(rows, effects),
        tuple(wholes),
    )


def _rounded(
    model: Model,
    plan: Mapping[str, int],
    layout: quantized.QuantizedLayout,
    text: Text | None,
    progress: Progress,
) -> tuple[Roundings, dict[str, dict[str, Errors]]]:
    """Every way to round every matrix, the best last; and what each loses."""
    names = (
        ["nearest"]
        + ["searched"] * (layout.bits == 4)
        + ["calibrated"] * (layout.bits == 4 and text is not None)
    )
    roundings: Roundings = {name: {} for name in names}
    errors: dict[str, dict[str, Errors]] = {name: {} for name in names}
    gram_groups: Any = (
        [dict.fromkeys(plan)] if text is None else grams(model, text.rows, list(plan), progress)
    )
    met: set[str] = set()

    def take(path: str, gram: Tensor | None) -> None:
        weight, bits = model.get_parameter(path), plan[path]
        for name in names:
            codes = quantized.Codes.of(
                _round(name, weight, bits, layout.group, gram), bits, layout.group
            )
            rounded = codes.decoded(torch.float32)
            output = None if gram is None else relative_error(weight, rounded, gram)
            roundings[name][path] = codes
            errors[name][path] = relative_error(weight, rounded), output
        met.add(path)

    for group in gram_groups:
        for path, gram in group.items():
            take(path, gram)
    for path in plan:
        if path not in met:  # a table that is only looked up in
            take(path, None)
    return {name: {path: roundings[name][path] for path in plan} for name in names}, errors


def _round(
    name: str, weight: Tensor, bits: int, group: int, gram: Tensor | None
) -> rounding.Rounded:
    if name == "nearest" or bits == 8:
        return rounding.nearest(weight, bits, group)
    if name == "searched" or gram is None:
        return rounding.searched(weight, bits, group)
    return calibrated(weight, bits, group, gram)


def _mean(values: Sequence[float | None]) -> Any:
    """The mean of those that there are, None where there is none."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def _alone(
    model: Model,
    before: Gram,
    codes: Mapping[str, quantized.Codes],
    answers: Answers,
    progress: Progress,
) -> dict[str, Effect]:
    """The effect on the answers of each matrix quantized alone."""
    effects: dict[str, Effect] = {}
    for number, (path, matrix_codes) in enumerate(codes.items(), 1):
        replace_parameter(model, path, quantized.parameter(matrix_codes, before[path].dtype))
        effects[path] = answers.effect(model, TOKENS_EACH)
        replace_parameter(model, path, before[path])
        progress(f"measuring, matrix {number} of {len(codes)}")
    return effects
