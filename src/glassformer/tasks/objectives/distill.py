"""Answers in conversations, learned from another model's probabilities of each token (distillation).

teacher    p   softmax(logits / T)   of all tokens, or of the K likeliest that were saved
student    q   softmax(logits / T)
loss           alpha * T² * KL(p || q) + (1 - alpha) * cross-entropy

N counted tokens, V vocabulary, C model dim.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from ...core import files
from ...core.config.serial import PositiveFloat, PositiveInt, Range, frozen
from ...core.errors import UserError, need
from .documents import in_pieces
from .sft import Chat

if TYPE_CHECKING:
    from ..encoded import Encoded
    from ..example_table import ExampleTable
    from .documents import Array, Batch, Fit, Loss, Tensor, Tokenizer

Weight = Annotated[float, Range(lambda x: 0 < x <= 1, "a share above 0, at most 1")]
BATCH = 8  # rows that the teacher reads at once before the run


@frozen
class Distill(Chat):
    """The assistant's answers as another model, the teacher, would go on at each token (Hinton et
    al. 2015): alpha * temperature² * KL(teacher || student) + (1 - alpha) * the loss of ``Chat``.

    The teacher has the same tokenizer. With ``logits`` only the ``top`` likeliest tokens of each
    place count. They are saved there before the first step, and a run that finds them needs no
    teacher.
    """

    teacher: str = ""  # a model's folder or name; none: logits are read
    logits: str = ""  # a file of its likeliest tokens, .npz; none: the teacher reads along
    top: PositiveInt = 64  # tokens of each place that are saved
    temperature: PositiveFloat = 2.0  # both models' logits are divided by it
    alpha: Weight = 0.5  # how much the teacher counts; the rest is the loss of Chat

    undivided = ("context", "tensor")  # the teacher reads whole rows, and scores all tokens

    @property
    def smooths_labels(self) -> bool:
        return self.alpha < 1

    def encode(self, table: ExampleTable, tokenizer: Tokenizer, fit: Fit) -> Encoded:
        """The conversations; with saved logits each knows where its tokens are among them."""
        from ...formats import store

        encoded = super().encode(table, tokenizer, fit)
        fields = "train.objective.teacher = FOLDER, or train.objective.logits = FILE.npz"
        need(
            bool(self.teacher or self.logits), f"Distill learns from a teacher; name it: {fields}."
        )
        need(
            bool(self.logits) or self.top == type(self).top,
            "Distill.top is of saved logits alone; leave it out, or name a file as "
            "train.objective.logits.",
        )
        judge = ""  # none: whoever filled the file
        if self.teacher:
            teacher, reads = _teacher(self.teacher, "cpu")
            need(
                reads is not None and reads.fingerprint == tokenizer.fingerprint,
                f"The teacher {self.teacher} has another tokenizer than the student; both have to "
                "read the same tokens.",
            )
            judge = store.digest(teacher)
        if not self.logits:
            return replace(encoded, judge=judge)
        path = Path(self.logits).expanduser()
        key = f"{encoded.key} {tokenizer.fingerprint} {judge}"
        sizes, ids, logits = _saved(path) if path.exists() else ({}, None, None)
        most = min(self.top, tokenizer.size)
        width = most if ids is None else ids.shape[1]
        need(
            width == most,
            f"{path} holds the {width} likeliest tokens of each place; set train.objective.top = "
            f"{width}, or name another file.",
        )
        if not any(name.startswith(key) for name in sizes):
            need(bool(self.teacher), f"{path} has no logits of {table.name}; name a teacher.")
            more = self._likeliest(encoded, fit.context, width)
            pairs = zip((ids, logits), more, strict=True)
            columns = [new if old is None else np.concatenate([old, new]) for old, new in pairs]
            sizes = {**sizes, key: len(more[0])}
            _save(path, keys=[*sizes], sizes=[*sizes.values()], ids=columns[0], logits=columns[1])
        at = max(at for at, name in enumerate(sizes) if name.startswith(key))
        side = encoded.sides[0]
        before = sum([*sizes.values()][:at])
        targets_before = np.concatenate([[0], np.cumsum(side.columns["targets"] >= 0)])
        rows = (before + targets_before[side.starts[:-1]])[:, None]
        return replace(encoded, reference=rows, judge=[*sizes][at].rpartition(" ")[2])

    def _likeliest(self, encoded: Encoded, context: int, width: int) -> tuple[Array, Array]:
        """The teacher's likeliest tokens at each counted place, and their logits (N, width)."""
        import torch

        from ...core.training.loss import forward
        from ..example_batches import each_once

        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = _teacher(self.teacher, device)[0]
        ids = []
        logits = []
        with torch.no_grad():
            for batch in each_once(encoded, BATCH, context):
                batch = batch.to(torch.device(device))
                hidden = forward(model, batch).hidden.flatten(0, 1)[batch.target_indices()]
                best = model.head(hidden, model.embed).float().topk(width)
                ids.append(best.indices.int().cpu().numpy())
                logits.append(best.values.cpu().numpy())
        return np.concatenate(ids), np.concatenate(logits)

    def loss(self, model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
        """Summed over the counted tokens."""
        import torch

        from ...core.training.loss import forward, token_loss, tokens_in

        output, indices = forward(model, batch), batch.target_indices()
        hard = token_loss(model, output, batch.targets, smoothing, indices)
        states = output.hidden.flatten(0, 1)[indices]
        is_saved = batch.labels is not None
        teacher = None if is_saved else _teacher(self.teacher, str(states.device))[0]
        with torch.no_grad():
            values, ids = (
                self._rows(batch, indices)
                if teacher is None
                else (forward(teacher, batch).hidden.flatten(0, 1)[indices], indices[:, None])
            )

        def divergence(states: Tensor, values: Tensor, ids: Tensor) -> Tensor:
            logits = model.head(states, model.embed)
            if teacher is not None:  # a vocabulary may be rounded up
                values = teacher.head(values, teacher.embed).detach()
                size = min(values.shape[-1], logits.shape[-1])
                values, logits = values[:, :size], logits[:, :size]
            logs = (logits.float() / self.temperature).log_softmax(-1)
            logs = logs.gather(1, ids) if teacher is None else logs
            goal = (values.float() / self.temperature).log_softmax(-1)
            total: Tensor = (goal.exp() * (goal - logs)).sum()
            return total

        soft = torch.stack(in_pieces(model, divergence, states, values, ids)).sum()
        metrics = {**hard.metrics, "divergence": soft.detach() / hard.count}
        total = self.alpha * self.temperature**2 * soft + (1 - self.alpha) * hard.sum
        return replace(hard, sum=total, tokens=tokens_in(batch), metrics=metrics)

    def _rows(self, batch: Batch, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The saved logits of a batch's counted tokens, and whose they are."""
        import torch

        from ...core.nn.flow import document_starts

        assert batch.pos is not None and batch.labels is not None
        document = document_starts(batch.pos).flatten().cumsum(0)[indices] - 1
        place = torch.arange(len(indices), device=indices.device)
        rank = place - torch.searchsorted(document, document)
        rows = (batch.labels[document] + rank).cpu().numpy()
        _, ids, logits = _saved(Path(self.logits).expanduser())
        values, tokens = (torch.from_numpy(x[rows]).to(indices.device) for x in (logits, ids))
        return values, tokens.long()


@lru_cache(maxsize=2)
def _teacher(name: str, device: str) -> tuple[Any, Tokenizer | None]:
    """The teacher in evaluation mode, and its tokenizer."""
    from ...formats import store

    model, tokenizer = store.load(name, device=device)
    return model.requires_grad_(False), tokenizer


@lru_cache(maxsize=1)
def _saved(path: Path) -> tuple[dict[str, int], Array, Array]:
    """The size of each table of examples in a file, by its key; ids and logits of all (N, top)."""
    from ...formats.dictionaries import read_arrays

    complaint = f"{path} is no file of saved logits; give another name."
    arrays = read_arrays(path, complaint)
    try:
        sizes = zip(arrays["keys"].tolist(), arrays["sizes"].tolist(), strict=True)
        return dict(sizes), arrays["ids"], arrays["logits"]
    except (LookupError, TypeError, ValueError):
        raise UserError(complaint) from None


def _save(path: Path, **columns: Any) -> None:
    def save(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, **columns)

    files.write(path, save)
    _saved.cache_clear()
