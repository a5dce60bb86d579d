"""What else training makes small: hidden tokens, spans, second halves, target texts, labels, pairs.

B batch, T tokens, D documents (texts), N pairs, C model dim, L labels
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import objective as words
from ..data.correlation import correlations, matthews
from ..data.entities import agreement, are_bio
from ..nn import Output, Tape
from . import corrupt
from .objective import Causal, Loss, Objective, detached, extra, read, token_loss

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer
    from .data import Batch

Random: TypeAlias = np.random.Generator


class Tokens:
    """Cross-entropy at the places that an objective asks about; the head sees only those."""

    def __init__(self, words: Any, label_smoothing: float = 0.0, tokenizer: Tokenizer | None = None) -> None:
        self.words, self.label_smoothing, self.tokenizer = words, label_smoothing, tokenizer

    def loss(self, model: Any, batch: Batch) -> Loss:
        """The loss of a batch that ``prepare`` made, a mean over the tokens asked about."""
        loss = token_loss(model, read(model, batch), batch.targets, self.label_smoothing, few=True)
        return dataclasses.replace(loss, tokens=tokens_in(batch))


class Seq2Seq(Tokens):
    """Each token of the target text, given the source and the tokens before."""


class Masked(Tokens):
    """The hidden tokens of running text (Devlin et al. 2019)."""

    def prepare(self, batch: Batch, random: Random) -> Batch:
        """Hide some of the tokens."""
        return corrupt.mask(batch, random, self.words, self.tokenizer)


class Prefix(Tokens):
    """The second part of each document after a first part that is seen both ways (Raffel et al. 2020)."""

    def prepare(self, batch: Batch, random: Random) -> Batch:
        """Cut each document in two."""
        return corrupt.split_prefix(batch, random, self.words)


class Span(Tokens):
    """The spans that sentinels stand for (Raffel et al. 2020)."""

    def prepare(self, batch: Batch, random: Random) -> Batch:
        """Take spans out of the source and put them into the targets."""
        return corrupt.spans(batch, random, self.words, self.tokenizer)


class Classify:
    """The label of each document by cross-entropy, or its number by squared error; answers are ``Output.pooled``."""

    def __init__(self, words: words.Classify, label_smoothing: float = 0.0, tokenizer: Any = None) -> None:
        self.words, self.label_smoothing = words, label_smoothing

    def loss(self, model: Any, batch: Batch) -> Loss:
        """A mean over documents; labels (D,) are long, or float for regression."""
        labels, how = batch.labels, self.words
        assert labels is not None
        tape = Tape("*.embed", edits={"*.embed": _leaf}, graph=True) if how.adversarial and model.training else None
        output = read(model, batch, tape)
        answer, metrics = self.answer(output), dict(output.metrics)
        total = self.wrong(answer, labels)
        if how.rdrop and model.training:
            other = self.answer(read(model, batch))
            total = (total + self.wrong(other, labels) + how.rdrop * self.apart(answer, other)) / 2
        if tape is not None:
            (embedded,) = tape.records.values()
            (grad,) = torch.autograd.grad(total, embedded, retain_graph=True)
            step = how.adversarial * uphill(grad, embedded.detach(), batch.pos)
            pushed = Tape(edits={"*.embed": lambda path, x: x + step})
            total = (total + self.wrong(self.answer(read(model, batch, pushed)), labels)) / 2
        if not how.regression:
            metrics["accuracy"] = (answer.argmax(-1) == labels).float().mean()
        said = (answer.detach(), labels)
        return Loss(total, len(labels), extra(output), tokens_in(batch), metrics, said)

    def answer(self, output: Output) -> Tensor:
        """What is said of each document: the labels' logits (D, L), or a number (D,)."""
        answer = _pooled(output).float()
        return answer[:, 0] if self.words.regression else answer

    def wrong(self, answer: Tensor, labels: Tensor) -> Tensor:
        """The loss, summed over documents."""
        if self.words.regression:
            return (answer - labels).square().sum()
        return F.cross_entropy(answer, labels, reduction="sum", label_smoothing=self.label_smoothing)

    def apart(self, one: Tensor, other: Tensor) -> Tensor:
        """How far two answers are from each other: the divergence both ways (Liang et al. 2021, 2), or the square."""
        if self.words.regression:
            return (one - other).square().sum()
        p, q = one.log_softmax(-1), other.log_softmax(-1)
        return ((p.exp() - q.exp()) * (p - q)).sum() / 2

    def measures(self, answer: Tensor, labels: Tensor) -> dict[str, float]:
        """What a mean over batches cannot say: correlations of numbers, Matthews' of two labels."""
        if self.words.regression:
            return correlations(answer, labels)
        return {"matthews": matthews(answer.argmax(-1), labels)} if answer.shape[1] == 2 else {}


def uphill(grad: Tensor, embedded: Tensor, pos: Tensor | None) -> Tensor:
    """``slope`` (B, T, C), in each document scaled to the mean length of its embedded tokens; padding has no slope."""
    lengths = torch.linalg.vector_norm(embedded.float(), dim=-1)  # (B, T)
    pos = torch.arange(grad.shape[1], device=grad.device).expand_as(lengths) if pos is None else pos
    which = ((pos.flatten() == 0).cumsum(0) - 1).clamp(min=0)
    there = (pos.flatten() >= 0).float()
    parts = torch.stack((grad.float().square().sum(-1).flatten(), lengths.flatten(), torch.ones_like(there))) * there
    square, length, tokens = lengths.new_zeros(3, int(which[-1]) + 1).index_add_(1, which, parts)  # of each document
    scale: Tensor = length / tokens / square.sqrt().clamp(min=1e-30)
    return grad * scale[which].view(*lengths.shape, 1).to(grad.dtype)


def _leaf(path: str, x: Tensor) -> Tensor:
    """What a gradient is asked for, also where the weights before it are frozen."""
    return x if x.requires_grad else x.detach().requires_grad_()


class Tag:
    """The label of each word by cross-entropy, at its first token; answers are ``Output.tagged``."""

    def __init__(self, words: words.Tag, label_smoothing: float = 0.0, tokenizer: Any = None) -> None:
        self.label_smoothing = label_smoothing
        self.names: tuple[str, ...] = ()  # of the labels, where they are known: entities are read from them

    def loss(self, model: Any, batch: Batch) -> Loss:
        """A mean over words; labels are ``batch.targets``."""
        output = read(model, batch)
        assert output.tagged is not None
        there = batch.targets >= 0
        answer, labels = output.tagged[there].float(), batch.targets[there]
        total = F.cross_entropy(answer, labels, reduction="sum", label_smoothing=self.label_smoothing)
        chosen, count = answer.argmax(-1), len(labels)
        metrics = {**output.metrics, "accuracy": (chosen == labels).float().sum() / max(1, count)}
        begins = torch.zeros_like(there) if batch.pos is None else batch.pos == 0
        begins[:, 0] = True
        sentence = begins.flatten().cumsum(0).view_as(there)[there]
        said = (chosen, torch.stack((labels, sentence.diff(prepend=sentence.new_zeros(1)).clamp(max=1)), 1))
        return Loss(total, count, extra(output), tokens_in(batch), metrics, said)

    def measures(self, chosen: Tensor, right: Tensor) -> dict[str, float]:
        """How many entities were found, if labels tell of any; right (N, 2): labels, and 1 where a sentence begins."""
        if not are_bio(self.names):
            return {}
        begins = right[:, 1].nonzero()[1:, 0].cpu()
        sides = (torch.tensor_split(side.cpu(), begins) for side in (chosen, right[:, 0]))
        told, true = ([[self.names[label] for label in one.tolist()] for one in side] for side in sides)
        return agreement(told, true)


class Contrast:
    """Which second text belongs to which first one, in both directions (Henderson et al. 2017).

    A pair stands side by side. In pieces the batch is still one: all of it is read for its vectors, then each piece
    once more for its gradients (Gao et al. 2021, gradient cache).
    """

    def __init__(self, words: words.Contrast, label_smoothing: float = 0.0, tokenizer: Any = None) -> None:
        self.words, self.label_smoothing = words, label_smoothing

    def loss(self, model: Any, batch: Batch) -> Loss:
        """A mean over pairs."""
        output = read(model, batch)
        loss = self.compare(_pooled(output))
        metrics = {**output.metrics, **loss.metrics}
        return dataclasses.replace(loss, aux=extra(output), tokens=tokens_in(batch), metrics=metrics)

    def compare(self, vectors: Tensor) -> Loss:
        """The loss of vectors (2N, C), the two of a pair one after the other."""
        vectors = F.normalize(vectors.float(), dim=-1)
        first, second = vectors[0::2], vectors[1::2]
        scores = first @ second.mT / self.words.temperature  # (N, N)
        right, smoothing = torch.arange(len(scores), device=scores.device), self.label_smoothing
        there = F.cross_entropy(scores, right, reduction="sum", label_smoothing=smoothing)
        back = F.cross_entropy(scores.mT, right, reduction="sum", label_smoothing=smoothing)
        accuracy = (scores.argmax(-1) == right).float().mean()
        return Loss((there + back) / 2, len(scores), metrics={"accuracy": accuracy})

    def together(self, model: Any, parts: Sequence[Batch]) -> Loss:
        """The loss of all parts as of one batch, its gradients left in ``.grad``; no more than one part is held."""
        device = next(model.parameters()).device
        drawn, vectors = [], []
        for part in parts:
            drawn.append(random_state(device))
            vectors.append(_pooled(read(model, part)).detach())
        end = random_state(device)
        leaf = torch.cat(vectors).requires_grad_()
        loss = self.compare(leaf)
        loss.sum.backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        aux, metrics = torch.zeros((), device=device), dict[str, Tensor]()
        grads = torch.split(leaf.grad, [len(some) for some in vectors])
        for part, state, grad in zip(parts, drawn, grads, strict=True):
            restore_random(device, state)  # the same dropout again
            output = read(model, part)
            added, share = extra(output), len(grad) / len(leaf)
            total = (_pooled(output) * grad).sum()
            if added is not None:
                total, aux = total + added * share * loss.count, aux + added.detach() * share
            total.backward()  # type: ignore[no-untyped-call]
            metrics = {n: metrics.get(n, 0) + fact.detach() * share for n, fact in output.metrics.items()}
        restore_random(device, end)
        tokens = sum(tokens_in(part) for part in parts)
        return Loss(loss.sum.detach(), loss.count, detached(aux), tokens, {**metrics, **loss.metrics})


def _pooled(output: Any) -> Tensor:
    assert output.pooled is not None
    pooled: Tensor = output.pooled
    return pooled


def random_state(device: torch.device) -> Tensor:
    """Where the generator that dropout draws from stands."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def restore_random(device: torch.device, state: Tensor) -> None:
    """Put that generator back there."""
    torch.cuda.set_rng_state(state, device) if device.type == "cuda" else torch.set_rng_state(state)


def tokens_in(batch: Batch) -> int:
    """The tokens of a batch that are there; those of a source are not counted."""
    return batch.tokens.numel() if batch.pos is None else int((batch.pos >= 0).sum())


# ------------------------------------------------------------------------- from words to objectives

BOOK: dict[type, Callable[..., Objective]] = {
    words.Causal: lambda chosen, smoothing, tokenizer: Causal(smoothing),
    words.Masked: Masked,
    words.Prefix: Prefix,
    words.Span: Span,
    words.Seq2Seq: Seq2Seq,
    words.Classify: Classify,
    words.Tag: Tag,
    words.Contrast: Contrast,
}


def make(
    chosen: words.Objective,
    label_smoothing: float = 0.0,
    tokenizer: Tokenizer | None = None,
    labels: Sequence[str] = (),
) -> Objective:
    """The objective that a run file's words describe; ``labels`` are the names of what is chosen from."""
    made = BOOK[type(chosen)](chosen, label_smoothing, tokenizer)
    if isinstance(made, Tag):
        made.names = tuple(labels)
    return made


class Prepared:
    """Batches as an objective wants them: what is drawn for one is a function of the seed and its number alone."""

    def __init__(self, batches: Any, prepare: Callable[[Batch, Random], Batch], seed: int) -> None:
        self.batches, self.prepare, self.seed, self.number = batches, prepare, seed, 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = next(self.batches)
        self.number += 1
        return self.prepare(batch, np.random.default_rng((self.seed % 2**64, 0, self.number)))

    @property
    def epoch(self) -> float:
        """Times the data has been gone through."""
        return getattr(self.batches, "epoch", 0)

    def state(self) -> dict[str, Any]:
        """Where the iterator stands, as JSON holds it."""
        return {"number": self.number, "batches": self.batches.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where ``state()`` was taken."""
        self.batches.restore(state["batches"])
        self.number = state["number"]


def prepared(batches: Any, objective: Objective, seed: int) -> Any:
    """The batches to train on, hidden or cut as the objective asks."""
    prepare = getattr(objective, "prepare", None)
    return batches if prepare is None else Prepared(batches, prepare, seed)


def prepared_once(batches: Iterable[Batch], objective: Objective, seed: int) -> Iterator[Batch]:
    """The batches to validate on, hidden or cut in the same way each time."""
    prepare = getattr(objective, "prepare", None)
    for number, batch in enumerate(batches):
        if prepare is None:
            yield batch
        else:
            yield prepare(batch, np.random.default_rng((seed % 2**64, 1, number)))
