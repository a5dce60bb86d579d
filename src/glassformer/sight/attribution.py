"""Direct logit attribution: what each part of the model added to a logit, or to the difference of
two.

A logit is a direction times the stream, and the stream is a sum of what parts wrote to it. Every
norm on the way is held at the scale that it had in this pass (recording/causes.py), so the sum is
exact, and is capped_logits to be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

import numpy as np
from torch import nn

from ..core.errors import need
from ..core.nn import Model
from . import streams
from .figures.charts import Chart, Heat, Prose, TableFigure
from .figures.shown import Records, Shown
from .inputs import Text
from .reading import Edits, as_edit_list
from .recording.causes import Cause
from .recording.module_trace import ModuleTrace
from .recording.trace import Trace, record
from .streams import TokenLabel, answer_kind, fp64

TABLES = r"embed\.(token|position|segment|lag\.\d+)"
KINDS = {"attn.z": "head", "cross.z": "cross head", "ffn.hidden": "mlp"}
KINDS |= {"ffn.shared.hidden": "shared expert", "ffn.down_bias": "bias", "attn.write": "mixer"}


@dataclass(frozen=True)
class Contribution:
    """Contribution of one component: ``kind`` is head, mlp, expert, token, position, bias, edit,
    ..; ``address`` where it stands.

    ``block`` is its block, counted from 0, and ``index`` its number there: a head's, an expert's.
    """

    kind: str
    address: str
    value: float
    block: int | None = None
    index: int | None = None


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
        edited = f", with {' and '.join(self.edits)}" if self.edits else ""
        return _in_words(self.piece, self.against_piece, self.position) + edited

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
        return TableFigure("", ("", *kinds), rows, form="+.4f").lines()

    def _table(self, top: int = 20) -> TableFigure:
        """The parts that added or took most, rounded to four places; then the sum beside the
        logit."""
        run_name = "the edited run's own" if self.edits else "the model's own"
        return TableFigure.of_sum(
            ("part", "address", "added"),
            [(_label(part), part.address, part.value) for part in self.parts],
            top,
            ("sum", f"of {len(self.parts):,} parts", self.sum),
            ("logit", run_name, self.logit),
            ("difference", "", f"{self.difference:.1e}"),
        )


def _added(
    title: str, cells: list[list[float | None]], rows: Sequence[str], columns: Sequence[str]
) -> Heat:
    """Numbers as a map with zero in the middle; None is nothing there."""
    words = [["" if value is None else f"{value:+.2f}" for value in row] for row in cells]
    return Heat(title, np.array(cells, dtype=float), rows, columns, words, signed=True)


def _in_words(piece: TokenLabel, against: TokenLabel | None, position: int | None) -> str:
    less = "" if against is None else f" less that of {against.display}"
    place = "" if position is None else f" at position {position}"
    return f"logit of {piece.display}{less}{place}"


def _label(component: Contribution) -> str:
    block = "" if component.block is None else f"L{component.block}."
    return f"{block}{component.kind}" + ("" if component.index is None else f" {component.index}")


@dataclass(frozen=True)
class Question:
    """A logit or a label's number of a recorded pass, less another where ``less`` is an address."""

    run: ModuleTrace
    target: str
    less: str | None
    token: int
    piece: TokenLabel
    against: int | None
    against_piece: TokenLabel | None
    position: int | None  # None of a label

    @property
    def answer(self) -> str:
        """The logit in words."""
        return _in_words(self.piece, self.against_piece, self.position)

    def number(self, run: ModuleTrace) -> float:
        """The answer in a pass."""
        return float(run[self.target]) - (0.0 if self.less is None else float(run[self.less]))


def ask(
    model: nn.Module,
    tokenizer: Any,
    text: Text,
    source: Text | None,
    words: tuple[str | int | None, str | int | None],
    position: int | None,
    of: Literal["logit", "label"] | None = None,
    edits: Edits = (),
) -> Question:
    """Records a pass and finds the address of the logit that ``words`` name, and of the one that is
    taken off it."""
    token, against = words
    is_ours, name = isinstance(model, Model), ""
    if isinstance(model, Model):
        # before the cap
        name = "pool.write" if answer_kind(model, of) == "label" else "head.proj"
        if name == "pool.write":
            need(
                position is None,
                "A label belongs to the whole text and has no position; leave position out.",
            )
        else:
            streams.needs_head(model, "`glassformer contexts` compares its vectors.")
        need(
            not streams.is_recurrent(model),
            "Direct logit attribution needs a residual stream, and a recurrent model has none; use "
            "`glassformer saliency` instead.",
        )
    run = record(model, tokenizer, text, source, edits)
    if not is_ours:
        run.structure.depths()
        name = run.structure.name
    scores = fp64(run[name])[0]  # (T, V), or labels
    of_labels = scores.ndim == 1
    place = None if of_labels else streams.place(position, run.tokens, run.tokenizer)
    logits = scores if place is None else scores[place]
    choose = partial(streams.choice, logits.shape[-1], run.tokenizer, logits, of_labels=of_labels)
    chosen, piece = choose(token)
    rival, rival_piece = (None, None) if against is None else choose(against)
    need(
        rival != chosen,
        f"The two {'labels' if of_labels else 'tokens'} are the same one, so their difference is "
        "0; give another.",
    )

    def number(word: int) -> str:
        if place is None:
            return f"{name}[0,{word}]"
        return f"{name}[0,{place},{word}]"

    less = None if rival is None else number(rival)
    return Question(run, number(chosen), less, chosen, piece, rival, rival_piece, place)


def attribute(
    model: nn.Module,
    tokenizer: Any,
    text: Text,
    *,
    source: Text | None = None,
    token: str | int | None = None,
    against: str | int | None = None,
    position: int | None = None,
    of: Literal["logit", "label"] | None = None,
    edits: Edits = (),
) -> Attribution:
    """Splits a logit into what each head, MLP, expert, embedding and bias added to it.

    Args:
        model: A model of ours or of transformers, or any module that takes ids.
        tokenizer: The tokenizer that came with it.
        text: A text, or token ids.
        source: What an encoder-decoder's encoder reads.
        token: The token whose logit is split, or a label's number; None is the likeliest.
        against: Split the difference to the logit of this one.
        position: The position asked; None is an encoder's only mask token, else the last.
        of: "logit", or "label" for a classifier; None follows from the model.
        edits: Changes to the run. What an edit did to the stream itself is a part of its own.

    Returns:
        The parts, which add up to the logit; printing them shows a table.

    Raises:
        UserError: The model has no such answer or no residual stream, or its blocks and norms are
            no sums.

    Example:
        >>> print(glassformer.attribute(model, tokenizer, "Once upon a"))
    """
    question = ask(model, tokenizer, text, source, (token, against), position, of, edits)
    is_ours, run, place = isinstance(model, Model), question.run, question.position
    rival = question.against
    at = ":" if place is None else str(place)
    writers = writers_of(run, at)
    causes = run.attribute(question.target, writers, question.less)
    sums: dict[tuple[Any, ...], list[float]] = {}
    for cause in causes.causes:
        key = (_named if is_ours else _foreign_named)(cause, run, at)
        sums.setdefault(key, []).append(cause.value)
    notes, capped = causes.notes, None
    if place is not None and is_ours and cast(Any, model.head).softcap is not None:
        notes.append("The head caps its logits: parts are of the logit before the cap.")
        capped_logits = run["logits"][0, place]
        capped = float(capped_logits[question.token]) - (
            0.0 if rival is None else float(capped_logits[rival])
        )
    return Attribution(
        question.token,
        question.piece,
        rival,
        question.against_piece,
        place,
        [
            Contribution(kind, address, math.fsum(values), block, index)
            for (kind, address, block, index), values in sums.items()
        ],
        causes.sum,
        causes.value,
        causes.difference,
        capped,
        notes,
        [*map(repr, as_edit_list(edits))] if is_ours else [*edits],
    )


def writers_of(run: ModuleTrace, place: str, stacks: str = "") -> list[str]:
    """The addresses of all heads, MLPs, experts and tables that write to the stream at one position
    or all; of a model of ours in ``stacks``, a pattern (that of the answer)."""
    if not isinstance(run, Trace):
        return run.structure.writers(place)
    model: Any = run.module
    body = stacks or model.config.main_body
    form = re.compile(rf"{body}\.blocks\.\d+\.(.+)|{'(?:source_)?' * bool(stacks)}{TABLES}")
    names, writers = {**run.aliases, **run.values}, []
    for name, value in names.items():
        match = form.fullmatch(name)
        has_heads = name.endswith(".attn.write") and name.replace("write", "z") in names
        if match is not None and (match[2] or match[1] in KINDS) and not has_heads:
            index = f"head,{place}" if name.endswith(".z") else place
            if match[1] == "ffn.down_bias":
                index = "expert"
            elif len(value.shape) == 4 and name.endswith("hidden"):
                index = f"{'token' if place == ':' else place},choice"
            writers.append(f"{name}[{index}]")
    return writers


def _named(cause: Cause, run: ModuleTrace, place: str) -> tuple[Any, ...]:
    """The kind, address, block and number of a cause in a model of ours; an expert's at all positions
    are one."""
    path, _, places = cause.address.rstrip("]").partition("[")
    match = re.match(r"\w+\.blocks\.(\d+)\.(.+)", path)
    block = None if match is None else int(match[1])
    kind, address, index = cause.kind, cause.address, None
    first, *others = places.split(",")
    if kind == "weight":
        kind = "bias"
    elif kind == "chosen" and match is None:
        _, kind, *numbers = path.split(".")
        index = int(numbers[0]) if numbers else None
    elif kind == "chosen":
        assert match is not None
        kind = KINDS[match[2]]
        if kind == "mlp" and others:
            kind = "expert"
            index = int(run[f"{path.removesuffix('hidden')}chosen[{places}]"])
            address = f"{path}[{place if place == ':' else first},{others[0]}]"
        elif kind not in ("mlp", "shared expert", "mixer"):
            index = int(first)
    return kind, address, block, index


def _foreign_named(cause: Cause, run: ModuleTrace, place: str) -> tuple[Any, ...]:
    """The same in a model that is not ours."""
    path, _, places = cause.address.rstrip("]").partition("[")
    block = re.search(r"\.(\d+)(\.|$)", path)
    kind, index = cause.kind, None
    if kind == "chosen" and any(path == x.mixed.address for x in run.structure.attentions):
        kind = "head"
        index = int(places.split(",")[-2])
    kind = {"chosen": "write", "weight": "bias"}.get(kind, kind)
    return kind, cause.address, None if block is None else int(block[1]), index
