"""A recorded pass made linear around the values that it had.

    softmax, sigmoid, the scale of a norm    fixed at its value
    an activation act(x)                     fixed at its gate, act(x) / x
    a weight that multiplies                 fixed
    a product of two values                  what comes out of something fixed is fixed, else half of it is each one's

So every operation is linear in what it carries, and a gradient says what a number is the sum of.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .operations import FAILURES, Operation, Value
from .rules import CASTS, CREATED, MOVES, POINTWISE, moving, read, split_names

FIXED = split_names(
    """softmax sigmoid rsqrt sqrt reciprocal rdiv exp exp2 expm1 log log1p log2 softplus logsigmoid
hardsigmoid sin cos norm vector_norm linalg_vector_norm var std var_mean logsumexp sign rpow floor
ceil round trunc eq ne lt le gt ge and or xor not isnan isinf isfinite"""
)
"""Their results are fixed."""
SUMS = split_names(
    """add sub rsub neg sum mean cumsum index_add scatter_add masked_fill where dropout zero fill
edit"""
)
"""Linear in all their inputs."""
PLAIN = split_names("clamp clamp_min clamp_max clip dropout abs")
"""Functions with a gate that are no activations: what they give stays what it was."""
TERMS = {"linear": (2, "bias"), "addmm": (0, "input"), "baddbmm": (0, "input")}
TERMS |= dict.fromkeys(("conv1d", "conv2d", "conv3d", "conv_transpose1d"), (2, "bias"))
TERMS |= {"layer_norm": (3, "bias"), "group_norm": (3, "bias"), "batch_norm": (4, "bias")}
TERMS |= {"grouped_mm": (3, "bias"), "bilinear": (3, "bias"), "rms_norm": (4, "")}
TERMS |= dict.fromkeys(("mul", "matmul", "bmm", "mm", "mv", "dot", "outer", "einsum"), (9, ""))
"""Products: the argument that is added to them, where there is one."""
NOISE = 1e-9  # of a result, within which float64 sums agree with it


class Rank(IntEnum):
    """The dependence of a value on the input; of the factors of a product the highest is carried
    back."""

    CONSTANT = 0
    FIXED = 1
    GATED = 2  # it comes out of an activation
    LIVE = 3


class Status(NamedTuple):
    """``root`` is the value that this one is a function of number by number, ``fixed_by`` the
    function that fixes it or gave it a gate."""

    rank: Rank
    depends: bool  # on the input
    root: Value
    fixed_by: str = ""


def _inexact(value: Value) -> bool:
    return value.dtype.is_floating_point or value.dtype.is_complex


def wide(x: Tensor) -> Tensor:
    """In float64, or as wide a complex number; numbers that are not inexact stay as they are."""
    if x.is_complex():
        return x.to(torch.complex128)
    return x.double() if x.is_floating_point() else x


def numbers(value: Value) -> Tensor:
    """The numbers of a value, as ``wide`` as the sums are."""
    return wide(read(value).detach())


# ------------------------------------------------------------------------- norms at their own scale


def _layer_norm(
    x: Tensor,
    shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    dims = tuple(range(-len(shape), 0))
    scale = (x.detach().var(dims, correction=0, keepdim=True) + eps).rsqrt()
    return _affine((x - x.mean(dims, keepdim=True)) * scale, weight, bias)


def _affine(y: Tensor, weight: Any, bias: Any = None) -> Tensor:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _rms_norm(x: Tensor, shape: Sequence[int], weight: Any = None, eps: Any = None) -> Tensor:
    dims = tuple(range(-len(shape), 0))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    scale = (x.detach().square().mean(dims, keepdim=True) + eps).rsqrt()
    return _affine(x * scale, weight)


def _group_norm(
    x: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    grouped = x.reshape(len(x), groups, -1, *x.shape[2:])
    y = _layer_norm(grouped, grouped.shape[2:], eps=eps).flatten(1, 2).movedim(1, -1)
    return _affine(y, weight, bias).movedim(-1, 1)


def _normalize(
    x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None
) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(x.detach(), p, dim, keepdim=True)
    return x / length.clamp_min(eps)


def _log_softmax(x: Tensor, dim: int = -1, *_: Any, **__: Any) -> Tensor:
    return x - x.detach().logsumexp(dim, keepdim=True)


def _glu(x: Tensor, dim: int = -1) -> Tensor:
    value, gate = x.chunk(2, dim)
    return value * gate.detach().sigmoid()


def _grouped_mm(x: Tensor, weight: Tensor, offs: Any = None, bias: Any = None, **_: Any) -> Tensor:
    """Rows of x (rows, I) with the matrix of their group, weight (groups, I, O)."""
    stops = [] if offs is None else offs.tolist()
    starts = [0, *stops]
    y = x @ weight if offs is None else x.new_zeros(len(x), weight.shape[-1])
    for group, (start, end) in enumerate(zip(starts, stops, strict=False)):
        y[start:end] = x[start:end] @ weight[group]
    return _affine(y, None, bias)


TWINS: dict[str, Callable[..., Tensor]] = {
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "normalize": _normalize,
    "log_softmax": _log_softmax,
    "glu": _glu,
    "grouped_mm": _grouped_mm,
}
"""Functions that fix a number inside, with that number fixed; and one that has no float64."""
SCALED = TWINS.keys() - {"grouped_mm"}


# ----------------------------------------------------------------------------------- the whole pass


class Linearised:
    """Operations in order, as linear functions of what each carries.

    With ``ordinary`` nothing is fixed, and the gradient is PyTorch's own.
    """

    def __init__(self, operations: Iterable[Operation], ordinary: bool = False) -> None:
        self.ordinary = ordinary
        self.fixed: Counter[tuple[str, str]] = Counter()  # reason, function -> times
        self._status: dict[Value, Status] = {}
        self._carried: dict[Operation, dict[int, float]] = {}  # number of an input -> its share
        for operation in operations:
            self._carried[operation] = self._shares(operation)
            for value in operation.outputs:
                self._status[value] = self._result(operation, value)

    def status(self, value: Value) -> Status:
        if value not in self._status:
            is_input = value.kind == "input"
            rank = Rank.LIVE if is_input and _inexact(value) else Rank.CONSTANT
            self._status[value] = Status(rank, is_input, value)
        return self._status[value]

    def carriers(self, operation: Operation) -> list[Value]:
        """The inputs of an operation to which the gradient goes on."""
        return [operation.inputs[at] for at in self._carried[operation]]

    def _shares(self, operation: Operation) -> dict[int, float]:
        """The inputs that carry, and each one's share of a product."""
        name, inputs = operation.name, operation.inputs
        inexact = [at for at, x in enumerate(inputs) if _inexact(x)]
        live = [at for at in inexact if self.status(inputs[at]).depends]
        if not any(map(_inexact, operation.outputs)) or name == "embedding":
            return {}
        if name in CASTS:
            return dict.fromkeys(inexact[:1], 1.0)
        if self.ordinary:
            return dict.fromkeys(live, 1.0)
        if name in MOVES:
            moved = [at for at in moving(operation) if at in inexact]
            return dict.fromkeys(moved if live or len(moved) == 1 else [], 1.0)
        if name in SUMS:
            return dict.fromkeys(inexact, 1.0)
        if (not live and name not in TERMS) or name in FIXED:
            return {}
        if name == "div":
            if operation.argument(0, "input") is inputs[0]:
                return {0: 1.0}
            return {}
        if name in TERMS:
            return self._factors(operation, inexact)
        if name in SCALED:
            return {0: 1.0}
        power = operation.argument(1, "exponent")
        if name == "pow" and not (isinstance(power, int | float) and power >= 1):
            return {}
        if name in POINTWISE and len(live) == 1:
            return {live[0]: 1.0}
        return dict.fromkeys(live, 1.0) if self._is_linear(operation, live) else {}

    def _factors(self, operation: Operation, inexact: list[int]) -> dict[int, float]:
        """The factors of a product that have the highest rank, and what is added to it."""
        inputs = operation.inputs
        term = operation.argument(*TERMS[operation.name])
        statuses = {at: self.status(inputs[at]) for at in inexact if inputs[at] is not term}

        def order(status: Status) -> tuple[int, bool]:
            # a row of a table times a routing weight is the row's, a softmax times a matrix is not
            beneath = operation.name == "mul" and status.rank == Rank.FIXED
            return (-1 if beneath else status.rank), status.depends

        top = max(map(order, statuses.values()))
        carriers = [at for at, status in statuses.items() if order(status) == top]
        if not any(status.depends for status in statuses.values()):
            carriers = []
        shares = dict.fromkeys(carriers, 1 / max(1, len(carriers)))
        return shares | {at: 1.0 for at in inexact if carriers and inputs[at] is term}

    def _result(self, operation: Operation, value: Value) -> Status:
        name = operation.name
        statuses = [self.status(x) for x in operation.inputs]
        moved = [statuses[at] for at in self._carried[operation]]
        depending = [status for status in statuses if status.depends]
        if name == "embedding":
            return Status(Rank.LIVE, True, value)
        if not depending or not _inexact(value) or name in CREATED:
            depends = bool(depending) and name not in CREATED
            return Status(Rank.CONSTANT, depends, value)
        roots = {status.root for status in depending}
        single = len(roots) == 1 and name in POINTWISE | CASTS
        root = roots.pop() if single else value
        live = [status for status in moved if status.depends]
        if not moved:
            inexact = any(map(_inexact, operation.inputs))
            return Status(Rank.FIXED if inexact else Rank.CONSTANT, True, root, name)
        if not live:
            return Status(Rank.CONSTANT, True, root)
        top = max(live, key=lambda status: status.rank)
        rank, reason = top.rank, top.fixed_by
        if name in POINTWISE - SUMS - PLAIN and name not in ("mul", "div") and rank == Rank.LIVE:
            rank, reason = Rank.GATED, name
        elif name in ("mul", "div") and len(depending) > 1 and rank > Rank.FIXED:
            if single:  # x sigmoid(x) is an activation
                reasons = [status.fixed_by for status in depending if status.fixed_by]
                rank, reason = Rank.GATED, (reasons or [name])[0]
            elif all(status.rank == Rank.GATED for status in depending):
                rank = Rank.LIVE
        elif rank == Rank.GATED and name not in POINTWISE | CASTS | MOVES:
            rank = Rank.LIVE
        return Status(rank, True, root, reason if rank < Rank.LIVE else "")

    # ------------------------------------------------------------------------------ the operations

    def _run(
        self, operation: Operation, carriers: Iterable[int], factor: float = 1.0
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The operation again in float64: its inputs, and what they give."""
        carrying = set(carriers)
        tensors = [
            (numbers(x) * factor).requires_grad_() if at in carrying else numbers(x)
            for at, x in enumerate(operation.inputs)
        ]
        twin = None if self.ordinary and operation.name in SCALED else TWINS.get(operation.name)
        if twin is not None:
            operation = dataclasses.replace(operation, function=twin)
        with torch.enable_grad():
            # an edit may write into what it is given
            inputs = [x.clone() for x in tensors] if operation.name == "edit" else tensors
            return tensors, operation.run(inputs, exact=True)

    def _is_linear(self, operation: Operation, live: list[int]) -> bool:
        """True where the gradients stay the same when all that carries is doubled."""
        gradients: list[list[Tensor]] = []
        try:
            for factor in (1.0, 2.0):
                tensors, results = self._run(operation, live, factor)
                draw = torch.Generator().manual_seed(0)
                total = torch.zeros((), dtype=torch.float64)
                for y in results:
                    if y.requires_grad:
                        weights = torch.rand(y.shape, generator=draw, dtype=y.dtype)
                        total = total + (y.cpu() * weights).sum()
                leaves = [tensors[at] for at in live]
                gradients.append(list(torch.autograd.grad(total, leaves, materialize_grads=True)))
        except FAILURES:
            return False
        return all(torch.allclose(a, b, 1e-9, 1e-12) for a, b in zip(*gradients, strict=True))

    def back(
        self, operation: Operation, gradients: Mapping[int, Tensor]
    ) -> tuple[list[tuple[Value, Tensor]], float] | None:
        """The gradients by what the operation carries, from those by its results; and what its own
        numbers add, as 1 does in x + 1. None where PyTorch cannot run it in float64."""
        shares, name, inputs = self._carried[operation], operation.name, operation.inputs
        if not self.ordinary:
            self.fixed.update(self._reasons(operation))
        if name in CASTS and inputs[0].shape == operation.outputs[0].shape:
            return [(inputs[0], gradients[0])], 0.0
        if name == "edit" and not self.ordinary:
            change = numbers(operation.outputs[0]) - numbers(inputs[0])
            return [(inputs[0], gradients[0])], inner(gradients[0], change)
        if name == "linear" and shares.get(0) == 1.0 and 1 not in shares:
            return self._linear(operation, gradients[0]), 0.0
        try:
            tensors, results = self._run(operation, shares)
        except FAILURES:
            return None
        carriers = [tensors[at] for at in shares]
        pairs = [(results[number], gradient) for number, gradient in gradients.items()]
        slopes: list[Tensor]
        if self._has_gate(operation):
            x, y = carriers[0].detach(), results[0].detach()
            gate = torch.where(x == 0, 0.0, y / x)
            slopes = [(gradients[0] * gate).sum_to_size(x.shape)]
        else:
            slopes = _slopes([(y, g) for y, g in pairs if y.requires_grad], carriers)
        slopes = [slope * share for slope, share in zip(slopes, shares.values(), strict=True)]
        moved = [(inputs[at], slope) for at, slope in zip(shares, slopes, strict=True)]
        if self.ordinary:
            return moved, 0.0
        number = -sum(inner(g, x.detach()) for g, x in zip(slopes, carriers, strict=True))
        noise = 0.0
        for y, gradient in pairs:
            number += inner(gradient, y.detach())
            finite = y.detach().nan_to_num(posinf=0, neginf=0)
            noise += NOISE * float(gradient.norm() * finite.norm())
        return moved, number if abs(number) > noise else 0.0

    def _has_gate(self, operation: Operation) -> bool:
        name = operation.name
        plain = name in SUMS or name in TERMS or name == "div" or name not in POINTWISE
        return not (self.ordinary or plain) and len(self._carried[operation]) == 1

    @staticmethod
    def _linear(operation: Operation, gradient: Tensor) -> list[tuple[Value, Tensor]]:
        """Only the rows of the matrix that count: of a head's often one."""
        x, weight, *bias = operation.inputs
        rows = gradient.reshape(-1, gradient.shape[-1])
        columns = rows.any(0).nonzero()[:, 0]
        matrix = read(weight)[columns].detach().double()
        moved = [(x, gradient[..., columns] @ matrix)]
        return moved + [(value, rows.sum(0).sum_to_size(value.shape)) for value in bias]

    def _reasons(self, operation: Operation) -> Iterator[tuple[str, str]]:
        """Why and by which function something is fixed in an operation."""
        shares, name = self._carried[operation], operation.name
        if name in SCALED:
            yield "scale", name
        elif self._has_gate(operation) and name not in PLAIN:
            yield "gate", name
        if any(share < 1 for share in shares.values()):
            yield "half", name
        if name in TERMS or name == "div":
            for at, x in enumerate(operation.inputs):
                status = self.status(x)
                if at not in shares and status.depends and _inexact(x):
                    yield "value", status.fixed_by or "div"


def _slopes(pairs: Sequence[tuple[Tensor, Tensor]], carriers: Sequence[Tensor]) -> list[Tensor]:
    if not pairs:
        return [torch.zeros_like(x) for x in carriers]
    results, gradients = zip(*pairs, strict=True)
    return list(torch.autograd.grad(results, carriers, gradients, materialize_grads=True))


def inner(a: Tensor, b: Tensor) -> float:
    """The sum of products of two tensors' numbers; 0 of anything is 0."""
    total = float(torch.vdot(a.reshape(-1), b.reshape(-1)).real)
    if math.isfinite(total):
        return total
    return float((a.conj() * b).real[a != 0].sum())
