"""Direct logit attribution: what each part of the model added to a logit, or to the difference of
two.

A logit is a direction times the stream, and the stream is a sum of what parts wrote to it
(direction.py). Every norm on the way is held at the scale that it had in this pass, so the sum is
exact, and is shown to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..core.errors import need
from ..core.nn import Model, Tape
from ..core.nn.editing import ModelEdit, as_edit_list
from ..core.nn.finite import must_be_finite
from ..core.nn.inference import inference
from . import streams, tables
from .direction import HELD, INSTEAD, AtOnePlace, Part, Sweep, back, gated, watched
from .figures.charts import Chart, Heat, Prose, Table
from .figures.drawing import Array
from .figures.shown import Shown
from .looking import Text
from .streams import Piece, fp64

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer


Of: TypeAlias = Literal["logit", "label"]


@dataclass(frozen=True, repr=False)
class Attribution(Shown):
    """Contribution of every component to the logit of ``token`` at ``position``, less that of
    ``against`` where it is given.

    Of a classifier ``token`` and ``against`` are labels, and ``position`` is None: it reads the
    text as a whole. ``logit`` is the model's own (before a softcap; ``capped`` after it), ``sum``
    that of all ``parts``, ``difference`` what is between them: rounding. ``edits`` are those of the
    run, as they are written.
    """

    token: int
    piece: Piece
    against: int | None
    against_piece: Piece | None
    position: int | None
    parts: list[Part]
    sum: float
    logit: float
    difference: float
    capped: float | None
    notes: list[str]
    edits: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "parts": [vars(component) for component in self.parts]}

    def by_block(self) -> list[tuple[str, dict[str, float]]]:
        """The sums of each block by kind, from the embedding on, and of what stands outside of
        blocks."""
        sums: dict[str, dict[str, float]] = {}
        for component in self.parts:
            name = "ends" if component.block is None else f"block {component.block}"
            kinds = sums.setdefault(name, {})
            kinds[component.kind] = kinds.get(component.kind, 0.0) + component.value
        order = sorted(
            sums, key=lambda name: (name != "ends", int(name.split()[-1]) if name != "ends" else 0)
        )
        return [(name, sums[name]) for name in order]

    @property
    def title(self) -> str:
        less = "" if self.against_piece is None else f" less {self.against_piece.display}"
        place = "" if self.position is None else f" at {self.position}"
        edited = f", with {' and '.join(self.edits)}" if self.edits else ""
        return f"Attribution: the logit of {self.piece.display}{less}{place}{edited}"

    def charts(self) -> Iterator[Chart]:
        """Contributions by block and kind, then each head of it, then the parts that added
        or took most."""
        yield Prose(
            [
                f"sum {self.sum:+.4f}, logit {self.logit:+.4f}, difference {self.difference:.1e}",
                *self.notes,
            ]
        )
        blocks = self.by_block()
        kinds = list(dict.fromkeys(kind for _, sums in blocks for kind in sums))
        yield _added(
            "added by",
            [[sums.get(kind) for kind in kinds] for _, sums in blocks],
            [n for n, _ in blocks],
            kinds,
        )
        heads = {
            (component.block, component.index): component.value
            for component in self.parts
            if component.kind == "head"
        }
        if heads:
            rows, columns = (sorted({place[side] or 0 for place in heads}) for side in (0, 1))
            cells = [[heads.get((row, column)) for column in columns] for row in rows]
            yield _added(
                "added by each head",
                cells,
                [f"L{row}" for row in rows],
                [f"h{column}" for column in columns],
            )
        yield Table("", ("part", "address", "added"), self._lines(20), (0, 1))

    def records(self) -> tuple[Sequence[str], Iterable[Sequence[Any]]]:
        """A row for each part."""
        rows = (
            tuple("" if fact is None else fact for fact in vars(component).values())
            for component in self.parts
        )
        return tuple(Part.__dataclass_fields__), rows

    def tensors(self) -> dict[str, Array]:
        """``value`` (N): what each part added."""
        return {"value": np.array([component.value for component in self.parts])}

    def facts(self) -> Mapping[str, Any]:
        fields = {name: value for name, value in vars(self).items() if name != "parts"}
        return {**fields, "addresses": [component.address for component in self.parts]}

    def table(self, top: int = 20) -> list[str]:
        """The parts that added or took most, as lines, rounded to four places; then the sum beside
        the logit."""
        return tables.lines(self._lines(top), ("part", "address", "added"), left_columns=(0, 1))

    def _lines(self, top: int) -> list[tuple[str, str, str]]:
        ordered = sorted(self.parts, key=lambda component: -abs(component.value))
        rows = [
            (_label(component), component.address, f"{component.value:+.4f}")
            for component in ordered[:top]
        ]
        if remainder := ordered[top:]:
            rows.append(
                (
                    f"{len(remainder):,} more",
                    "",
                    f"{math.fsum(component.value for component in remainder):+.4f}",
                )
            )
        rows += [("sum", f"of {len(self.parts):,} parts", f"{self.sum:+.4f}")]
        run_name = "the edited run's own" if self.edits else "the model's own"
        rows += [
            ("logit", run_name, f"{self.logit:+.4f}"),
            ("difference", "", f"{self.difference:.1e}"),
        ]
        return rows


def _added(
    title: str, cells: list[list[float | None]], rows: Sequence[str], columns: Sequence[str]
) -> Heat:
    """Numbers as a map with zero in the middle; None is nothing there."""
    words = [["" if value is None else f"{value:+.2f}" for value in row] for row in cells]
    return Heat(title, np.array(cells, dtype=float), rows, columns, words, signed=True)


def _label(component: Part) -> str:
    block = "" if component.block is None else f"L{component.block}."
    return f"{block}{component.kind}" + ("" if component.index is None else f" {component.index}")


def attribute(
    model: Model,
    tokenizer: Tokenizer | None,
    text: Text,
    *,
    source: Text | None = None,
    token: str | int | None = None,
    against: str | int | None = None,
    position: int | None = None,
    of: Of | None = None,
    edits: Sequence[ModelEdit | str] = (),
) -> Attribution:
    """Splits the logit of ``token`` (None: the likeliest) at
    ``position`` of ``text``.

    ``position`` None is an encoder's only mask token, else the last. With ``against`` the
    difference of the two logits is taken apart. ``of`` "label" asks a classifier: ``token`` and
    ``against`` are labels' numbers then; None is "label" for a model with labels and no head, else
    "logit". An encoder-decoder's decoder is asked, beside its ``source``. ``edits``
    (inspection.edits) change the run; what one did to the stream itself is a part of its own.
    Raises UserError for a model without the answer or without a residual stream, and for blocks and
    norms whose arithmetic is not known here.
    """
    changes = as_edit_list(edits)
    labels = answer_kind(model, of) == "label"
    streams.needs_stream(model, "Direct logit attribution", INSTEAD)
    inputs = streams.prepare(model, tokenizer, text, source, changes)
    if labels:
        need(position is None, "A label is of the whole text, of no position; leave it out.")
        return replace(_of_label(model, inputs, token, against), edits=[*map(repr, changes)])
    head: Any = streams.needs_head(model, "`glassformer contexts` compares its vectors.")
    at = streams.place(position, inputs.tokens, tokenizer)
    tape = AtOnePlace(at, streams.body_of(model), inputs.edits)
    with inference(model):
        output = model(*inputs.inputs, tape=tape, logits="none")
        last_hidden = output.hidden[:, at : at + 1]
        # before the cap
        logits = fp64(head.proj(head.prepare(last_hidden), head.table(model.embed))[0, 0])
        must_be_finite(model, output.hidden, logits)
    vocab_size = len(logits) if tokenizer is None else min(tokenizer.size, len(logits))
    chosen = (
        int(logits[:vocab_size].argmax())
        if token is None
        else streams.word_id(model, tokenizer, token)
    )
    against_id = None if against is None else streams.word_id(model, tokenizer, against)
    need(
        against_id != chosen,
        "The two tokens are the same one, and their difference is nothing; give another.",
    )
    with torch.no_grad():
        sweep = Sweep(model, tape)
        sweep.carry_back(fp64(output.hidden[0, at]), chosen, against_id)
    total = math.fsum(component.value for component in sweep.parts)

    def score(logits: Tensor) -> float:
        return (logits[chosen] - (0.0 if against_id is None else logits[against_id])).item()

    logit, cap = score(logits), head.softcap
    capped = None if cap is None else score(cap * torch.tanh(logits / cap))
    piece, *against_pieces = streams.pieces(
        tokenizer, [chosen] if against_id is None else [chosen, against_id]
    )
    beside, components = against_pieces[0] if against_pieces else None, sweep.parts[::-1]
    return Attribution(
        chosen,
        piece,
        against_id,
        beside,
        at,
        components,
        total,
        logit,
        abs(total - logit),
        capped,
        sweep.notes,
        [*map(repr, changes)],
    )


def answer_kind(model: Model, of: Of | None) -> Of:
    """The answer to attribute, a token's logit or a label's; UserError where the model gives no
    such answer."""
    pool = model.config.pool
    labels = pool is not None and pool.labels > 0
    if of is None:
        of = "label" if labels and model.head is None else "logit"
    need(of in ("logit", "label"), f'There is no answer "{of}"; give logit or label.')
    need(of != "label" or labels, "This model has no labels for a text; ask for a token's logit.")
    return of


def _of_label(
    model: Model, inputs: streams.Read, label: str | int | None, against: str | int | None
) -> Attribution:
    """Contribution of each component to a label's logit, at all positions that the pool reads
    together."""
    body, pool = streams.body_of(model), model.pool
    assert pool is not None and pool.proj is not None
    tape = Tape(*watched(body), "pool.*", edits=inputs.edits)
    with inference(model):
        output = model(*inputs.inputs, tape=tape, logits="none")
        must_be_finite(model, output.hidden, output.pooled)
    logits, hidden = fp64(tape["pool.write"][0]), fp64(output.hidden[0])
    chosen = int(logits.argmax()) if label is None else _label_number(label, len(logits))
    against_label = None if against is None else _label_number(against, len(logits))
    need(
        against_label != chosen,
        "The two labels are the same one, and their difference is nothing; give another.",
    )
    with torch.no_grad():
        components, notes = _through_pool(model, tape, hidden, chosen, against_label)
    logit = (logits[chosen] - (0.0 if against_label is None else logits[against_label])).item()
    total = math.fsum(component.value for component in components)
    beside = None if against_label is None else Piece(f"label {against_label}")
    return Attribution(
        chosen,
        Piece(f"label {chosen}"),
        against_label,
        beside,
        None,
        components[::-1],
        total,
        logit,
        abs(total - logit),
        None,
        notes,
    )


def _label_number(label: str | int, many: int) -> int:
    number = int(label) if str(label).isdecimal() else -1
    need(0 <= number < many, f'There is no label "{label}"; this model has 0 to {many - 1}.')
    return number


def _through_pool(
    model: Model, tape: Tape, hidden: Tensor, label: int, against_label: int | None
) -> tuple[list[Part], list[str]]:
    """The parts of a label's logit (less another's) from the last to the first; ``hidden`` (T, C)
    is what is pooled."""
    body, pool = streams.body_of(model), model.pool
    head_sweep = Sweep(model, AtOnePlace(0, body, tape.edits), ":")
    rows, signs = (
        ([label], [1.0]) if against_label is None else ([label, against_label], [1.0, -1.0])
    )
    sign = torch.tensor(signs, dtype=torch.float64, device=hidden.device)
    vector, shares = fp64(tape["pool.vector"][0]), fp64(pool.shares(hidden))  # (C), (T, C)
    x, gate = vector, None
    if pool.transform is not None:
        x, gate = gated(pool.transform, pool.act, x)
    head_sweep.d = sign @ fp64(pool.proj.weight[rows])
    scores = fp64(pool.proj.bias[rows]) + fp64(pool.proj.weight[rows]) @ (
        _unit(x) if pool.normalize else x
    )
    if tape.changes("pool.write"):
        head_sweep.add("edit", "pool.write", sign @ (fp64(tape["pool.write"][0, rows]) - scores))
    head_sweep.add(
        "bias",
        " - ".join(f"pool.proj.bias[{row}]" for row in rows),
        sign @ fp64(pool.proj.bias[rows]),
    )
    head_sweep.d = head_sweep.d / x.norm().clamp(min=1e-12) if pool.normalize else head_sweep.d
    if gate is not None:
        head_sweep.notes.append(HELD.format("pool"))
        head_sweep.d, constant = back(pool.transform, head_sweep.d * gate)
        head_sweep.add("bias", "pool.transform.bias", constant)
    if tape.changes("pool.vector"):
        head_sweep.add("edit", "pool.vector", head_sweep.d @ (vector - (shares * hidden).sum(0)))
    if pool.query is not None:
        head_sweep.notes.append("The pool's shares, a softmax, are held.")
    places = [at for at, share in enumerate(shares) if share.any()]
    if len(places) > 1:
        head_sweep.notes.append(
            f"The pool reads {len(places)} positions; each part is the sum over them."
        )
    sums: dict[tuple[str, str, int | None, int | None], float] = {}
    for at in places:
        at_position = AtOnePlace(at, body, tape.edits)
        for path, value in tape.records.items():
            if not path.startswith("pool."):
                at_position.record(path, value)
        sweep = Sweep(model, at_position, ":" if len(places) > 1 else None)
        sweep.d = head_sweep.d * shares[at]
        sweep.through_stack(hidden[at])
        for component in sweep.parts:
            key = component.kind, component.address, component.block, component.index
            sums[key] = sums.get(key, 0.0) + component.value
    components = [
        Part(kind, address, value, block, index)
        for (kind, address, block, index), value in sums.items()
    ]
    return [*head_sweep.parts, *components], head_sweep.notes


def _unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1)
