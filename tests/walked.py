"""What holds of every number of every recorded pass."""

from __future__ import annotations

import math
import random

import torch

from glassformer.sight.recording import explain
from glassformer.sight.recording.module_trace import fields
from glassformer.sight.recording.opening import PAIRED
from glassformer.sight.recording.rules import origin, read

SUMS = (*PAIRED, "sum", "mean", "cumsum", "conv1d", "conv2d", "einsum", "add", "sub")


def cells(trace, rng, count):
    """Numbers of what the module returned and of values drawn at random."""
    values = [x for operation in trace.operations for x in operation.outputs]
    returned = list(trace.aliases.values())
    values = values or returned
    for value in (*rng.choices(returned, k=count), *rng.choices(values, k=2 * count)):
        if math.prod(value.shape):
            yield value, tuple(rng.randrange(size) for size in value.shape)


def rounding(value, index):
    """The relative rounding of the numbers that were stored on the way to this one."""
    home, _ = origin(value, index)
    step = value
    coarse = 0.0
    while True:
        if step.dtype.is_floating_point or step.dtype.is_complex:
            coarse = max(coarse, torch.finfo(step.dtype).eps)
        if step is home or step.operation is None or not step.operation.inputs:
            return coarse
        step = step.operation.inputs[0]


def bound(explanation, groups, eps):
    """How far rounding may take a number from its operands: each of them, each term and the result
    is right to a few units, and the errors of a sum add up as a random walk's."""
    sizes = [x.terms.abs().nan_to_num(0, 0, 0).sum().item() for x in groups]
    if explanation.kind == "gelu":  # x/2 and x/2 erf(x) cancel where x is far below 0
        sizes.append(groups[0].numbers.abs().sum().item())
    count = max(map(len, groups), default=1)
    underflow = torch.finfo(torch.float32).tiny
    return eps * (4 + 2 * math.sqrt(count)) * (abs(explanation.value) + sum(sizes)) + underflow


def walk(trace, opened, seed=0):
    """Opens numbers from the result back to where the arithmetic begins; what is wrong of them."""
    rng = random.Random(seed)
    wrong = []
    visited = set()
    queue = list(cells(trace, rng, 30))
    while queue and len(visited) < opened:
        value, index = queue.pop(rng.randrange(len(queue)))
        if (id(value), index) in visited:
            continue
        visited.add((id(value), index))
        try:
            wrong += faults(value, index)
            explanation = explain(value, index)
        except Exception as error:
            wrong.append(f"RAISED {value.address}{list(index)}: {type(error).__name__}: {error}")
            continue
        for group in (*explanation.factors, *explanation.others):
            for at in rng.sample(range(len(group)), min(2, len(group))):
                queue.append((group.value, tuple(group.places[at].tolist())))
    return wrong


def faults(value, index):
    """What is wrong with the explanation of one number."""
    wrong = []
    explanation = explain(value, index)
    groups = (*explanation.factors, *explanation.others)
    name = f"{explanation.address} ({explanation.kind})"
    stored = read(value, tuple(slice(at, at + 1) for at in index)).reshape(()).item()
    if stored != explanation.value and stored == stored:
        wrong.append(f"{name}: value {explanation.value}, stored {stored}")
    a = explanation.value
    b = explanation.recomputed
    if not (a == b or (a != a and b != b)):
        limit = bound(explanation, groups, rounding(value, index))
        if not abs(a - b) <= limit:
            wrong.append(f"{name}: {a}, its operands give {b}; bound {limit:.3g}")
    home, _ = origin(value, index)
    begins = home.operation is None or not home.operation.inputs or explanation.kind == "created"
    empty = home.operation is not None and not any(
        math.prod(x.shape) for x in home.operation.inputs
    )
    if not (begins or groups or empty):  # a sum of no numbers is 0
        wrong.append(f"{name}: a dead end")
    constant = explanation.kind in ("add", "sub") and len(home.operation.inputs) == 1  # x + 1
    if (
        explanation.kind in SUMS
        and len(explanation.terms)
        and math.isfinite(abs(b))
        and not constant
    ):
        paired = explanation.factors[1:] or explanation.kind in PAIRED
        bias = [x.terms for x in explanation.others if paired]
        terms = [explanation.terms, *bias]
        total, size = (sum(x.sum().item() for x in row) for row in (terms, map(abs, terms)))
        if not abs(total - b) <= 1e-5 * size:
            wrong.append(f"{name}: terms add up to {total}, not {b}")
    return wrong


def is_unchanged(trace):
    """True where the pass returned, bit for bit, what the module returns when nobody watches."""
    with torch.no_grad():
        plain = fields(trace.module(*trace.args, **trace.kwargs))
    recorded = fields(trace.output)
    assert plain.keys() == recorded.keys()
    return all(
        x.dtype == recorded[name].dtype
        and torch.equal(x.nan_to_num(), recorded[name].nan_to_num())
        and torch.equal(x.isnan(), recorded[name].isnan())
        for name, x in plain.items()
    )
