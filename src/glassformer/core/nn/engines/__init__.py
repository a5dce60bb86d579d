"""softmax(q k^T) v by several engines, one of which is chosen for each call. ``eager`` is the
definition.

inputs   what an engine is given: AttentionInputs
eager    written out; what a tape watches
sdpa     PyTorch's fused kernels

Rooms register theirs (``fast/attention_engines.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ... import registry
from ...errors import UserError
from .eager import eager_attention
from .inputs import AttentionInputs
from .sdpa import sdpa_attention


class AttentionEngine(NamedTuple):
    """One way to compute ``AttentionInputs`` -> (B, H, T, D)."""

    name: str
    run: Callable[[AttentionInputs], Tensor]
    supports: Callable[[AttentionInputs], bool]  # whether it can compute them
    # whether it was measured to be the fastest of those that can
    preferred: Callable[[AttentionInputs], bool]


ENGINES: dict[str, AttentionEngine] = {
    engine.name: engine
    for engine in (
        *(engine for module in registry.load("engines") for engine in module.ENGINES),
        # the fastest wherever no row before it says otherwise
        AttentionEngine(
            "sdpa", sdpa_attention, lambda inputs: inputs.softcap is None, lambda inputs: True
        ),
        # scores that are capped: no fused kernel does that
        AttentionEngine("eager", eager_attention, lambda inputs: True, lambda inputs: True),
    )
}
"""The table that chooses, each row with what was measured: the first engine that is preferred and
supports a call."""


def engine_name(name: str | AttentionEngine) -> str | AttentionEngine:
    """Which engine a name means today: of ENGINES, or "auto", or an Engine itself; UserError where
    it means none."""
    if isinstance(name, AttentionEngine):
        return name
    if name != "auto" and name not in ENGINES:
        raise UserError(
            f'There is no engine of attention "{name}"; give auto, {", ".join(ENGINES)}.'
        )
    return name


def choose(inputs: AttentionInputs, name: str | AttentionEngine = "auto") -> AttentionEngine:
    """The engine of that name where it supports the call; otherwise, and for "auto", the table's
    first.

    An Engine from outside (``scale/ring.py``) is always taken.
    """
    if isinstance(name, AttentionEngine):
        return name
    if name != "auto" and ENGINES[name].supports(inputs):
        return ENGINES[name]
    for engine in ENGINES.values():
        # preferred first: it is false more often
        if engine.preferred(inputs) and engine.supports(inputs):
            return engine
    raise AssertionError("eager supports every call")


def attend(inputs: AttentionInputs, engine: str | AttentionEngine = "auto") -> Tensor:
    """Attention (B, H, T, D) by the engine that ``choose`` gives."""
    return choose(inputs, engine).run(inputs)
