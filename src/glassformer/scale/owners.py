"""Muon on shards: a matrix is orthogonalised as a whole by the process that owns it, then goes
back to its shards.

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
from .windows import GRID, WeightWindow

AXES = ("data", "tensor")
"""The axes along which a matrix lies in parts."""
Box: TypeAlias = tuple[slice, slice]


@dataclass(frozen=True)
class OwnedMatrix:
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
        windows: Sequence[WeightWindow],
        stacked: Callable[[list[tuple[int, int]]], list[list[int]]],
    ):
        """``stacked`` says which matrices, by their shapes, are worked on together."""
        self.mesh = mesh
        self.windows = list(windows)
        self.matrices = list[OwnedMatrix]()
        for index, window in enumerate(self.windows):
            shape = (
                window.place.shape
                if window.cut is not None and window.cut.axis in AXES
                else window.shape
            )
            size = window.shape[-2] * window.shape[-1]
            many = range(window.size // size if size else 0)
            self.matrices += [
                OwnedMatrix(index, number, shape[-2], shape[-1], number * size, size)
                for number in many
            ]
        self.stacks = stacked([(matrix.rows, matrix.columns) for matrix in self.matrices])
        self.members, self.place = mesh.neighbours(*AXES), mesh.index(*AXES)
        self.owner = self._shared_out()
        self.boxes = [
            [self._box(matrix, rank) for rank in self.members] for matrix in self.matrices
        ]

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

    def _box(self, matrix: OwnedMatrix, rank: int) -> Box:
        """Which rows and columns of a matrix lie with a process; perhaps none."""
        window = self.windows[matrix.index]
        cut = self.windows[matrix.index].cut
        sides = [(0, size) for size in window.shape]
        if cut is not None and cut.axis == "tensor":
            sides[cut.dim] = bounds(
                cut.size, self.mesh.extent("tensor"), self.mesh.index("tensor", rank=rank)
            )
        (first, last), *other_sides = sides
        low, high = share(
            last - first, self.mesh.extent("data"), self.mesh.index("data", rank=rank)
        )
        sides = [(first + low, first + high), *other_sides]
        if len(sides) == 3 and not sides[0][0] <= matrix.number < sides[0][1]:
            return slice(0, 0), slice(0, 0)
        rows, columns = sides[-2:]
        return slice(*rows), slice(*columns)

    def _local_slice(self, i: int) -> slice:
        """Slice of its window's tensor that holds this process's box of matrix ``i``."""
        matrix = self.matrices[i]
        count = numbers(self.boxes[i][self.place])
        window = self.windows[matrix.index]
        at = max(matrix.start, window.low) - window.begin if count else 0
        return slice(at, at + count)

    def orthogonal(
        self, momenta: Sequence[Tensor], solve: Callable[[list[Tensor]], list[Tensor]]
    ) -> list[Tensor]:
        """Orthogonalised updates (bf16) of the windows' ``momenta``; ``solve`` makes them of a stack's
        matrices (R, C)."""
        outgoing: list[list[Tensor]] = [[] for _ in self.members]  # what goes to each owner
        owned = list(zip(self.stacks, self.owner, strict=True))
        places = range(len(self.members))
        for stack, owner in owned:
            outgoing[owner] += [
                momenta[self.matrices[i].index][self._local_slice(i)].bfloat16() for i in stack
            ]
        received = self._exchange(outgoing, [self._count(place, self.place) for place in places])
        local_stacks = [stack for stack, owner in owned if owner == self.place]
        at = [0] * len(self.members)
        back: list[list[Tensor]] = [[] for _ in self.members]
        for stack in local_stacks:
            matrices = []
            for i in stack:
                filled = received[0].new_empty(self.matrices[i].rows, self.matrices[i].columns)
                for place, box in enumerate(self.boxes[i]):
                    view = filled[box]
                    view.copy_(received[place][at[place] : at[place] + view.numel()].view_as(view))
                    at[place] += view.numel()
                matrices.append(filled)
            for i, update in zip(stack, solve(matrices), strict=True):
                for place, box in enumerate(self.boxes[i]):
                    back[place].append(update[box].reshape(-1))
        answers = self._exchange(back, [self._count(self.place, place) for place in places])
        updates = [
            torch.zeros(len(window.tensor), dtype=torch.bfloat16, device=window.tensor.device)
            for window in self.windows
        ]
        at = [0] * len(self.members)
        for stack, owner in owned:
            for i in stack:
                local = self._local_slice(i)
                count = local.stop - local.start
                updates[self.matrices[i].index][local] = answers[owner][
                    at[owner] : at[owner] + count
                ]
                at[owner] += count
        return updates

    def _count(self, place: int, owner: int) -> int:
        """Count of numbers that the process at ``place`` holds of the matrices of ``owner``."""
        owned = (
            i
            for stack, stack_owner in zip(self.stacks, self.owner, strict=True)
            if stack_owner == owner
            for i in stack
        )
        return sum(numbers(self.boxes[i][place]) for i in owned)

    def _exchange(self, sent: list[list[Tensor]], sizes: list[int]) -> tuple[Tensor, ...]:
        none = self.windows[0].tensor.new_empty(0, dtype=torch.bfloat16)
        flat = [torch.cat([none, *chunks]) for chunks in sent]
        if len(self.members) == 1:
            return (flat[0],)
        received = flat[0].new_empty(sum(sizes))
        with self.mesh.watched():
            group = self.mesh.group(*AXES)
            torch.distributed.all_to_all_single(
                received, torch.cat(flat), sizes, [len(chunk) for chunk in flat], group
            )
        return torch.split(received, sizes)

    @torch.no_grad()
    def add(self, directions: Sequence[Tensor], rates: Callable[[int, int], float]) -> None:
        """Move the windows along their directions by ``rates(rows, columns)``, to the bits of one
        process's kernels."""
        for matrix in self.matrices:
            window = self.windows[matrix.index]
            rate = rates(matrix.rows, matrix.columns)
            low = matrix.start - window.begin
            high = matrix.start + matrix.size - window.begin
            low = max(low, 0)
            high = min(high, len(window.tensor))
            if low >= high:
                continue
            window.tensor[low:high].add_(directions[matrix.index][low:high], alpha=-rate)


def numbers(box: Box) -> int:
    rows, columns = box
    return int((rows.stop - rows.start) * (columns.stop - columns.start))


assert GRID % 32 == 0  # TensorIterator's loops take two vectors of 64 bytes at once
