"""Linear probes: what a linear function of one value says of a text's label, at every depth, beside the
same fit on shuffled labels; and the direction that it found, which edits add or remove.

N texts, T tokens, C numbers of a token, L labels, A addresses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import UserError, install_extra, need
from ..core.nn import Model, Tape
from . import streams
from .axes import headed, keyed
from .figures.charts import Chart, Prose
from .figures.progress_bar import Progress, Report
from .figures.shown import Records, Saved
from .inputs import token_ids
from .looking import look, matching, must_match
from .looking import paths as all_paths
from .reading import Edits
from .tuned_lens import fingerprint

TOKENS = 1 << 12  # of a pass
HELD_OUT = 4  # every fourth text of a label measures the fit
ROUNDING = 1e-12  # of a mean: numbers that differ by less are one number
KINDS = ("mean", "direction")  # tensors of each address


@dataclass(frozen=True, repr=False)
class Probe(Saved):
    """Linear probes of the labels of texts, one at each address, and their directions.

    Attributes:
        addresses: The names of the values that were probed.
        labels: The labels in their order.
        accuracy: The accuracy at each address, on texts held out.
        shuffled: At each address the accuracy of the same fit on each shuffle of the labels.
        majority: The share of the commonest label among the texts held out.
        texts: Texts that were fitted, and texts that were held out.
        method: "logistic" or "ridge".
        position: "last" or "mean", which tokens of a text are read.
        model: The fingerprint of the model.
        data: The name of the texts.
        tensors_of: By address the mean (C) of the texts, and a direction (L, C) for each label, from
            the mean of all texts to the mean of the label's.
        name: The file, or the name by which a server knows the probe.

    Example:
        >>> texts = [f"{word} dog" for word in "a the one his her my our your".split()]
        >>> probe = glassformer.probe(model, tokenizer, texts, [0, 1] * 4, shuffles=1)
        >>> probe.save("probe.safetensors")
        >>> print(glassformer.Probe.load("probe.safetensors").best)
    """

    noun = "probe"
    command = "probe MODEL DATA --out FILE.safetensors"
    not_json = ("tensors_of", "name")

    addresses: list[str]
    labels: list[str]
    accuracy: list[float]
    shuffled: list[list[float]]
    majority: float
    texts: list[int]
    method: str
    position: str
    model: str
    data: str
    tensors_of: Mapping[str, Mapping[str, Tensor]]
    name: str = "probe"

    @property
    def best(self) -> str:
        """The address of the highest accuracy, the first of several."""
        return self.addresses[self.accuracy.index(max(self.accuracy))]

    def must_fit(self, model: Model) -> None:
        """Raises UserError for a model that it was not fitted to."""
        sentence = "was fitted to another model; fit a probe to this model: glassformer probe."
        need(self.model == fingerprint(model), f"{self.name} {sentence}")

    def tensor(self, address: str, kind: str, toward: str | None = None) -> Tensor:
        """The mean (C) at an address, or the direction (C) toward a label, the last unless named.
        UserError for an address that was not probed and an unknown label."""
        matching(address, self.addresses, f"value that {self.name} probes")
        label = toward or self.labels[-1]
        available = ", ".join(self.labels)
        need(label in self.labels, f'{self.name} has no label "{label}"; it has {available}.')
        tensor = self.tensors_of[address][kind]
        return tensor if kind == "mean" else tensor[self.labels.index(label)]

    def score(
        self,
        model: Model,
        tokenizer: Any,
        text: str,
        *,
        address: str | None = None,
        toward: str | None = None,
        edits: Edits = (),
    ) -> Tensor:
        """Scores of each token of a text (T): how far along the direction it is.

        The score is ``(x - mean) @ direction / |direction|^2``: 0 at the mean of all texts, 1 at the
        mean of the label's.
        """
        self.must_fit(model)
        address = address or self.best
        mean, along = (self.tensor(address, kind, toward).double() for kind in KINDS)
        value = look(model, tokenizer, text, address, edits=edits)[address]
        rows = streams.fp64(_token_rows(address, value)[0]).cpu()
        return (rows - mean) @ along / (along @ along)

    @property
    def title(self) -> str:
        return "Linear probes"

    def origin(self) -> str:
        """Origin of the probe, in a sentence."""
        fitted, held_out = self.texts
        return (
            f"{self.method}, {self.position} token, {fitted:,} texts of {self.data}; accuracy on "
            f"{held_out:,} others, of which the commonest label has {self.majority:.4f}."
        )

    def charts(self) -> Iterator[Chart]:
        """A sentence and a table."""
        yield from (Prose([self.origin()]), self._table())

    def records(self) -> Records:
        """A row for each address, and one for the best of them: of each shuffle too, its best
        address counts there."""
        table = np.array(self.shuffled)
        means, highest, best = table.mean(1), table.max(1), table.max(0)
        rows = zip(self.addresses, self.accuracy, means.tolist(), highest.tolist(), strict=True)
        last = "the best of them", max(self.accuracy), float(best.mean()), float(best.max())
        return ("address", "accuracy", "shuffled, mean", "shuffled, highest"), [*rows, last]

    def tensors(self) -> dict[str, Any]:
        return {
            f"{address}:{kind}": tensor.numpy()
            for address, pair in self.tensors_of.items()
            for kind, tensor in pair.items()
        }

    @classmethod
    def _of(cls, path: str | Path, file: Any, facts: dict[str, Any]) -> Probe:
        tensors = {
            address: {kind: file.take(f"{address}:{kind}") for kind in KINDS}
            for address in facts["addresses"]
        }
        return cls(**facts, tensors_of=tensors, name=str(path))


def probe(
    model: Model,
    tokenizer: Any,
    texts: Sequence[str],
    labels: Sequence[Any],
    *,
    addresses: Sequence[str] = (),
    position: str | None = None,
    method: str = "logistic",
    shuffles: int = 5,
    seed: int = 0,
    truncate: bool = False,
    data: str = "texts",
    progress: Report = True,
) -> Probe:
    """Fits a linear probe of the labels of texts at each of some addresses, by scikit-learn.

    Args:
        model: The model; an encoder-decoder's encoder reads the texts.
        tokenizer: The tokenizer that came with it.
        texts: The texts. A text that comes again with the same label counts once.
        labels: The label of each text.
        addresses: Names of values with ``*`` and ``?``; none means the embedding and the residual
            stream after each block.
        position: "last" reads the last token, "mean" the mean of all. None is the last of a decoder
            and the mean of an encoder.
        method: "logistic" or "ridge" regression, as scikit-learn has them, on numbers of mean 0 and
            deviation 1.
        shuffles: Fits on shuffled labels at each address.
        seed: The seed of the split and of the shuffles.
        truncate: Cut texts that are longer than the context; they are refused otherwise.
        data: The name of the texts, for the record.
        progress: True shows a bar; a function is called with (texts read, texts).

    Returns:
        The accuracy at each address beside that on shuffled labels, and the directions.

    Raises:
        UserError: There are too few texts of a label, an address matches nothing, or scikit-learn
            is missing.

    Example:
        >>> texts = [f"{word} dog" for word in "a the one his her my our your".split()]
        >>> probe = glassformer.probe(model, tokenizer, texts, [0, 1] * 4, shuffles=1)
        >>> print(probe.accuracy)
    """
    need(shuffles >= 1, f"shuffles is {shuffles}; give 1 or more.")
    need(method in ("logistic", "ridge"), f'There is no method "{method}"; give logistic or ridge.')
    need(position in (None, "last", "mean"), f'position is "{position}"; give last or mean.')
    need(
        len(texts) == len(labels),
        f"There are {len(texts)} texts and {len(labels)} labels; give one for each text.",
    )
    cfg = model.config
    pairs = dict.fromkeys(zip(texts, map(str, labels), strict=True))
    rows = [(token_ids(model, tokenizer, x, truncate=truncate), label) for x, label in pairs]
    rows.sort(key=lambda row: row[0].shape[1])
    names, numbers = np.unique([label for _, label in rows], return_inverse=True)
    need(len(names) > 1, "The texts have one label; a probe tells two or more apart.")
    sizes = np.bincount(numbers)
    need(
        sizes.min() >= HELD_OUT,
        f'The label "{names[sizes.argmin()]}" has {sizes.min()} different texts; a probe needs '
        f"{HELD_OUT}.",
    )
    must_match(addresses, all_paths(model))
    patterns = addresses or streams.depths("encoder" if cfg.has_source else cfg.main_body)
    position = position or ("last" if cfg.is_decoder else "mean")
    with Progress("reading", progress) as report:
        states = _states(model, [ids for ids, _ in rows], patterns, position, report)
    draws = np.random.default_rng(seed)
    controls = [numbers, *(draws.permutation(numbers) for _ in range(shuffles))]
    accuracy = [
        [_accuracy(x, control, method, seed) for control in controls] for x in states.values()
    ]
    fitted, held_out = _split(numbers, seed)
    is_label = np.eye(len(names))[numbers[fitted]]  # (N, L)
    tensors = {}
    for path, x in states.items():
        mean = x[fitted].mean(0)
        apart = is_label.T @ x[fitted] / is_label.sum(0)[:, None] - mean
        tensors[path] = {
            "mean": torch.tensor(mean).float(),
            "direction": torch.tensor(apart).float(),
        }
    return Probe(
        list(states),
        names.tolist(),
        [row[0] for row in accuracy],
        [row[1:] for row in accuracy],
        float(np.bincount(numbers[held_out]).max() / len(held_out)),
        [len(fitted), len(held_out)],
        method,
        position,
        fingerprint(model),
        data,
        tensors,
    )


def _token_rows(path: str, x: Tensor) -> Tensor:
    """Every number of each token (B, T, C), of all heads together."""
    return x.movedim(1 + headed(path, x.ndim), 1).flatten(2)


def _states(
    model: Model, ids: Sequence[Tensor], patterns: Sequence[str], position: str, report: Any
) -> dict[str, Any]:
    """By path (N, C) of texts (1, T), the short ones first. Texts of one length are read together, so
    that each has the bits that it has alone."""
    pieces = defaultdict[str, list[Tensor]](list)
    done = 0
    for length, group in groupby(ids, lambda row: row.shape[1]):
        for tokens in torch.split(torch.cat([*group]), max(1, TOKENS // length)):
            for path, x in streams.read_texts(model, tokens, None, Tape(*patterns)).items():
                is_probed = x.ndim == 3 or (headed(path, x.ndim) and not keyed(path))
                if is_probed and x.is_floating_point():
                    x = streams.fp64(_token_rows(path, x))
                    pieces[path].append((x[:, -1] if position == "last" else x.mean(1)).cpu())
            report(done := done + len(tokens), len(ids))
    need(bool(pieces), f"{', '.join(patterns)} has no numbers for each token; name another value.")
    return {path: torch.cat(rows).numpy() for path, rows in pieces.items()}


def _split(numbers: Any, seed: int) -> tuple[Any, Any]:
    """Texts that are fitted and texts held out, which are every fourth of each label."""
    order = np.lexsort((np.random.default_rng(seed).random(len(numbers)), numbers))
    is_held = np.arange(len(order)) % HELD_OUT == HELD_OUT - 1
    return order[~is_held], order[is_held]


def _accuracy(x: Any, numbers: Any, method: str, seed: int) -> float:
    """The accuracy on texts held out of a fit to texts (N, C) of labels (N,)."""
    try:
        linear_model: Any = import_module("sklearn.linear_model")
    except ImportError:
        raise UserError(f"A probe needs scikit-learn: {install_extra('score')}") from None
    linear = (
        linear_model.LogisticRegression(max_iter=10_000)
        if method == "logistic"
        else linear_model.RidgeClassifier()
    )
    fitted, held_out = _split(numbers, seed)
    mean, scale = x[fitted].mean(0), x[fitted].std(0)
    scale[scale <= ROUNDING * abs(mean)] = 1.0
    z = (x - mean) / scale
    linear.fit(z[fitted], numbers[fitted])
    return float(linear.score(z[held_out], numbers[held_out]))
