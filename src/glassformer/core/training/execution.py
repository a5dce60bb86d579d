"""How a run is computed: the choice that is saved with its checkpoints. ``fast/training`` makes it
and carries it out; the core alone trains in the model's own number format."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ExecutionSettings:
    """Number format and compiling of a run, saved with it so that a resumed run does the same.

    ``blocks``: each block is compiled, not the whole model; ``tf32``: fp32 products are in TF32.
    ``machine`` is the kind it was decided for. ``seconds`` is a step's measured time (0: not
    measured) and ``peak`` the machine's measured matrix product in FLOP/s: they tell, they decide
    nothing.
    """

    dtype: str = "float32"
    compile: bool = False
    seconds: float = 0.0
    peak: float = 0.0
    why: str = ""
    machine: str = ""
    tf32: bool = False
    blocks: bool = False

    @contextlib.contextmanager
    def products(self) -> Iterator[None]:
        """While entered, fp32 products are computed as ``tf32`` says, afterwards as before."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.tf32 else before)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
