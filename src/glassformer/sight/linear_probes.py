"""Linear probes: what a linear function of one value says of a text's label, at every depth, beside the
same fit on shuffled labels; and the direction that it found, which edits add or remove.

N texts, T tokens, C numbers of a token, L labels, A addresses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.checkpoints.tensors import open_file
from ..core.config import Decoder
from ..core.errors import UserError, install_extra, need
from ..core.files import JsonObject
from ..core.nn import Model, Tape
from . import streams
from .axes import encoded, headed, keyed
from .figures.charts import Chart, Curves, Prose, TableFigure
from .figures.progress_bar import Progress, Report
from .figures.shown import Records, Shown
from .looking import look, matching, token_ids
from .reading import Edits
from .tuned_lens import fingerprint

FORMAT = "glassformer probe 1"
TOKENS = 1 << 12  # of a pass
HELD_OUT = 4  # every fourth text of a label measures the fit
PARTS = ("weight", "bias", "mean", "direction")  # tensors of each address
Method: TypeAlias = Literal["logistic", "ridge"]
Position: TypeAlias = Literal["last", "mean"]


@dataclass(frozen=True, repr=False)
class Probe(Shown):
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
        tensors_of: By address the weight (L, C) and bias (L) of the scores of labels, the mean (C)
            of the texts, and a direction (L, C) toward each label, as long as the label's texts are
            away from the others along it.
        name: The file, or the name by which a server knows the probe.

    Example:
        >>> texts = [f"{word} dog" for word in "a the one his her my our your".split()]
        >>> probe = glassformer.probe(model, tokenizer, texts, [0, 1] * 4, shuffles=1)
        >>> probe.save("probe.safetensors")
        >>> print(glassformer.Probe.load("probe.safetensors").best)
    """

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
        return self.addresses[int(np.argmax(self.accuracy))]

    def find(self, pattern: str | None = None) -> list[str]:
        """The addresses that a pattern matches; None is the best."""
        return matching(pattern or self.best, self.addresses, "probed value")

    def label(self, name: str | None = None) -> int:
        """The number of a label; None is the last."""
        available = ", ".join(self.labels)
        need(
            name is None or name in self.labels,
            f'{self.name} has no label "{name}"; its labels: {available}.',
        )
        return len(self.labels) - 1 if name is None else self.labels.index(name)

    def direction(
        self, address: str | None = None, toward: str | None = None, random: int | None = None
    ) -> Tensor:
        """The direction toward a label (C); ``random`` seeds another, of the same length."""
        (address,) = self.find(address)
        vector = self.tensors_of[address]["direction"][self.label(toward)]
        if random is None:
            return vector
        draw = torch.randn(len(vector), generator=torch.Generator().manual_seed(random))
        return F.normalize(draw, dim=0) * vector.norm()

    def basis(self, address: str) -> Tensor:
        """Orthonormal rows (at most L - 1, C) of which the directions of all labels are made."""
        _, sizes, rows = torch.linalg.svd(
            self.tensors_of[address]["direction"].double(), full_matrices=False
        )
        return rows[sizes > 1e-5 * sizes.max()].float()

    def must_fit(self, model: Model) -> None:
        """Raises UserError for a model that it was not fitted to."""
        need(
            self.model == fingerprint(model),
            f"{self.name} was fitted to another model; fit a probe to this model: glassformer probe.",
        )

    def score(
        self,
        model: Model,
        tokenizer: Any,
        text: str,
        *,
        at: str | None = None,
        toward: str | None = None,
        edits: Edits = (),
    ) -> ProbeScore:
        """The score of a text at an address, as the sum that it is; toward its likeliest label
        unless one is named."""
        self.must_fit(model)
        (address,) = self.find(at)
        value = look(model, tokenizer, text, address, edits=edits)[address]
        axis = 1 + headed(address, value.ndim)
        rows = streams.fp64(value.movedim(axis, 1)[0]).cpu()  # (T, ..)
        first = len(rows) - 1 if self.position == "last" else 0
        read = rows[first:] / (len(rows) - first)
        weight, bias = (self.tensors_of[address][part].double() for part in ("weight", "bias"))
        scores = weight @ read.sum(0).flatten() + bias
        label = int(scores.argmax()) if toward is None else self.label(toward)
        factors = weight[label].view(rows.shape[1:])
        terms = []
        for (token, *sides), product in np.ndenumerate((read * factors).numpy()):
            index = [*sides]
            index.insert(axis - 1, first + token)
            shown = f"{rows[first + token][*sides]:.4f} x {factors[*sides]:.4f}"
            terms.append((f"{address}[{','.join(map(str, index))}]", shown, float(product)))
        return ProbeScore(self.labels[label], float(scores[label]), terms, float(bias[label]))

    @property
    def title(self) -> str:
        return f"Probe of {', '.join(self.labels)}"

    def origin(self) -> str:
        """Origin of the probe, in a sentence."""
        read = "the last token" if self.position == "last" else "the mean of all tokens"
        fitted, held_out = self.texts
        return (
            f"{self.method} at {read} of {fitted:,} texts of {self.data}; accuracy on {held_out:,} "
            f"others. The commonest of {len(self.labels)} labels has {self.majority:.4f} of them."
        )

    def charts(self) -> Iterator[Chart]:
        """Accuracy by address, and of the shuffled labels."""
        yield Prose([self.origin()])
        highest = [max(row) for row in self.shuffled]
        yield Curves.by_depth(
            "accuracy on texts held out, by address",
            {"labels": self.accuracy, "shuffled labels, highest": highest},
        )
        yield self._table()

    def records(self) -> Records:
        """A row for each address, and one for the best of them: of each shuffle too, its best
        address counts there."""
        control = np.array(self.shuffled)
        rows: list[Any] = [
            (address, accuracy, float(row.mean()), float(row.max()))
            for address, accuracy, row in zip(self.addresses, self.accuracy, control, strict=True)
        ]
        if len(rows) > 1:
            best = control.max(0)
            summary = max(self.accuracy), float(best.mean()), float(best.max())
            rows.append((f"the best of {len(rows)}", *summary))
        return ("address", "accuracy", "shuffled, mean", "shuffled, highest"), rows

    def tensors(self) -> dict[str, Any]:
        return {
            f"{address}:{part}": tensor.numpy()
            for address, parts in self.tensors_of.items()
            for part, tensor in parts.items()
        }

    def to_dict(self) -> JsonObject:
        """All but the tensors and the file's name, as JSON holds it."""
        return {name: x for name, x in vars(self).items() if name not in ("tensors_of", "name")}

    def facts(self) -> Mapping[str, Any]:
        """Metadata that ``load`` reads."""
        return {"format": FORMAT, **self.to_dict()}

    @classmethod
    def load(cls, path: str | Path) -> Probe:
        """The one in a file; UserError where it holds none."""
        from safetensors import safe_open

        file = open_file(Path(path))
        with safe_open(str(path), "pt") as header:
            metadata = header.metadata() or {}
        need(
            metadata.pop("format", None) == json.dumps(FORMAT),
            f"{path} is no probe; make one: glassformer probe MODEL DATA --out FILE.safetensors.",
        )
        try:
            facts = {name: json.loads(value) for name, value in metadata.items()}
            tensors = {
                address: {part: file.take(f"{address}:{part}") for part in PARTS}
                for address in facts["addresses"]
            }
            return cls(**facts, tensors_of=tensors, name=str(path))
        except (LookupError, ValueError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}); fit the probe again.") from None


@dataclass(frozen=True)
class ProbeScore:
    """The score of a label for one text: ``terms`` (address, factors, product) and the ``bias``."""

    label: str
    value: float
    terms: list[tuple[str, str, float]]
    bias: float

    def lines(self, most: int = 8) -> list[str]:
        """The label, its score and the largest terms."""
        totals = ("bias", "", self.bias), (f"score of {self.label}", "", self.value)
        heading = ("address", "value x weight", "adds")
        return TableFigure.of_sum(heading, self.terms, most, *totals).lines()

    def to_dict(self) -> JsonObject:
        return dict(vars(self))


def probe(
    model: Model,
    tokenizer: Any,
    texts: Sequence[str],
    labels: Sequence[Any],
    *,
    addresses: Sequence[str] = (),
    position: Position | None = None,
    method: Method = "logistic",
    penalty: float = 1.0,
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
        method: "logistic" or "ridge" regression, on numbers of mean 0 and deviation 1.
        penalty: The weight of the squared coefficients.
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
    need(penalty > 0, f"penalty is {penalty}; give a number above 0.")
    need(shuffles >= 1, f"shuffles is {shuffles}; give 1 or more.")
    need(method in ("logistic", "ridge"), f'There is no method "{method}"; give logistic or ridge.')
    need(position in (None, "last", "mean"), f'position is "{position}"; give last or mean.')
    need(
        len(texts) == len(labels),
        f"There are {len(texts)} texts and {len(labels)} labels; give one for each text.",
    )
    rows = list(dict.fromkeys(zip(texts, map(str, labels), strict=True)))
    names, numbers = np.unique([label for _, label in rows], return_inverse=True)
    need(len(names) > 1, f"The texts have {len(names)} labels; a probe tells two or more apart.")
    for name, count in zip(names, np.bincount(numbers), strict=True):
        need(
            count >= HELD_OUT,
            f'The label "{name}" has {count} different texts; a probe needs {HELD_OUT} of each.',
        )
    available = _catalog(model)
    depths = streams.depths("encoder" if model.config.has_source else model.config.main_body)
    patterns = addresses or [x for x in depths if any(fnmatchcase(p, x) for p in available)]
    paths = [path for x in patterns for path in matching(x, available, "value of each token")]
    paths = list(dict.fromkeys(paths))
    position = position or ("last" if isinstance(model.config, Decoder) else "mean")
    ids = [token_ids(model, tokenizer, text, truncate=truncate) for text, _ in rows]
    with Progress("reading", progress) as report:
        states = _states(model, ids, paths, position, report)
    draws = np.random.default_rng(seed)
    shuffled = [draws.permutation(numbers) for _ in range(shuffles)]
    fits = {path: _Fit.of(x, numbers, method, penalty, seed) for path, x in states.items()}
    fitted, held_out = _split(numbers, seed)
    return Probe(
        paths,
        names.tolist(),
        [fit.accuracy for fit in fits.values()],
        [
            [_Fit.of(x, control, method, penalty, seed).accuracy for control in shuffled]
            for x in states.values()
        ],
        float(np.bincount(numbers[held_out]).max() / len(held_out)),
        [len(fitted), len(held_out)],
        method,
        position,
        fingerprint(model),
        data,
        {path: fit.tensors for path, fit in fits.items()},
    )


def _catalog(model: Model) -> list[str]:
    """Paths of the values that have numbers for each token which a probe can read."""
    token = torch.zeros(1, 1, dtype=torch.long, device=next(model.parameters()).device)
    values = streams.read_texts(model, token, None, Tape("*"))
    return [
        path
        for path, x in values.items()
        if x.ndim > 2 and x.is_floating_point() and not keyed(path) and not path.startswith("pool.")
    ]


class _TextStates(Tape):
    """Keeps of each path the numbers of a text's last token, or their mean (B, C) in fp64."""

    def __init__(self, paths: Sequence[str], position: str) -> None:
        super().__init__(*paths)
        self.position = position

    def record(self, path: str, x: Tensor) -> None:
        if path in self.patterns:
            rows = streams.fp64(x.detach().movedim(1 + headed(path, x.ndim), 1).flatten(2))
            self.records[path] = (rows[:, -1] if self.position == "last" else rows.mean(1)).cpu()


def _states(
    model: Model, ids: Sequence[Tensor], paths: Sequence[str], position: str, report: Any
) -> dict[str, Any]:
    """By path (N, C) of the texts (1, T). Texts of one length are read together, so that each has the
    bits that it has alone."""
    order = sorted(range(len(ids)), key=lambda number: ids[number].shape[1])
    states: dict[str, Any] = {}
    done = 0
    for length, group in groupby(order, key=lambda number: ids[number].shape[1]):
        numbers = list(group)
        size = max(1, TOKENS // length)
        for batch in (numbers[low : low + size] for low in range(0, len(numbers), size)):
            tape = _TextStates(paths, position)
            tokens = torch.cat([ids[number] for number in batch])
            for path, x in streams.read_texts(model, tokens, None, tape).items():
                table = states.setdefault(path, np.empty((len(ids), x.shape[1])))
                table[batch] = x.numpy()
            done += len(batch)
            report(done, len(ids))
    return {path: states[path] for path in paths}


def _split(numbers: Any, seed: int) -> tuple[Any, Any]:
    """Texts that are fitted and texts held out, which are every fourth of each label."""
    order = np.random.default_rng(seed).permutation(len(numbers))
    order = order[np.argsort(numbers[order], kind="stable")]
    is_held = np.arange(len(order)) % HELD_OUT == HELD_OUT - 1
    return np.sort(order[~is_held]), np.sort(order[is_held])


@dataclass(frozen=True)
class _Fit:
    """One fit: its accuracy on texts held out, and the tensors of a Probe."""

    accuracy: float
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, x: Any, numbers: Any, method: str, penalty: float, seed: int) -> _Fit:
        """The fit to texts (N, C) of labels (N,) by their numbers."""
        try:
            from sklearn.linear_model import LogisticRegression, RidgeClassifier
            from sklearn.preprocessing import StandardScaler
        except ImportError:
            raise UserError(f"A probe needs scikit-learn: {install_extra('score')}") from None
        fitted, held_out = _split(numbers, seed)
        scaler = StandardScaler().fit(x[fitted])
        logistic = method == "logistic"
        linear: Any = (
            LogisticRegression(C=1 / penalty, max_iter=10_000)
            if logistic
            else RidgeClassifier(alpha=penalty)
        )
        linear.fit(scaler.transform(x[fitted]), numbers[fitted])
        accuracy = linear.score(scaler.transform(x[held_out]), numbers[held_out])
        weight = np.atleast_2d(linear.coef_) / scaler.scale_
        bias = linear.intercept_ - weight @ scaler.mean_
        if len(weight) == 1:  # of two labels the second; the first has its opposite
            weight, bias = np.concatenate((-weight, weight)), np.concatenate((-bias, bias))
        units = F.normalize(torch.tensor(weight), dim=1).numpy()
        directions = []
        for label, unit in enumerate(units):
            is_label = numbers[fitted] == label
            projected = x[fitted] @ unit
            directions.append(unit * (projected[is_label].mean() - projected[~is_label].mean()))
        tensors = zip(PARTS, (weight, bias, scaler.mean_, np.stack(directions)), strict=True)
        return cls(
            float(accuracy), {part: torch.tensor(y, dtype=torch.float32) for part, y in tensors}
        )
