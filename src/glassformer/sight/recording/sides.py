"""The sides of a module's values that nobody named: tokens run along them from where they go in."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .operations import Operation, Value

TEXT, SOURCE, OTHER = 1, 2, 4  # what a value is computed of
ROW = "row"  # the side of one text
BOOKKEEPING = ("mask", "type", "position", "label", "index")
"""Words in the names of inputs that say where tokens stand, not which they are."""
PRODUCTS = {"matmul", "bmm", "baddbmm", "einsum"}


class Sides:
    """Which values are computed of the text, and the names of their sides.

    T are tokens (queries), S keys, H heads, V words, C the last side of any other value.
    """

    def __init__(
        self, operations: Sequence[Operation], leaves: Sequence[Value], outputs: Sequence[Value]
    ) -> None:
        inputs = [x for x in leaves if x.kind == "input" and not _is_bookkeeping(x)]
        ids = {x.address: x for x in inputs if _holds_ids(x)}
        self.source = ids.get("input_ids") if "decoder_input_ids" in ids else None
        self.text = ids.get("decoder_input_ids") or next(iter(ids.values()), None)
        self.depends: dict[Value, int] = {
            x: TEXT if x is self.text else SOURCE if x is self.source else OTHER for x in inputs
        }
        self.names: dict[Value, tuple[str, ...]] = {x: self._name(x) for x in inputs}
        self.keys_of_source: set[Value] = set()  # attentions that look across
        words = 0
        for operation in operations:
            of = 0
            for x in operation.inputs:
                of |= self.depends.get(x, 0)
            if of and operation.name == "embedding":
                words = words or operation.inputs[-1].shape[0]
            for value in operation.outputs if of else ():
                self.depends[value] = of
                self.names[value] = self._name(value)
                if operation.name == "softmax" and len(value.shape) > 2:
                    self._attention(operation, value)
        self.head: Value | None = None
        for value in outputs:
            names = self.names.get(value, ())
            if "T" in names[:-1] and value.shape[-1] == words and self.head is None:
                self.head = value
                self.names[value] = (*names[:-1], "V")

    def of(self, value: Value) -> tuple[str, ...]:
        """The names of a value's sides."""
        return self.names.get(value) or tuple(f"side {at}" for at in range(len(value.shape)))

    def across(self, value: Value) -> tuple[str, ...]:
        """The sides along which the tokens of the source run."""
        if not self.depends.get(value, 0) & TEXT:
            return ("T", "S") if self.source is not None else ()
        return ("S",) if value in self.keys_of_source else ()

    def _length(self, value: Value) -> int | None:
        """The tokens that a value has rows of."""
        of = self.depends.get(value, 0)
        ids = self.text if of & TEXT else self.source if of & SOURCE else None
        return None if ids is None else ids.shape[-1]

    def _name(self, value: Value) -> tuple[str, ...]:
        """The names of an operand of the same shape; else tokens run where their number stands."""
        operation, shape = value.operation, value.shape
        for x in operation.inputs if operation else ():
            if x in self.names and x.shape == shape:
                return self.names[x]
            if operation and operation.name == "linear" and x.shape[:-1] == shape[:-1] != ():
                return (*self.of(x)[:-1], "C")
        names = [f"side {at}" for at in range(len(shape))]
        if len(shape) > 1 and shape[0] == 1:
            names[0] = ROW
        length = self._length(value)
        places = [at for at, size in enumerate(shape) if size == length and names[at] != ROW]
        if places:
            names[2 if len(shape) == 4 and 2 in places else places[0]] = "T"
        if len(shape) > 1 and names[-1] not in (ROW, "T"):
            names[-1] = "C"
        if len(shape) == 4 and names[2] == "T":
            names[1] = "H"
        return tuple(names)

    def _attention(self, operation: Operation, value: Value) -> None:
        """Names the sides of a softmax over keys, and of the scores before it, back to the product
        of queries and keys."""
        shape, steps = value.shape, [value]
        if operation.argument(1, "dim") not in (-1, len(shape) - 1):
            return
        while (made := steps[-1].operation) is not None and made.name not in PRODUCTS:
            before = (x for x in made.inputs if x in self.depends and _as_many(x, steps[-1]))
            if (step := next(before, None)) is None:
                return
            steps.append(step)
        factors = [x for x in made.inputs if x in self.depends][-2:] if made else []
        if len(factors) < 2 or self._length(value) not in (None, shape[-2]):
            return
        for step in steps:
            if step.shape[:-1] == shape[:-1]:
                self.names[step] = (*self.names[value][:-3], "H", "T", "S")
                if self.source is not None and not self.depends[factors[1]] & TEXT:
                    self.keys_of_source.add(step)


def _as_many(x: Value, y: Value) -> bool:
    """True for the same rows, or the same numbers in another shape."""
    return x.shape[:-1] == y.shape[:-1] or y.is_view


def _is_bookkeeping(leaf: Value) -> bool:
    return any(word in leaf.address for word in BOOKKEEPING)


def _holds_ids(leaf: Value) -> bool:
    """True for a row of whole numbers."""
    is_row = leaf.shape[:-1] in ((), (1,)) and leaf.shape != ()
    return is_row and leaf.dtype in (torch.int64, torch.int32)
