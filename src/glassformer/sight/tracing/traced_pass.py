"""One forward pass in which every number has an address, from the token ids to the
probabilities."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...core.errors import UserError
from ...core.nn import Model
from ...core.nn.edited import ModelEdit
from ...core.nn.replace import is_packed
from .. import export, tables
from ..looking import Text, inputs, listing
from ..streams import display_texts, pieces, word_id
from .kinds import KINDS, Index, Line, Reader
from .plan import Op
from .values import KEEP, Explanation, Values

if TYPE_CHECKING:
    from ...core.tokenizer.tokenizer import Tokenizer

SIDES = {
    "T": "token",
    "S": "key",
    "V": "word",
    "H": "head",
    "K": "key-value head",
    "E": "expert",
    "L": "label",
}
SIDES |= {"k": "choice", "F": "neuron"}


def trace(
    model: Model,
    tokenizer: Tokenizer | None,
    text: Text,
    source: Text | None = None,
    edits: Sequence[ModelEdit | str] = (),
    keep: int = KEEP,
) -> Trace:
    """One pass over ``text`` (or one row of token ids), everything addressable; nothing of it needs
    gradients.

    ``source`` is what an encoder-decoder's encoder reads, ``edits`` are of
    ``glassformer.sight.edits``; ``keep`` bounds the bytes of recorded values. Raises UserError
    for a text that the model cannot read.
    """
    tokens, source_ids, changes = inputs(model, tokenizer, text, source, edits)
    for ids in (tokens, source_ids):
        if ids is not None and len(ids) != 1:
            raise UserError(
                f"A trace is of one text and these are {len(ids)} rows; give one of them."
            )
    return Trace(model, tokenizer, tokens, source_ids, changes, keep)


class Trace(Values):
    """A forward pass: ``plan`` says what was computed in which order, ``trace[address]`` gives any
    value of it.

    The model's own values are recorded; what lies between them, and all that grows with the square
    of the text, is computed from them when asked for, by the plan.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer | None,
        tokens: Tensor,
        source: Tensor | None = None,
        edits: Mapping[str, Any] | None = None,
        keep: int = KEEP,
    ) -> None:
        super().__init__(model, tokens, source, edits, keep)
        self.tokenizer = tokenizer

    # ---------------------------------------------------------------------------------- values

    def __getitem__(self, address: str) -> Tensor:
        """The value at an address: ``decoder.blocks.3.attn.q``, or a part of it, ``[4, :, 7]``,
        batch row left out."""
        name, index = self.parse(address)
        if index is None:
            return self._whole(name)
        if name not in self.plan:
            return (
                self._weight(name)[index]
                if name in self.plan.weights
                else self._record(name)[index]
            )
        op = self.plan[name]
        select = {
            axis: place
            for axis, place in zip(op.axes, index, strict=False)
            if axis in ("H", "T") and isinstance(place, int)
        }
        value = self._value(name, select)
        return value[
            tuple(
                0 if axis in select else place for axis, place in zip(op.axes, index, strict=False)
            )
        ]

    def __repr__(self) -> str:
        size = f"{self.tokens.shape[1]} tokens, {len(self.plan.ops)} operations"
        return (
            f"<Trace of {size}: trace[address], trace.explain(address), trace.lines() lists "
            "the addresses>"
        )

    def parse(self, address: str) -> tuple[str, tuple[int | slice, ...] | None]:
        """An address as a name and an index of every side; raises UserError where there is no such
        number."""
        match = re.fullmatch(r"\s*([^\[\]\s]+)\s*(?:\[(.*)\])?\s*", address)
        if match is None:
            raise UserError(f'"{address}" is no address; give one such as {self.example()}.')
        name, inside = self._known(match.group(1)), match.group(2)
        if inside is None:
            return name, None
        shape, axes = self.shape(name)
        pieces = re.findall(r'"[^"]*"|\'[^\']*\'|[^,]+', inside)
        # the batch row is left out
        skipped = len(pieces) < len(shape) and axes[:1] in (("B",), ("N",))
        layout = ((0,) if skipped else ()), axes[1:] if skipped else axes
        try:
            places = [
                *layout[0],
                *(
                    self._at(name, axis, piece.strip())
                    for axis, piece in zip(layout[1], pieces, strict=False)
                ),
            ]
        except UserError:
            raise
        except ValueError:
            raise UserError(
                f'"[{inside}]" is no index; give integers, as in {self.example()}.'
            ) from None
        places += [0] * (len(pieces) - len(layout[1]))  # too many, as is told below
        if len(places) > len(shape):
            first = axes[0] in ("B", "N")
            own_sides = [f"{axis} {size}" for axis, size in zip(axes, shape, strict=True)][first:]
            message = f"{name} has {len(own_sides)} sides ({' x '.join(own_sides)})"
            message += f" and the index {len(places)}; "
            raise UserError(f"{message}give {len(own_sides)}{', without the batch row' * first}.")
        for axis, size, place in zip(axes, shape, places, strict=False):
            if isinstance(place, int) and not -size <= place < size:
                raise UserError(
                    f"{name} has {size} places along {axis}, 0 to {size - 1}; "
                    f"{place} is none of them."
                )
        return name, tuple(
            place % size if isinstance(place, int) else place
            for place, size in zip(places, shape, strict=False)
        )

    def _at(self, name: str, axis: str, text: str) -> int | slice:
        """One place of an index: an integer, a stretch, or a token in quotes where the side has
        tokens."""
        if text[:1] in ("'", '"') and text[-1:] == text[:1] and len(text) > 2:
            return self._of_word(name, axis, text[1:-1])
        if ":" in text:
            start, _, end = text.partition(":")
            return slice(int(start) if start.strip() else None, int(end) if end.strip() else None)
        return int(text)

    def _of_word(self, name: str, axis: str, word: str) -> int:
        """The place of a token along a side: in the vocabulary, or the one place in the text where
        it stands."""
        if axis == "V":
            return word_id(self.model, self.tokenizer, word)
        if axis not in ("T", "S") or self.tokenizer is None:
            raise UserError(f'{name} has no words along {axis}; give a number, not "{word}".')
        ids, reads = self.side(name, axis)[0].tolist(), self.reads(name, axis)
        labels, named = display_texts(reads, ids), pieces(reads, ids)
        positions = [
            at for at, label in enumerate(labels) if word in (label, label.strip("·"), named[at])
        ]
        if len(positions) == 1:
            return positions[0]
        available = ", ".join(f"{at} {piece}" for at, piece in enumerate(labels[:40]))
        if positions:
            raise UserError(
                f'"{word}" stands at {" and ".join(map(str, positions))}; give one of these numbers.'
            )
        raise UserError(f'No token of the text is "{word}"; give a number. There are: {available}.')

    def example(self) -> str:
        """An address that exists."""
        square = next((op for op in self.plan if op.quadratic), next(iter(self.plan)))
        return f'"{square.id}[{",".join("0" for _ in square.shape[1:])}]"'

    def _known(self, name: str) -> str:
        if name in self.plan or name in self.plan.weights or name in self.records:
            return name
        names = [*self.plan.ops, *self.plan.alias, *self.plan.weights]
        near = get_close_matches(name, names, n=1, cutoff=0.5)
        meant = f' Did you mean "{near[0]}"?' if near else ""
        raise UserError(
            f'Nothing has the address "{name}".{meant} There are: '
            f"{', '.join(listing(list(self.plan.ops)))}."
        )

    # ---------------------------------------------------------------------------- as a document

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the trace as one HTML file that opens without a server, 2 MB at most, or all of it
        as .safetensors.

        ``cells``: addresses whose arithmetic the file is to hold; ``most``: the bytes of the file;
        ``name``: of the model, as the file calls it.
        """
        return export.save(self, path, **options)

    def live(self, view: str = "playground", height: int = 640) -> Any:
        """A widget for a notebook (extra ``live``): the page on this text, every number computed by
        the kernel.

        ``view`` is one of its screens, such as "attention". It lives as long as the kernel does.
        """
        # by its name: the page stands above this room
        live_page = importlib.import_module("glassformer.serve.page.live")
        return live_page.live(self, view, height)

    def _repr_html_(self) -> str:
        """Notebook output: the page in a frame, with these numbers, alive after the kernel
        has gone."""
        return export.frame(self)

    # ---------------------------------------------------------------------------------- reasons

    def explain(self, address: str) -> Explanation:
        """The arithmetic of one number: its operands with their addresses, the terms, and what they
        give together."""
        name, index = self.parse(address)
        shape, _ = self.shape(name)
        if (
            index is None
            or len(index) != len(shape)
            or not all(isinstance(place, int) for place in index)
        ):
            example = ",".join("0" for _ in shape[1:] or shape)
            raise UserError(
                f"{address} is {_sides(shape)} numbers; give one of them, as {name}[{example}]."
            )
        at: Index = tuple(place for place in index if isinstance(place, int))
        return self._explained(name, at) if name in self.plan else self._given(name, at)

    def _given(self, name: str, at: Index) -> Explanation:
        """A number of a weight: where the arithmetic begins."""
        line, dtype = self.read_line(name, at), str(self._weight(name).dtype).removeprefix("torch.")
        value, none = float(line.values[0]), torch.zeros(0, dtype=torch.float64)
        sentence = "A number of the model's weights: here the arithmetic begins."
        return Explanation(
            line.address(),
            "weight",
            value,
            dtype,
            value,
            none,
            (),
            (),
            {},
            "",
            sentence,
            "given",
            "",
        )

    def _explained(self, name: str, at: Index) -> Explanation:
        """A number that an operation gave."""
        op = self.plan[name]
        worked = KINDS[op.kind].cell(op, at, CellReader(self, op))
        stored = self[f"{op.id}[{','.join(map(str, at))}]"]
        value, closed = float(stored), op.kind in ("leaf", "generic")
        edited = any(self.edits_at(path) for path in (op.id, *self.names.get(op.id, ())))
        index = at[1:] if op.axes[0] in ("B", "N") and at[0] == 0 and len(at) > 1 else at
        return Explanation(
            address=f"{op.id}[{','.join(map(str, index))}]",
            kind=op.kind,
            value=value,
            dtype=str(stored.dtype).removeprefix("torch."),
            recomputed=value if closed else worked.value,
            terms=worked.terms,
            factors=worked.factors,
            others=worked.other_lines,
            numbers=worked.numbers,
            place=self._place(op, at),
            sentence=worked.words
            + self._rounding(op)
            + (" An edit has changed this value." if edited else ""),
            equation=worked.equation,
            source=op.source,
            weights=dict(op.weights),
            edited=edited,
        )

    def _rounding(self, op: Op) -> str:
        """Sentence about rounding in a product with a quantised matrix."""
        weight: Any = self._weight(op.weights["weight"]) if "weight" in op.weights else None
        if weight is None or not is_packed(weight):
            return ""
        codes = f" The matrix is held in codes of {weight.quantized_data.bits} bits"
        return (
            f"{codes}, and its input is rounded to 8 bits, 32 numbers a scale, before: hence "
            "the difference."
        )

    def _place(self, op: Op, at: Index) -> str:
        """``head 4, token 7 "it", key 2 "animal"``."""
        places = []
        for axis, place in zip(op.axes, at, strict=True):
            if axis not in ("B", "N"):
                piece = self.token(op.id, axis, place)
                places.append(
                    f"{SIDES.get(axis, 'dimension')} {place}"
                    + ("" if piece is None else f' "{piece}"')
                )
        return ", ".join(places)

    def why(self, address: str, up: int = 0) -> Iterator[Explanation]:
        """``explain``, then ``up`` steps back along the operand with the largest term."""
        explanation = self.explain(address)
        yield explanation
        for _ in range(up):
            largest = explanation.largest()
            if largest is None:
                return
            explanation = self.explain(largest)
            yield explanation

    # ----------------------------------------------------------------------------------- names

    def token(self, name: str, axis: str, place: int) -> str | None:
        """The token at a place of a side of ``name``, as it reads; None where the side has no
        tokens."""
        if self.tokenizer is None or axis not in ("T", "S", "V"):
            return None
        return display_texts(
            self.reads(name, axis), [place if axis == "V" else int(self.side(name, axis)[0, place])]
        )[0]

    def side(self, name: str, axis: str) -> Tensor:
        """The token ids (1, length) along a side of tokens of a value."""
        return (
            self.source if self.source is not None and self._of_source(name, axis) else self.tokens
        )

    def reads(self, name: str, axis: str) -> Tokenizer | None:
        """The tokenizer of the tokens along a side of a value."""
        return self.tokenizer and (
            self.tokenizer.for_source if self._of_source(name, axis) else self.tokenizer
        )

    def _of_source(self, name: str, axis: str) -> bool:
        across = axis == "S" and ".cross." in name
        return self.source is not None and (name.startswith(("encoder.", "source")) or across)

    def lines(self) -> list[str]:
        """The plan as text: a line for each operation, in order."""
        rows = []
        for op in self.plan:
            sides = " x ".join(
                f"{axis} {size}"
                for axis, size in zip(op.axes, op.shape, strict=True)
                if axis != "B"
            )
            rows.append((op.id, op.kind, sides, ", ".join(op.inputs), op.source))
        return tables.lines(rows, ("address", "kind", "sides", "of", "code"), left_columns=range(5))

    def to_dict(self) -> dict[str, Any]:
        """The run as JSON holds it: tokens, plan, what was kept."""
        ids = self.tokens[0].tolist()
        names = None if self.tokenizer is None else pieces(self.tokenizer, ids)
        record: dict[str, Any] = {"tokens": {"ids": ids, "pieces": names}}
        if self.source is not None:
            source_ids = self.source[0].tolist()
            names = (
                None if self.tokenizer is None else pieces(self.tokenizer.for_source, source_ids)
            )
            record["source"] = {"ids": source_ids, "pieces": names}
        precision = {"tier": self.tier, "bytes": self.kept_bytes}
        return {**record, "plan": self.plan.to_dict(), "kept": precision, "ms": 1000 * self.seconds}


class CellReader(Reader):
    """Reads what one operation reads, from a trace."""

    def __init__(self, trace: Trace, op: Op) -> None:
        self.trace, self.op = trace, op

    def input(self, number: int, *index: int | None) -> Line:
        return self.trace.read_line(self.op.inputs[number], index)

    def weight(self, role: str, *index: int | None) -> Line | None:
        return (
            self.trace.read_line(self.op.weights[role], index) if role in self.op.weights else None
        )


def _sides(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
