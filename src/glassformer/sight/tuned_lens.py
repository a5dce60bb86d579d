"""The tuned lens: an affine translator for each depth, fitted so that it says what the model will
(Belrose et al.).

arXiv 2303.08112:

    states of depth d (C) --> h + W_d h + b_d --> the model's own last norm and head --> logits

W and b start at zero, which is the logit lens; they are moved by KL(own || depth), nothing in the
model is.

D depths, T tokens, C model dim, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.config import serial
from ..core.errors import need
from ..core.nn import Model, lora
from ..core.nn.model import inference
from . import streams
from .figures.charts import Chart, Curves, Prose
from .figures.progress_bar import Progress
from .figures.shown import Records, Saved

NUMBERS = 1 << 23  # logits made at a time
HELD_OUT = 10  # every tenth text is kept to measure with,
MOST_HELD = 1 << 13  # until these are so many tokens
SAMPLE = 1 << 12  # numbers of each weight that tell one model from another

Batch = tuple[Tensor, Tensor | None]  # a text (1, T), and an encoder-decoder's source
Report = Callable[[int, float], None]  # steps done, the mean KL of the last


@dataclass(frozen=True, repr=False)
class TunedLens(Saved):
    """Translators of every depth but the last, which is the model itself.

    Attributes:
        weight: (D, C, C), a matrix for each of D depths.
        bias: (D, C).
        depths: The names of the depths.
        model: The fingerprint of the model that it was fitted to.
        data: What it was fitted on.
        steps: Steps of the fit.
        tokens: Tokens that it was fitted on.
        before: The mean KL of each depth in nats, on texts held out, without the translators.
        after: The same with them.

    Example:
        >>> import torch
        >>> ids = torch.tensor([tokenizer.encode("Once upon a time there was a dog")])
        >>> lens = glassformer.fit_tuned_lens(model, [(ids, None)] * 40, steps=2, tokens=16)
        >>> lens.save("lens.safetensors")
        >>> print(glassformer.TunedLens.load("lens.safetensors").after)
    """

    noun = "tuned lens"
    command = "lens --fit"
    not_json = ("weight", "bias")

    weight: Tensor
    bias: Tensor
    depths: list[str]
    model: str
    data: str
    steps: int
    tokens: int
    before: list[float]
    after: list[float]

    def translate(self, depth: int, x: Tensor) -> Tensor:
        """States (.., C) of a depth, as the last norm and the head are to read them."""
        weight, bias = (parameter[depth].to(x.device) for parameter in (self.weight, self.bias))
        return (x + F.linear(streams.wide(x), weight.to(streams.wide(x).dtype), bias)).to(x.dtype)

    def must_fit(self, model: Model) -> None:
        """Raise UserError for a model that it was not fitted to."""
        matches = self.weight.shape[-1] == model.config.dim and self.model == fingerprint(model)
        need(
            matches,
            "This tuned lens was fitted to another model; fit one to this model: "
            "glassformer lens --fit DATA.",
        )

    def origin(self) -> str:
        """Origin of the lens, in a sentence."""
        first, last = (sum(kl) / len(kl) for kl in (self.before, self.after))
        fitted = (
            f"fitted on {self.data} in {self.steps:,} steps of "
            f"{self.tokens // max(self.steps, 1):,} tokens"
        )
        return f"{fitted}; mean KL of the depths on texts held out {first:.4f} -> {last:.4f} nats."

    @property
    def title(self) -> str:
        return "Tuned lens"

    def charts(self) -> Iterator[Chart]:
        """KL to the model's answer by depth, before the fit (the logit lens) and after."""
        yield Prose([self.origin()])
        title = "mean KL(own || depth) in nats on texts held out, by depth"
        yield Curves.by_depth(title, {"before": self.before, "after": self.after})
        yield self._table()

    def records(self) -> Records:
        """A row for each depth."""
        rows = zip(self.depths, self.before, self.after, strict=True)
        return ("depth", "kl_before", "kl_after"), rows

    def tensors(self) -> dict[str, Any]:
        return {"weight": self.weight.numpy(), "bias": self.bias.numpy()}

    @classmethod
    def _of(cls, path: str | Path, file: Any, facts: dict[str, Any]) -> TunedLens:
        lens = cls(*map(file.take, cls.not_json), **facts)
        D, C = lens.bias.shape
        if lens.weight.shape != (D, C, C):
            raise ValueError("its tensors do not fit together")
        return lens


def fit_tuned_lens(
    model: Model,
    texts: Iterable[Batch],
    *,
    data: str = "texts",
    steps: int = 200,
    tokens: int = 1024,
    rate: float = 3e-3,
    progress: Report | bool = True,
) -> TunedLens:
    """Fits a translator to each depth of a model by Adam, its rate falling to zero.

    Args:
        model: The model.
        texts: Pairs of token ids (1, T) and an encoder-decoder's source or None. They are read
            again where they end too soon; every tenth is held out and measured before and after.
        data: The name of the texts, for the record.
        steps: Steps of Adam.
        tokens: Tokens of a step, about.
        rate: The learning rate.
        progress: True shows a bar; a function is called with (steps done, mean KL).

    Returns:
        The translators, for ``logit_lens(tuned=...)``.

    Raises:
        UserError: The model has no head or no depth before its last, or there are too few texts.

    Example:
        >>> import torch
        >>> ids = torch.tensor([tokenizer.encode("Once upon a time there was a dog")])
        >>> lens = glassformer.fit_tuned_lens(model, [(ids, None)] * 40, steps=2, tokens=16)
    """
    streams.needs_head(model, "there is nothing to tune for.")
    need(
        steps > 0 and tokens > 0,
        f"steps is {steps} and tokens is {tokens}; give 1 or more of each.",
    )
    need(rate > 0, f"rate is {rate}; give a number above 0.")
    train, held_out = _shared_out(texts, steps * tokens)
    hidden = streams.states(model, streams.Read(*held_out[0], {}))
    depths = list(hidden.by_path)[:-1]
    dim = hidden.out.shape[-1]
    need(
        bool(depths),
        "This model has only its final depth, so there is nothing to tune.",
    )
    reference = streams.wide(hidden.out)
    weight, bias = (
        reference.new_zeros(len(depths), *shape).requires_grad_() for shape in ((dim, dim), (dim,))
    )
    model_id = fingerprint(model)
    lens = TunedLens(weight, bias, depths, model_id, data, steps, 0, [], [])
    before = _measure(model, lens, held_out)
    optimizer = torch.optim.Adam([weight, bias], lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    tokens_read = 0
    source = cycle(train)
    with Progress("fitting", progress is True) as bar:
        for step in range(steps):
            count = 0
            total = 0.0
            while count < tokens:
                batch = next(source)
                total += sum(_kl(model, lens, batch, learn=True)) / len(depths)
                count += batch[0].shape[1]
            for parameter in (weight, bias):
                assert parameter.grad is not None
                parameter.grad /= count
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            tokens_read += count
            bar(step + 1, steps, f"KL {total / count:.4f}")
            if callable(progress):
                progress(step + 1, total / count)
    with torch.no_grad():
        after = _measure(model, lens, held_out)
    return TunedLens(
        weight.detach().cpu(),
        bias.detach().cpu(),
        depths,
        model_id,
        data,
        steps,
        tokens_read,
        before,
        after,
    )


def _shared_out(texts: Iterable[Batch], tokens: int) -> tuple[list[Batch], list[Batch]]:
    """Texts to fit to, enough for so many tokens where there are, and every tenth held out."""
    train: list[Batch] = []
    held_out: list[Batch] = []
    count = kept_tokens = 0
    for number, batch in enumerate(texts):
        if number % HELD_OUT == 0 and kept_tokens < MOST_HELD:
            held_out.append(batch)
            kept_tokens += batch[0].shape[1]
        else:
            train.append(batch)
            count += batch[0].shape[1]
        if count >= tokens:
            break
    need(bool(train), "Fitting needs one text and a held-out text; give two or more.")
    return train, held_out


def _measure(model: Model, lens: TunedLens, held_out: Sequence[Batch]) -> list[float]:
    """The mean KL of each depth over texts."""
    sums = [_kl(model, lens, batch, learn=False) for batch in held_out]
    count = sum(tokens.shape[1] for tokens, _ in held_out)
    return [sum(depth) / count for depth in zip(*sums, strict=True)]


def _kl(model: Model, lens: TunedLens, batch: Batch, learn: bool) -> list[float]:
    """KL(own || depth) of each depth, summed over a text's tokens; ``learn`` adds its gradients."""
    hidden = streams.states(model, streams.Read(*batch, {}))
    head: Any = model.head
    last_norm = streams.last_norm(model)
    sums = [0.0] * len(lens.depths)
    step = max(1, NUMBERS // model.config.embed.vocab)
    with streams.frozen(model):
        for low in range(0, len(hidden.out), step):
            with inference(model):
                final = streams.wide(
                    head(hidden.out[None, low : low + step], model.embed)[0]
                ).log_softmax(-1)
            for depth, path in enumerate(lens.depths):
                with torch.set_grad_enabled(learn):
                    x = lens.translate(depth, hidden.by_path[path][low : low + step])
                    logprobs = streams.wide(head(last_norm(x), model.embed)).log_softmax(-1)
                    kl = F.kl_div(logprobs, final, reduction="sum", log_target=True)
                    if learn:
                        kl.backward()  # type: ignore[no-untyped-call]
                sums[depth] += float(kl.detach())
    return sums


def fingerprint(model: Model) -> str:
    """Fingerprint of a model: its config, and some of each weight rounded to bf16, as
    other dtypes have it."""
    digest = hashlib.sha256(serial.dumps(model.config).encode())
    for name, weight in sorted(lora.weights(model).items()):
        flat = weight.detach().flatten()
        sample = flat[:: max(1, len(flat) // SAMPLE)].to(torch.bfloat16).cpu()
        digest.update(
            f"{name} {tuple(weight.shape)}".encode() + sample.view(torch.int16).numpy().tobytes()
        )
    return digest.hexdigest()
