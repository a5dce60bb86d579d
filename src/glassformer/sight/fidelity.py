"""Features of a dictionary beside a model (formats/dictionaries.py): how much of the loss they keep, and what
one is for, each beside random directions.

B rows, T tokens, N predicted tokens, F features, C numbers that are written.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import need
from ..core.files import JsonObject
from ..core.nn import Model, Tape
from ..core.nn.model import inference
from . import streams, text_table
from .figures.progress_bar import Progress, Report
from .neurons import Neuron, _batches, top_activations

ACTIVE, ERROR = "features.active", "features.error"
TOKENS = 1 << 10  # of a pass
Rows: TypeAlias = Sequence[tuple[Tensor, Tensor]]  # ids (B, T) and their positions, -1 at padding
TapeEdits: TypeAlias = Mapping[str, Callable[[str, Tensor], Tensor]]


@dataclass(frozen=True)
class Fidelity:
    """Losses of a decoder that reads on from the features of a value alone.

    ``losses`` (nats a token) are of the model as it is, with its features, with those of a random
    dictionary of the same size, with the value's mean and with zeros in the value's place. ``active``
    features stand at a token in the mean, ``random_active`` of the random dictionary; ``silent`` is the
    share that never are.
    """

    target: str
    tokens: int
    active: float
    random_active: float
    silent: float
    losses: dict[str, float]

    def recovered(self, variant: str = "features", ablation: str = "zeros") -> float:
        """The share of the loss that a variant recovers: the ablation's is 0, the model's is 1."""
        worst = self.losses[ablation]
        return (worst - self.losses[variant]) / (worst - self.losses["model"])

    def to_dict(self) -> JsonObject:
        return {**asdict(self), "recovered": {name: self.recovered(name) for name in self.losses}}

    def lines(self) -> list[str]:
        rows = [
            (name, f"{loss:.4f}", *(f"{self.recovered(name, x):.1%}" for x in ("zeros", "mean")))
            for name, loss in self.losses.items()
        ]
        heading = (f"in place of {self.target}", "loss", "recovered from zeros", "from the mean")
        return [
            f"{self.tokens:,} tokens; {self.active:.1f} features active at each, of the random "
            f"dictionary {self.random_active:.1f}; {self.silent:.1%} of the features never active.",
            *text_table.lines(rows, heading, left_columns=(0,)),
        ]


@dataclass(frozen=True)
class Feature:
    """One feature: its ``neuron`` has the places where it is greatest.

    ``logits`` are the tokens that its direction raises and lowers most, before the scale of the last
    norm (none where it does not write to the residual stream); ``random_logit`` is the largest that a
    random direction of its length adds. Where it is active, the loss of the next token rises by
    ``ablated`` with the feature at 0, and by ``random_ablated`` without a random direction as long.
    """

    neuron: Neuron
    logits: list[tuple[str, float]]
    random_logit: float
    ablated: float
    random_ablated: float

    def lines(self) -> list[str]:
        words = "  ".join(f"{word} {value:+.3f}" for word, value in self.logits)
        most = f"a random direction at most {self.random_logit:.3f}."
        return [
            f"{self.neuron.name}: active at {self.neuron.above_zero:.2%} of {self.neuron.read:,} tokens.",
            f"Set to 0 there, the loss of the next token changes by {self.ablated:+.4f}; without a random "
            f"direction as long by {self.random_ablated:+.4f}.",
            *([f"Logits: {words}; {most}"] if words else []),
            *self.neuron.table(),
        ]


def fidelity(
    model: Model,
    tokenizer: Any,
    texts: Iterable[str],
    *,
    limit: int | None = None,
    context: int | None = None,
    seed: int = 0,
    progress: Report = True,
) -> Fidelity:
    """Measures what a decoder predicts with its features in place of the value that they stand for.

    Args:
        model: A decoder with features, such as that in the folder of a run of ``Features``.
        tokenizer: The tokenizer that came with it.
        texts: Texts that the dictionary was not trained on.
        limit: The most tokens that are read.
        context: Tokens of a row; None is the model's context.
        seed: The seed of the random dictionary.
        progress: True shows a bar; a function is called with (variants done, all).

    Returns:
        The losses, beside those of a random dictionary and of ablations.

    Raises:
        UserError: The model has no features, or predicts no tokens.

    Example:
        >>> glassformer.fidelity(model, tokenizer, ["Once upon a time"]).recovered()
    """
    dictionary, rows = _read(model, tokenizer, texts, limit, context)
    firings = torch.zeros(2, dictionary.width)
    sums = list[Tensor]()

    def see(number: int, tape: Tape, is_token: Tensor) -> None:
        firings[number] += (tape[ACTIVE][is_token] > 0).sum(0).cpu()
        value = tape[ERROR] + tape[ACTIVE] @ dictionary.W_dec
        sums.append(streams.fp64(value[is_token]).sum(0))

    with Progress("reading", progress) as report, inference(model):
        losses = {"model": _losses(model, rows, {}, lambda *tape: see(0, *tape))}
        tokens = sum(int((pos >= 0).sum()) for _, pos in rows)
        mean = torch.stack(sums).sum(0) / tokens
        zero = torch.zeros(())
        variants: dict[str, TapeEdits] = {
            "features": {ERROR: _constant(zero)},
            "mean": {ACTIVE: _constant(zero), ERROR: _constant(mean)},
            "zeros": {ACTIVE: _constant(zero), ERROR: _constant(-dictionary.b_dec)},
        }
        for number, (name, edits) in enumerate(variants.items(), 1):
            report(number, len(variants))
            losses[name] = _losses(model, rows, edits)
        model.features = randomised(dictionary, seed)
        try:
            losses["random dictionary"] = _losses(
                model, rows, variants["features"], lambda *tape: see(1, *tape)
            )
        finally:
            model.features = dictionary
    active, random_active = (firings.sum(1) / tokens).tolist()
    silent = (firings[0] == 0).float().mean().item()
    means = {name: x.mean().item() for name, x in losses.items()}
    return Fidelity(dictionary.target, len(losses["model"]), active, random_active, silent, means)


def feature(
    model: Model,
    tokenizer: Any,
    number: int,
    texts: Sequence[str],
    *,
    top: int = 10,
    limit: int | None = None,
    context: int | None = None,
    seed: int = 0,
    progress: Report = True,
) -> Feature:
    """Finds what one feature is for: its places, its logits, and the loss without it.

    Args:
        model: A decoder with features.
        tokenizer: The tokenizer that came with it.
        number: The feature.
        texts: The texts.
        top: Places, and tokens on each side of the logits.
        limit: The most tokens that are read.
        context: Tokens of a row; None is the model's context.
        seed: The seed of the random direction.
        progress: True shows a bar; a function is called with (tokens read, the limit or 0).

    Returns:
        The feature, each number beside that of a random direction.

    Raises:
        UserError: There is no such feature.
    """
    dictionary, rows = _read(model, tokenizer, texts, limit, context)
    name = f"{ACTIVE}[{number}]"
    last = dictionary.width - 1
    need(0 <= number <= last, f"There is no feature {number}; there are 0 to {last}.")
    (neuron,) = top_activations(
        model, tokenizer, texts, [name], top=top, limit=limit, context=context, progress=progress
    )
    direction = dictionary.W_dec[number]
    random = streams.random_direction(direction, seed)
    logits, random_logit = _logits(model, tokenizer, direction, random, top)
    values = list[Tensor]()  # (B, T) of each pass
    is_other = torch.arange(dictionary.width, device=direction.device) != number
    with inference(model):
        plain = _losses(
            model, rows, {}, lambda tape, _: values.append(tape[ACTIVE][..., number].clone())
        )
        pairs = zip(values, rows, strict=True)
        active = torch.cat([value[:, :-1][pos[:, 1:] >= 0] > 0 for value, (_, pos) in pairs])
        passes = iter(values)
        variants: tuple[TapeEdits, ...] = (
            {ACTIVE: lambda path, x: x * is_other},
            {ERROR: lambda path, x: x - next(passes)[..., None] * random},
        )
        changes = [(_losses(model, rows, edits) - plain)[active].sum().item() for edits in variants]
    return Feature(neuron, logits, random_logit, *(x / max(1, int(active.sum())) for x in changes))


def randomised(dictionary: Any, seed: int) -> Any:
    """A dictionary of the same size and lengths, of random directions that stand for themselves."""
    baseline = copy.deepcopy(dictionary)
    generator = torch.Generator().manual_seed(seed)
    for weight, side in ((baseline.W_dec, 1), (baseline.W_enc, 0)):
        rows = torch.randn(baseline.width, weight.shape[side], generator=generator)
        if weight is baseline.W_enc and baseline.target == baseline.address:
            rows = baseline.W_dec.cpu()
        lengths = weight.norm(dim=side, keepdim=True)
        weight.data = F.normalize(rows if side else rows.T, dim=side).to(weight) * lengths
    baseline.b_enc.data.zero_()
    return baseline


def _logits(
    model: Model, tokenizer: Any, direction: Tensor, random: Tensor, top: int
) -> tuple[list[tuple[str, float]], float]:
    """The logits that a direction adds to most and takes from most, and a random one's largest."""
    if len(direction) != model.config.dim:
        return [], 0.0
    gain = getattr(streams.last_norm(model), "weight", None)
    table = streams.wide(model.head.table(model.embed))[: tokenizer.size]  # type: ignore[union-attr]
    directions = torch.stack([direction, random]) * (1 if gain is None else streams.wide(gain))
    logits, random_logits = directions @ table.T
    order = logits.argsort(descending=True).tolist()
    ids = [*order[:top], *order[-top:]]
    words = streams.display_texts(tokenizer, ids)
    return list(zip(words, logits[ids].tolist(), strict=True)), random_logits.abs().max().item()


def dictionary_of(model: Model) -> Any:
    """The dictionary beside a model; UserError where there is none."""
    need(
        "features" in model._modules,
        "This model has no features; train some (glassformer train --from MODEL --objective Features), "
        "or name a dictionary: glassformer features MODEL --dictionary FOLDER.",
    )
    return model.features


def _read(
    model: Model, tokenizer: Any, texts: Iterable[str], limit: int | None, context: int | None
) -> tuple[Any, Rows]:
    """The dictionary of a model, and texts as rows."""
    dictionary = dictionary_of(model)
    need(
        model.config.main_body == "decoder" and model.head is not None,
        "Losses are of a decoder's next token; give a decoder with a head.",
    )
    windows = streams.windows(model, tokenizer, texts, context)
    rows = [streams.padded(x) for x in _batches(windows, limit, TOKENS)]
    need(any(len(ids[0]) > 1 for ids, _ in rows), "The texts hold no next token; give more.")
    return dictionary, rows


def _losses(
    model: Model,
    rows: Rows,
    edits: TapeEdits,
    see: Callable[[Tape, Tensor], None] = lambda tape, is_token: None,
) -> Tensor:
    """The loss of each next token (N,), with edits; ``see`` is shown the features of each pass."""
    losses = []
    for tokens, pos in rows:
        tape = Tape(ACTIVE, ERROR, edits=edits)
        is_next = pos[:, 1:] >= 0
        hidden = model(tokens, pos=pos, tape=tape, logits="none").hidden[:, :-1][is_next]
        logits = streams.wide(model.head(hidden, model.embed))  # type: ignore[misc]
        losses.append(F.cross_entropy(logits, tokens[:, 1:][is_next], reduction="none"))
        see(tape, pos >= 0)
    return torch.cat(losses)


def _constant(value: Tensor) -> Callable[[str, Tensor], Tensor]:
    return lambda path, x: value.to(x).expand_as(x)
