"""Settings of a training, as frozen dataclasses: a run file's [train]. No torch here."""

# ruff: noqa: F401
# mypy: implicit-reexport
from __future__ import annotations

from dataclasses import field
from typing import Annotated, ClassVar, Literal, TypeAlias

from ..errors import need
from . import objective as objectives
from .objective import Full, Objective, Tune
from .optimizer import (
    AdamW,
    Constant,
    Cosine,
    Group,
    InverseSqrt,
    Muon,
    Optimizer,
    Schedule,
    WarmupStableDecay,
)
from .serial import PositiveFloat, PositiveInt, Range, Share, frozen

STOP = "stop"
"""A file of this name in a run folder asks the training there to save and end."""
PAUSE = "pause"
"""A file of this name makes it wait after its step until the file is gone."""
PAUSED = "Paused: take this file away to go on.\n"
"""A training that waits writes this into that file again and again: its age says that it lives."""
Interval: TypeAlias = Annotated[int, Range(lambda x: x >= 0, "steps, or 0 for never")]
Seed: TypeAlias = Annotated[int, Range(lambda x: 0 <= x < 2**63, "an integer from 0 to 2**63 - 1")]
Cut: TypeAlias = Literal["end", "start", "no"]
"""The end of a text that is cut where the text is too long; "no" refuses it."""


@frozen
class Train:
    """Settings of a training. ``batch`` rows of ``context`` tokens make a step."""

    table: ClassVar[str] = "train"

    objective: Objective = field(default_factory=objectives.default)  # what is learned
    tune: Tune = Full()  # how much of the model trains
    # draw embeddings and head anew, for another tokenizer than the checkpoint's
    new_embeddings: bool = False
    steps: PositiveInt = 1000  # optimizer steps
    batch: PositiveInt = 16  # rows a step
    accumulate: PositiveInt = 1  # micro-batches that a step's rows are worked through in
    context: PositiveInt | None = None  # tokens a row; none: the model's context
    optimizer: Optimizer = Muon()  # how gradients become updates
    schedule: Schedule = WarmupStableDecay()  # how the rate rises and falls
    clip: PositiveFloat | None = 1.0  # the most that the gradient's norm may be; none: no bound
    label_smoothing: Share = 0.0  # share of the target's probability spread over all tokens
    device: str | None = None  # cpu, cuda, cuda:1 or mps; none: the GPU where there is one
    # of activations and products; auto: by a table of machines
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    # products of fp32 in TF32 on a GPU: faster, with 10 bits of each factor's fraction
    tf32: bool = False
    # by torch.compile; blocks: one by one; auto: no
    compile: Literal["auto", "yes", "blocks", "no"] = "auto"
    seed: Seed = 0  # of random weights, order and dropout
    # steps in a row without a finite loss and gradient that stop the run
    max_skipped_steps: PositiveInt = 5
    early_stop: Interval = 0  # evaluations without a better one that end the run, 0: never
    evaluate_every: Interval = 100  # steps between validations, 0: never
    evaluate_batches: PositiveInt = 20  # the most batches of a validation on running text
    save_every: Interval = 500  # steps between checkpoints, 0: only at the end
    keep: PositiveInt = 2  # newest checkpoints that are kept, beside the best
    save_at: tuple[PositiveInt, ...] = ()  # steps that are validated, saved and kept as well
    sample_every: Interval = 200  # steps between samples, 0: never
    tensorboard: bool | None = None  # write TensorBoard's files; none: where it is installed

    def __post_init__(self) -> None:
        problem = (
            f"train.accumulate {self.accumulate} is more than the {self.batch} rows of "
            "train.batch; lower it."
        )
        need(self.accumulate <= self.batch, problem)


FINETUNE = AdamW(lr=1e-4)
"""The default from a checkpoint: a low rate, so that what was learned stays."""
FROM_SCRATCH = Muon(lr=1e-2, rest=AdamW(lr=2e-2))
"""The default of a glass recipe, whose embeddings start at unit size; measured at 1 to 2 M."""
