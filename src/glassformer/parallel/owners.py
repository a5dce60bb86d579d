"""Muon on shards: a matrix is orthogonalised as a whole by the process that owns it, then goes back to its shards.

    momentum where it lies -> rows to the owner (bf16) -> one stack, as one process would make it -> rows back (bf16)

(As in Dion, Ahn et al. 2025, and torchtitan.) Shapes: M matrices of a stack, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .mesh import Mesh, share
from .shard import GRID, Window


@dataclass(frozen=True)
class Matrix:
    """One matrix (rows, columns) of a window's weight, from its number ``start`` on; ``index`` counts windows."""

    index: int
    start: int
    rows: int
    columns: int

    def part(self, low: int, high: int) -> tuple[int, int]:
        """Where in the matrix the numbers [low, high) of the weight lie."""
        size = self.rows * self.columns
        return min(max(low - self.start, 0), size), min(max(high - self.start, 0), size)


class Owners:
    """Which process orthogonalises which stack: the largest first, each to who has least to do."""

    def __init__(
        self, mesh: Mesh, found: Sequence[Window], stacked: Callable[[list[tuple[int, int]]], list[list[int]]]
    ):
        """``stacked`` says which matrices, by their shapes, are worked on together."""
        self.mesh, self.windows, self.matrices = mesh, list(found), list[Matrix]()
        for index, one in enumerate(self.windows):
            rows, columns = one.shape[-2:]
            starts = range(0, one.size, rows * columns)
            self.matrices += [Matrix(index, start, rows, columns) for start in starts]
        self.stacks = stacked([(one.rows, one.columns) for one in self.matrices])
        self.members, self.place = mesh.neighbours("data"), mesh.index("data")
        self.owner, self.cut = self._shared_out(), self._cut()

    def _shared_out(self) -> list[int]:
        load = [0] * len(self.members)
        owner = [0] * len(self.stacks)
        work = [sum(self.matrices[i].rows * self.matrices[i].columns for i in stack) for stack in self.stacks]
        for stack in sorted(range(len(work)), key=lambda stack: (-work[stack], stack)):
            owner[stack] = load.index(min(load))
            load[owner[stack]] += work[stack]
        return owner

    def _cut(self) -> list[list[tuple[int, int]]]:
        """For each matrix, which of its numbers lie with each process."""
        found = []
        for one in self.matrices:
            rows = self.windows[one.index].shape[0]
            inside = self.windows[one.index].size // rows
            parts = [share(rows, len(self.members), place) for place in range(len(self.members))]
            found.append([one.part(low * inside, high * inside) for low, high in parts])
        return found

    def orthogonal(self, wanted: Sequence[Tensor], solve: Callable[[list[Tensor]], list[Tensor]]) -> list[Tensor]:
        """The windows' directions (bf16) for the ``wanted`` ones; ``solve`` makes them of a stack's matrices (R, C)."""
        ours: list[list[Tensor]] = [[] for _ in self.members]  # what goes to each owner
        for stack, owner in zip(self.stacks, self.owner, strict=True):
            for i in stack:
                low, high = self.cut[i][self.place]
                one = self.matrices[i]
                at = one.start - self.windows[one.index].begin
                ours[owner].append(wanted[one.index][at + low : at + high].bfloat16() if low < high else _none(wanted))
        received = self._exchange(ours, [self._count(place, self.place) for place in range(len(self.members))])
        mine = [stack for stack, owner in zip(self.stacks, self.owner, strict=True) if owner == self.place]
        at = [0] * len(self.members)
        back: list[list[Tensor]] = [[] for _ in self.members]
        for stack in mine:
            whole = []
            for i in stack:
                pieces = []
                for place, part in enumerate(received):
                    low, high = self.cut[i][place]
                    pieces.append(part[at[place] : at[place] + high - low])
                    at[place] += high - low
                whole.append(torch.cat(pieces).view(self.matrices[i].rows, self.matrices[i].columns))
            for i, made in zip(stack, solve(whole), strict=True):
                flat = made.reshape(-1)
                for place in range(len(self.members)):
                    low, high = self.cut[i][place]
                    back[place].append(flat[low:high])
        answers = self._exchange(back, [self._count(self.place, place) for place in range(len(self.members))])
        found = [torch.zeros(len(one.tensor), dtype=torch.bfloat16, device=one.tensor.device) for one in self.windows]
        at = [0] * len(self.members)
        for stack, owner in zip(self.stacks, self.owner, strict=True):
            for i in stack:
                low, high = self.cut[i][self.place]
                one = self.matrices[i]
                start = one.start - self.windows[one.index].begin
                found[one.index][start + low : start + high] = answers[owner][at[owner] : at[owner] + high - low]
                at[owner] += high - low
        return found

    def _count(self, place: int, owner: int) -> int:
        """How many numbers the process at ``place`` holds of what ``owner`` works on."""
        owned = (i for stack, own in zip(self.stacks, self.owner, strict=True) if own == owner for i in stack)
        return sum(high - low for low, high in (self.cut[i][place] for i in owned))

    def _exchange(self, sent: list[list[Tensor]], counts: list[int]) -> tuple[Tensor, ...]:
        flat = [torch.cat(parts) if parts else _none(self.windows) for parts in sent]
        if len(self.members) == 1:
            return (flat[0],)
        received = flat[0].new_empty(sum(counts))
        with self.mesh.watched():
            group = self.mesh.group("data")
            torch.distributed.all_to_all_single(received, torch.cat(flat), counts, [len(one) for one in flat], group)
        return torch.split(received, counts)

    @torch.no_grad()
    def add(self, directions: Sequence[Tensor], rates: Callable[[int, int], float]) -> None:
        """Move the windows along their directions by ``rates(rows, columns)``, to the bits of one process's kernels."""
        for matrix in self.matrices:
            window = self.windows[matrix.index]
            rate, size = rates(matrix.rows, matrix.columns), matrix.rows * matrix.columns
            low, high = matrix.start - window.begin, matrix.start + size - window.begin
            low, high = max(low, 0), min(high, len(window.tensor))
            if low >= high:
                continue
            window.tensor[low:high].add_(directions[matrix.index][low:high], alpha=-rate)


def _none(like: Sequence[Tensor] | Sequence[Window]) -> Tensor:
    first = like[0]
    device = first.tensor.device if isinstance(first, Window) else first.device
    return torch.empty(0, dtype=torch.bfloat16, device=device)


assert GRID % 32 == 0  # TensorIterator's loops take two vectors of 64 bytes at once
