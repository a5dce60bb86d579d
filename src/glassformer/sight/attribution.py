"""Direct logit attribution: what each part of the model added to a logit, or to the difference of
two.

A logit is a direction times the stream, and the stream is a sum of what parts wrote to it
(direction.py). Every norm on the way is held at the scale that it had in this pass, so the sum is
exact, and is shown to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from ..core.errors import need
from ..core.nn import Model, Tape
from ..core.nn.finite import must_be_finite
from ..core.nn.model import inference
from . import streams
from .direction import HELD, INSTEAD, AtOnePlace, Contribution, Sweep, back, gated, watched
from .figures.charts import Chart, Heat, Prose, TableFigure
from .figures.shown import Records, Shown
from .looking import Edits, Text
from .reading import as_edit_list
from .streams import TokenLabel, answer_kind, fp64

if TYPE_CHECKING:
    from ..core.tokenizer.tokenizer import Tokenizer


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
    piece: TokenLabel
    against: int | None
    against_piece: TokenLabel | None
    position: int | None
    parts: list[Contribution]
    sum: float
    logit: float
    difference: float
    capped: float | None
    notes: list[str]
    edits: list[str] = field(default_factory=list)

    def by_block(self) -> list[tuple[str, dict[str, float]]]:
        """The sums of each block by kind, from the embedding on, and of what stands outside of
        blocks."""
        sums: dict[int, dict[str, float]] = {}
        for share in self.parts:
            kinds = sums.setdefault(-1 if share.block is None else share.block, {})
            kinds[share.kind] = kinds.get(share.kind, 0.0) + share.value
        return [("ends" if at < 0 else f"block {at}", sums[at]) for at in sorted(sums)]

    @property
    def answer(self) -> str:
        """The logit that is taken apart."""
        less = "" if self.against_piece is None else f" less that of {self.against_piece.display}"
        place = "" if self.position is None else f" at position {self.position}"
        edited = f", with {' and '.join(self.edits)}" if self.edits else ""
        return f"logit of {self.piece.display}{less}{place}{edited}"

    @property
    def title(self) -> str:
        return f"Attribution: the {self.answer}"

    def charts(self) -> Iterator[Chart]:
        """Contributions by block and kind, then each head of it, then the parts that added
        or took most."""
        yield Prose(
            [
                f"sum {self.sum:+.4f}, logit {self.logit:+.4f}, difference {self.difference:.1e}",
                *self.notes,
            ]
        )
        kinds, rows = self._blocks()
        yield _added("added by", [cells for _, *cells in rows], [name for name, *_ in rows], kinds)
        heads = {
            (share.block, share.index): share.value for share in self.parts if share.kind == "head"
        }
        if heads:
            blocks, columns = (sorted({place[side] or 0 for place in heads}) for side in (0, 1))
            cells = [[heads.get((block, column)) for column in columns] for block in blocks]
            names = [f"L{block}" for block in blocks], [f"h{column}" for column in columns]
            yield _added("added by each head", cells, *names)
        yield self._table()

    def records(self) -> Records:
        """A row for each part."""
        rows = (tuple(vars(share).values()) for share in self.parts)
        return tuple(Contribution.__dataclass_fields__), rows

    def _blocks(self) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Kinds of parts, and for each block its name and the sum of each kind."""
        blocks = self.by_block()
        kinds = list(dict.fromkeys(kind for _, sums in blocks for kind in sums))
        return kinds, [(name, *map(sums.get, kinds)) for name, sums in blocks]

    def block_table(self) -> list[str]:
        """A line for each block, the sums of its parts by kind."""
        kinds, rows = self._blocks()
        return TableFigure.of("", ("", *kinds), rows, form="+.4f").lines()

    def _table(self, top: int = 20) -> TableFigure:
        """The parts that added or took most, rounded to four places; then the sum beside the
        logit."""
        ordered = sorted(self.parts, key=lambda part: -abs(part.value))
        rows = [(_label(part), part.address, part.value) for part in ordered[:top]]
        if remainder := [part.value for part in ordered[top:]]:
            rows.append((f"{len(remainder):,} more", "", math.fsum(remainder)))
        run_name = "the edited run's own" if self.edits else "the model's own"
        totals = [
            ("sum", f"of {len(self.parts):,} parts", self.sum),
            ("logit", run_name, self.logit),
            ("difference", "", f"{self.difference:.1e}"),
        ]
        return TableFigure.of("", ("part", "address", "added"), [*rows, *totals], (0, 1), "+.4f")


def _added(
    title: str, cells: list[list[float | None]], rows: Sequence[str], columns: Sequence[str]
) -> Heat:
    """Numbers as a map with zero in the middle; None is nothing there."""
    words = [["" if value is None else f"{value:+.2f}" for value in row] for row in cells]
    return Heat(title, np.array(cells, dtype=float), rows, columns, words, signed=True)


def _label(component: Contribution) -> str:
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
    of: Literal["logit", "label"] | None = None,
    edits: Edits = (),
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
    of_labels = answer_kind(model, of) == "label"
    streams.needs_stream(model, "Direct logit attribution", INSTEAD)
    inputs = streams.prepare(model, tokenizer, text, source, changes)
    body = model.config.main_body
    head = cast(Any, model.head)
    tape: Tape
    if of_labels:
        need(position is None, "A label is of the whole text, of no position; leave it out.")
        tape = Tape(*watched(body), "pool.*", edits=inputs.edits)
        output = inputs.run(model, tape)
        logits = fp64(tape["pool.write"][0])
    else:
        streams.needs_head(model, "`glassformer contexts` compares its vectors.")
        position = streams.place(position, inputs.tokens, tokenizer)
        tape = AtOnePlace(position, body, inputs.edits)
        output = inputs.run(model, tape)
        with inference(model):  # before the cap
            last_hidden = output.hidden[:, position : position + 1]
            logits = fp64(head.proj(head.prepare(last_hidden), head.table(model.embed))[0, 0])
    must_be_finite(model, logits)
    chosen, piece = streams.choice(model, tokenizer, logits, token, of_labels)
    rival, rival_piece = (
        (None, None)
        if against is None
        else streams.choice(model, tokenizer, logits, against, of_labels)
    )
    need(
        rival != chosen,
        f"The two {'labels' if of_labels else 'tokens'} are the same one, and their difference is "
        "nothing; give another.",
    )
    hidden = fp64(output.hidden[0])
    with torch.no_grad():
        if of_labels:
            shares, notes = _through_pool(model, tape, hidden, chosen, rival)
        else:
            assert isinstance(tape, AtOnePlace)
            sweep = Sweep(model, tape)
            sweep.carry_back(hidden[position], chosen, rival)
            shares = sweep.parts
            notes = sweep.notes

    def score(logits: Tensor) -> float:
        return (logits[chosen] - (0.0 if rival is None else logits[rival])).item()

    total = math.fsum(part.value for part in shares)
    logit = score(logits)
    cap = None if of_labels else head.softcap
    return Attribution(
        chosen,
        piece,
        rival,
        rival_piece,
        position,
        shares[::-1],
        total,
        logit,
        abs(total - logit),
        None if cap is None else score(cap * torch.tanh(logits / cap)),
        notes,
        [*map(repr, changes)],
    )


def _through_pool(
    model: Model, tape: Tape, hidden: Tensor, label: int, against_label: int | None
) -> tuple[list[Contribution], list[str]]:
    """The parts of a label's logit (less another's) from the last to the first; ``hidden`` (T, C)
    is what is pooled."""
    body = model.config.main_body
    pool = model.pool
    head_sweep = Sweep(model, AtOnePlace(0, body, tape.edits), ":")
    rows, signs = (
        ([label], [1.0]) if against_label is None else ([label, against_label], [1.0, -1.0])
    )
    sign = torch.tensor(signs, dtype=torch.float64, device=hidden.device)
    vector, shares = fp64(tape["pool.vector"][0]), fp64(pool.shares(hidden))  # (C), (T, C)
    x = vector
    gate = None
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
        Contribution(kind, address, value, block, index)
        for (kind, address, block, index), value in sums.items()
    ]
    return [*head_sweep.parts, *components], head_sweep.notes


def _unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1)
