"""Muon on shards: a matrix is orthogonalised as a whole by the process that owns it, then goes back
to its shards.

    momentum where it lies -> boxes to the owner (bf16) -> one stack, as one process would make it
    -> boxes back (bf16)

(As in Dion, Ahn et al. 2025, and torchtitan.) Shapes: M matrices of a stack, R rows, C columns.
Experts that lie on the expert axis are whole matrices, which each of its processes gives to owners
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from .mesh import Mesh, share
from .tensor import bounds
from .windows import GRID, Window

AXES = ("data", "tensor")
"""Those along which a matrix lies in parts."""
Box: TypeAlias = tuple[slice, slice]


@dataclass(frozen=True)
class Matrix:
    """One matrix (rows, columns) of a window's weight, the ``number``th of its stack; ``index``
    counts windows.

    What an axis leaves of it here has ``size`` numbers, from the weight's number ``start`` on.
    """

    index: int
    number: int
    rows: int
    columns: int
    start: int
    size: int


class Owners:
    """Which process orthogonalises which stack: the largest first, each to who has least to do."""

    def __init__(
        self,
        mesh: Mesh,
        found: Sequence[Window],
        stacked: Callable[[list[tuple[int, int]]], list[list[int]]],
    ):
        """``stacked`` says which matrices, by their shapes, are worked on together."""
        self.mesh, self.windows, self.matrices = mesh, list(found), list[Matrix]()
        for index, one in enumerate(self.windows):
            whole = one.place.shape if one.cut is not None and one.cut.axis in AXES else one.shape
            size = one.shape[-2] * one.shape[-1]
            many = range(one.size // size if size else 0)
            self.matrices += [
                Matrix(index, number, whole[-2], whole[-1], number * size, size) for number in many
            ]
        self.stacks = stacked([(one.rows, one.columns) for one in self.matrices])
        self.members, self.place = mesh.neighbours(*AXES), mesh.index(*AXES)
        self.owner = self._shared_out()
        self.boxes = [[self._box(one, rank) for rank in self.members] for one in self.matrices]

    def _shared_out(self) -> list[int]:
        load = [0] * len(self.members)
        owner = [0] * len(self.stacks)
        work = [
            sum(self.matrices[i].rows * self.matrices[i].columns for i in stack)
            for stack in self.stacks
        ]
        for stack in sorted(range(len(work)), key=lambda stack: (-work[stack], stack)):
            owner[stack] = load.index(min(load))
            load[owner[stack]] += work[stack]
        return owner

    def _box(self, one: Matrix, rank: int) -> Box:
        """Which rows and columns of a matrix lie with a process; perhaps none."""
        window, cut = self.windows[one.index], self.windows[one.index].cut
        sides = [(0, size) for size in window.shape]
        if cut is not None and cut.axis == "tensor":
            sides[cut.dim] = bounds(
                cut.size, self.mesh.extent("tensor"), self.mesh.index("tensor", rank=rank)
            )
        (first, last), *others = sides
        low, high = share(
            last - first, self.mesh.extent("data"), self.mesh.index("data", rank=rank)
        )
        sides = [(first + low, first + high), *others]
        if len(sides) == 3 and not sides[0][0] <= one.number < sides[0][1]:
            return slice(0, 0), slice(0, 0)
        rows, columns = sides[-2:]
        return slice(*rows), slice(*columns)

    def _here(self, i: int) -> slice:
        """Where in its window's tensor this process's box of matrix ``i`` is."""
        one, count = self.matrices[i], numbers(self.boxes[i][self.place])
        window = self.windows[one.index]
        at = max(one.start, window.low) - window.begin if count else 0
        return slice(at, at + count)

    def orthogonal(
        self, wanted: Sequence[Tensor], solve: Callable[[list[Tensor]], list[Tensor]]
    ) -> list[Tensor]:
        """The windows' directions (bf16) for the ``wanted`` ones; ``solve`` makes them of a stack's
        matrices (R, C)."""
        ours: list[list[Tensor]] = [[] for _ in self.members]  # what goes to each owner
        for stack, owner in zip(self.stacks, self.owner, strict=True):
            ours[owner] += [wanted[self.matrices[i].index][self._here(i)].bfloat16() for i in stack]
        received = self._exchange(
            ours, [self._count(place, self.place) for place in range(len(self.members))]
        )
        mine = [
            stack
            for stack, owner in zip(self.stacks, self.owner, strict=True)
            if owner == self.place
        ]
        at = [0] * len(self.members)
        back: list[list[Tensor]] = [[] for _ in self.members]
        for stack in mine:
            whole = []
            for i in stack:
                filled = received[0].new_empty(self.matrices[i].rows, self.matrices[i].columns)
                for place, box in enumerate(self.boxes[i]):
                    part = filled[box]
                    part.copy_(received[place][at[place] : at[place] + part.numel()].view_as(part))
                    at[place] += part.numel()
                whole.append(filled)
            for i, made in zip(stack, solve(whole), strict=True):
                for place, box in enumerate(self.boxes[i]):
                    back[place].append(made[box].reshape(-1))
        answers = self._exchange(
            back, [self._count(self.place, place) for place in range(len(self.members))]
        )
        found = [
            torch.zeros(len(one.tensor), dtype=torch.bfloat16, device=one.tensor.device)
            for one in self.windows
        ]
        at = [0] * len(self.members)
        for stack, owner in zip(self.stacks, self.owner, strict=True):
            for i in stack:
                here = self._here(i)
                count = here.stop - here.start
                found[self.matrices[i].index][here] = answers[owner][at[owner] : at[owner] + count]
                at[owner] += count
        return found

    def _count(self, place: int, owner: int) -> int:
        """How many numbers the process at ``place`` holds of what ``owner`` works on."""
        owned = (
            i
            for stack, own in zip(self.stacks, self.owner, strict=True)
            if own == owner
            for i in stack
        )
        return sum(numbers(self.boxes[i][place]) for i in owned)

    def _exchange(self, sent: list[list[Tensor]], counts: list[int]) -> tuple[Tensor, ...]:
        flat = [torch.cat(parts) if parts else _none(self.windows) for parts in sent]
        if len(self.members) == 1:
            return (flat[0],)
        received = flat[0].new_empty(sum(counts))
        with self.mesh.watched():
            group = self.mesh.group(*AXES)
            torch.distributed.all_to_all_single(
                received, torch.cat(flat), counts, [len(one) for one in flat], group
            )
        return torch.split(received, counts)

    @torch.no_grad()
    def add(self, directions: Sequence[Tensor], rates: Callable[[int, int], float]) -> None:
        """Move the windows along their directions by ``rates(rows, columns)``, to the bits of one
        process's kernels."""
        for matrix in self.matrices:
            window = self.windows[matrix.index]
            rate = rates(matrix.rows, matrix.columns)
            low, high = matrix.start - window.begin, matrix.start + matrix.size - window.begin
            low, high = max(low, 0), min(high, len(window.tensor))
            if low >= high:
                continue
            window.tensor[low:high].add_(directions[matrix.index][low:high], alpha=-rate)


def numbers(box: Box) -> int:
    """How many numbers lie in it."""
    rows, columns = box
    return int((rows.stop - rows.start) * (columns.stop - columns.start))


def _none(like: Sequence[Tensor] | Sequence[Window]) -> Tensor:
    first = like[0]
    device = first.tensor.device if isinstance(first, Window) else first.device
    return torch.empty(0, dtype=torch.bfloat16, device=device)


assert GRID % 32 == 0  # TensorIterator's loops take two vectors of 64 bytes at once
