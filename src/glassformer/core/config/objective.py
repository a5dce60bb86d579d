"""Objectives and ways to tune: what training teaches, and how much of a model. No torch here.

[train]
objective = { type = "Masked", mask_rate = 0.15 }
tune = { type = "LoRA", rank = 8 }

Each objective is a page of ``tasks/objectives``; one of your own is a class in a file of yours:

    @config.member(Objective)
    class LastTokens(Objective):
        count: int = 8  # a setting: train.objective = { type = "LastTokens", count = 4 }

        def loss(self, model, batch, smoothing=0.0): ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

from ..errors import need
from .layers import Head
from .model import Decoder, Model
from .serial import PositiveFloat, PositiveInt, Share, frozen, members, to_dict

Random: TypeAlias = Any  # numpy.random.Generator

# ------------------------------------------------------------------------------------ objectives


class Objective:
    """Base class of objectives: settings are fields, and a subclass overrides what differs.

    What is here is right for one that learns from running text and asks about tokens.
    """

    members_of: ClassVar[str] = "objectives"
    """The registry's topic whose modules define this slot's types."""
    shapes: ClassVar[tuple[type, ...]] = (Decoder,)
    """The shapes of model it trains."""
    example_fields: ClassVar[tuple[str, ...]] = ()
    """The parts of an example, in the order of columns without names; none: running text."""
    optional: ClassVar[tuple[str, ...]] = ()
    """The parts that an example may lack."""
    specials: ClassVar[tuple[str, ...]] = ()
    """What a tokenizer trained for it has besides text; none: its end of text alone."""
    labelled: ClassVar[bool] = False
    """Whether the answers are labels (or a number), the same with any tokenizer."""
    every_token: ClassVar[bool] = False
    """Whether every token of the text is a target once an epoch: its loss tells bits per byte."""
    generates: ClassVar[bool] = False
    """Whether a text that the model writes shows what it has learned so far."""
    undivided: ClassVar[tuple[str, ...]] = ()
    """The axes of several processes along which its loss cannot be cut."""
    regularizers: ClassVar[tuple[str, ...]] = ()
    """Settings that change how it is learned and not what."""
    trains: ClassVar[tuple[str, ...]] = ()
    """Patterns of the weights that train, where the model itself stays as it is."""
    optimizer: ClassVar[Any] = None
    """The optimizer of a run that names none; None: that of the model."""
    all_micro_batches: ClassVar[Callable[..., Any] | None] = None
    """For a loss over a whole batch: called with (model, ``MicroBatches``, smoothing), it leaves its
    gradients in ``.grad`` and gives a ``Loss`` for each micro-batch that lies here."""

    def check(
        self, model: Model, tokenizer: Any = None, *, examples: bool, tune: Tune | None = None
    ) -> None:
        """UserError where model, tokenizer, kind of data or what is trained does not fit."""
        name, shape = type(self).__name__, type(model)
        shapes = " or ".join(kind.__name__ for kind in self.shapes)
        fitting = " or ".join(
            f'"{objective}"'
            for objective, kind in members(Objective).items()
            if shape in kind.shapes  # type: ignore[attr-defined]
        )
        need(
            shape in self.shapes,
            f"The objective {name} trains a model of the shape {shapes} and this one's is "
            f"{shape.__name__}; choose another recipe, or another objective such as "
            f"train.objective = {fitting}.",
        )
        kind = "examples" if self.example_fields else "running text"
        fitting = f'set [data] type = "{"Examples" if self.example_fields else "Data"}".'
        need(
            examples == bool(self.example_fields),
            f"The objective {name} learns from {kind}; {fitting}",
        )

    def with_heads(self, model: Model, labels: int) -> tuple[Model, list[str]]:
        """The config with the heads that the loss reads, and notes of what was changed for it."""
        if model.head is not None:
            return model, []
        head = Head(bias=model.is_encoder)
        return replace(model, head=head), ["The model has no head over tokens; one is added."]

    def task(self) -> dict[str, Any]:
        """The settings that two runs must share for their losses to be comparable, as JSON."""
        return {key: value for key, value in to_dict(self).items() if key not in self.regularizers}

    @property
    def smooths_labels(self) -> bool:
        """True if label smoothing changes the loss."""
        return True

    @property
    def prepares(self) -> bool:
        return type(self).prepare is not Objective.prepare

    def example(self, row: Any) -> Any:
        """The ``data.examples.Example`` in a ``Row`` of a file that has ``example_fields``."""
        raise NotImplementedError

    def layout(self, framing: Any, fit: Any) -> Callable[..., list[dict[str, list[int]]]]:
        """A function (example, ids of its first text, of its second or None) -> columns for the
        decoder or only stack, and before it for the encoder; ``framing`` says what opens and closes
        a text, ``fit`` cuts to the context.
        """
        raise NotImplementedError

    def prepare_tokenizer(self, tokenizer: Any) -> None:
        """Give the run's tokenizer what the objective reads texts with, such as a chat template."""

    def attach(self, model: Any, batch: Any, seed: int) -> None:
        """Give the model what ``trains`` names; ``batch`` is the run's first."""

    def prepare(self, batch: Any, random: Random, tokenizer: Any) -> Any:
        """The batch of running text (on the CPU) as a question: tokens hidden, targets asked."""
        return batch

    def loss(self, model: Any, batch: Any, smoothing: float = 0.0) -> Any:
        """The ``training.Loss`` of a prepared batch; its gradients reach every parameter."""
        raise NotImplementedError

    def metrics(
        self, predictions: Any, labels: Any, names: tuple[str, ...] = ()
    ) -> dict[str, float]:
        """Metrics over all of validation's predictions that are no mean over batches."""
        return {}


def default() -> Objective:
    """Returns the objective of a run file that names none."""
    objective: Objective = members(Objective)["Causal"]()
    return objective


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in members(Objective):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return members(Objective)[name]


# ------------------------------------------------------------------------- how much is trained


@frozen
class Full:
    """Every weight."""


@frozen
class Frozen:
    """Only the weights whose path matches ``train`` (fnmatch): by default the heads."""

    # fnmatch patterns of the parameters that train
    train: tuple[str, ...] = ("head.*", "pool.*", "token_head.*")


@frozen
class LoRA:
    """Low-rank changes beside frozen matrices (Hu et al. 2021): W + alpha / rank * up @ down."""

    rank: PositiveInt = 8  # rows of each low-rank pair
    alpha: PositiveFloat = 16.0  # the change counts alpha / rank times
    dropout: Share = 0.0  # on what the changes read
    # fnmatch patterns of the linear layers that are adapted
    target_modules: tuple[str, ...] = ("*.attn.q", "*.attn.v")
    # fnmatch patterns of what is trained whole
    modules_to_save: tuple[str, ...] = ("pool.*", "token_head.*")


Tune: TypeAlias = Full | Frozen | LoRA
