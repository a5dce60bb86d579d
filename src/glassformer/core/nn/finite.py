"""Outputs must be finite: where one is NaN or infinite, the weight at fault is named."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from ..errors import UserError, need


def is_finite(tensor: Tensor) -> bool:
    """True where every number is finite; ``aminmax`` returns NaN wherever there is one."""
    return not tensor.numel() or all(bool(end.isfinite()) for end in tensor.detach().aminmax())


def must_be_finite(model: nn.Module, *answers: Tensor) -> None:
    """Raise UserError that names the first weight not finite, where one of ``answers`` is not."""
    if all(map(is_finite, answers)):
        return
    check_weights(model.named_parameters())
    kind = str(next(model.parameters()).dtype).removeprefix("torch.")
    raise UserError(
        "The model's answer is NaN or infinite though its weights are not: they are too large "
        f"for {kind}; load it in another dtype or load another checkpoint."
    )


def check_weights(weights: Iterable[tuple[str, Tensor]]) -> None:
    """Raise UserError that names the first of these weights that is not finite."""
    for name, weight in weights:
        sentence = f"{name} holds NaN or infinite numbers, so this model has no answer;"
        need(is_finite(weight), f"{sentence} download it again or load another checkpoint.")
