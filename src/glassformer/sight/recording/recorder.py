"""One forward pass of any module, recorded: each PyTorch function with its inputs and its results.

A ``TorchFunctionMode`` sees every function of PyTorch that Python code calls, hooks say which module
is under way, and the line that called a function names its result. No bit of the pass changes.
"""

from __future__ import annotations

import heapq
import threading
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ...core.errors import UserError
from .operations import (
    NEW,
    Edit,
    Geometry,
    Key,
    Line,
    Operation,
    Value,
    calling_line,
    function_name,
    tensors_of,
)
from .written_out import attention

IN_PLACE = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__"}
IN_PLACE |= {"__ipow__", "__iand__", "__ior__", "__ixor__", "__imod__", "__ifloordiv__"}
NO_WRITE = {"requires_grad_", "detach_", "share_memory_"}
RANDOM = {"bernoulli", "multinomial", "rand", "randn", "rand_like", "randn_like", "randint"}
RANDOM |= {"normal", "randperm", "exponential", "uniform", "gumbel_softmax"}


def overwritten(function: Callable[..., Any], args: Any, kwargs: Any) -> Tensor | None:
    """The tensor that a call writes into, None where it makes a new one."""
    name = str(getattr(function, "__name__", ""))
    out: Any = kwargs.get("out")
    if isinstance(out, Tensor):
        return out
    in_place = name.endswith("_") and not name.endswith("__") and name not in NO_WRITE
    writes = in_place or name in IN_PLACE or kwargs.get("inplace") is True
    return args[0] if writes and args and isinstance(args[0], Tensor) else None


def _from_torch(module: nn.Module) -> bool:
    home = type(module).__module__
    has_steps = home.endswith(".transformer") or isinstance(module, nn.MultiheadAttention)
    return home.startswith("torch.") and not has_steps


def overlay(old: Geometry, new: Geometry, below: Tensor, above: Tensor) -> Tensor:
    """``below`` where ``above`` has written into the memory that both share."""
    shift = min(old[1], new[1])
    end = max(
        offset + sum(s * (n - 1) for s, n in zip(stride, x.shape, strict=True)) + 1
        for (_, offset, stride), x in ((old, below), (new, above))
    )
    memory = below.new_zeros(end - shift)
    memory = memory.as_strided_scatter(below, below.shape, old[2], old[1] - shift)
    memory = memory.as_strided_scatter(above, above.shape, new[2], new[1] - shift)
    return memory.as_strided(below.shape, old[2], old[1] - shift).clone()


class Reached(Exception):
    """The module that a pass was to reach has given its result."""


class Stages(NamedTuple):
    """The modules of a pass for one question: those at the paths ``passed`` are recorded by their
    result alone, and the pass stops after the module ``final`` ("": it runs to its end)."""

    passed: frozenset[str] = frozenset()
    final: str = ""


WHOLE_PASS = Stages()


class Recorder(TorchFunctionMode):
    """Records what is computed while it is active; ``keep`` bounds the bytes of the values.

    ``edits`` are functions of the values that they replace, by the key of a value.
    """

    def __init__(
        self, keep: int, edits: Mapping[Key, Edit] | None = None, stages: Stages = WHOLE_PASS
    ) -> None:
        super().__init__()
        self.keep, self.edits, self.stages = keep, dict(edits or {}), stages
        self.applied: set[Key] = set()  # of the edits
        self.operations: list[Operation] = []
        self.leaves: list[Value] = []
        self.modules: dict[str, Value] = {}  # what each module gave
        self.returned: dict[str, Value] = {}  # the same where the module computed it
        self.names: dict[str, Value] = {}  # the model's own names
        self.is_paused = self.is_written_out = False
        self._thread = threading.get_ident()
        self.kept_bytes, self.kept_all = 0, True
        self._live: dict[int, tuple[weakref.ref[Tensor], Value]] = {}  # by id of the tensor
        self._sharing: dict[int, list[int]] = {}  # ids of the tensors of a storage
        # path, True for a layer of torch's own, and how many operations came before
        self._stack: list[tuple[str, bool, int]] = []
        self._calls: Counter[str] = Counter()
        self._occurrences: Counter[tuple[str, str, str]] = Counter()
        self._kept: dict[int, list[Value]] = {}  # the values of a storage
        self._fused: list[Value] = []  # results of fused functions: their steps round otherwise
        self._largest: list[tuple[int, int]] = []  # heap of (-bytes, storage)

    # ----------------------------------------------------------------------------------- modules

    @contextmanager
    def watching(self, module: nn.Module) -> Iterator[None]:
        """Records what is computed in the block, and follows which module computes it."""
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            self.leaf(tensor, name, "weight")
        self._stack, handles = [("", _from_torch(module), 0)], []
        for path, child in module.named_modules():
            if path:
                handles.append(child.register_forward_pre_hook(partial(self._enter, path)))
                handles.append(child.register_forward_hook(self._leave, always_call=True))
        try:
            with torch.no_grad(), self:
                yield
        finally:
            for handle in handles:
                handle.remove()
        self._keep_apart()
        for path, variable, name, *_ in self.edits.keys() - self.applied:
            value = ".".join(word for word in (path, variable, name) if word)
            raise UserError(f"The edited pass does not compute {value}, so the edit has no effect.")

    def _keep_apart(self) -> None:
        """Copies what the pass has written into weights, buffers and inputs, which a later pass may
        write again."""
        leaves = {leaf.geometry[0] for leaf in self.leaves}
        writes = (operation for operation in self.operations if operation.written is not None)
        written = leaves & {x.geometry[0] for operation in writes for x in operation.outputs}
        for value in (x for operation in self.operations for x in operation.outputs):
            if value.tensor is not None and value.geometry[0] in written:
                value.tensor = value.tensor.clone()

    def _enter(self, path: str, module: nn.Module, args: Any) -> None:
        if threading.get_ident() != self._thread:  # somebody else's pass of the same model
            return
        self._calls[path] += 1
        again = f":{self._calls[path]}" if self._calls[path] > 1 else ""
        self._stack.append((path + again, _from_torch(module), len(self.operations)))

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        path, _, start = self._stack.pop()
        for first in tensors_of(result)[:1]:
            self.modules[path] = value = self.value(first)
            # else it only hands on what it was given
            if value.operation in self.operations[start:]:
                self.returned[path] = value
            if path in self.stages.passed:
                self._forget(start, value)
            if path == self.stages.final:
                raise Reached

    @property
    def path(self) -> str:
        """The module whose code is under way; a layer of torch's own is a line of its caller's."""
        paths = (path for path, from_torch, _ in reversed(self._stack) if not from_torch)
        return next(paths, self._stack[-1][0] if self._stack else "")

    # ------------------------------------------------------------------------------------ values

    def leaf(self, tensor: Tensor, address: str, kind: str) -> Value:
        """A value that no operation gave."""
        value = Value(tuple(tensor.shape), tensor.dtype, tensor, address=address, kind=kind)
        self.leaves.append(value)
        self._register(tensor, value)
        return value

    def name(self, name: str, tensor: Tensor) -> None:
        """The model's own name for a value."""
        value = self.value(tensor)
        value.is_named = True
        self.names[name] = value

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is recorded meanwhile."""
        self.is_paused, before = True, self.is_paused
        try:
            yield
        finally:
            self.is_paused = before

    def write_out(
        self, function: Callable[..., Tensor], result: Tensor, *args: Any, **kw: Any
    ) -> Tensor:
        """Records ``function(*args, **kw)`` as the steps that gave ``result``: they run on tensors
        without numbers, which are computed when asked for."""
        line = calling_line()
        empty = {id(x): self._empty(self.value(x)) for x in tensors_of((args, kw))}
        args, kw = pytree.tree_map(lambda x: empty.get(id(x), x), (args, kw))
        self.is_written_out = True
        value = self.value(function(*args, **kw))
        self.is_written_out = False
        with self.paused():
            value.tensor = result.detach()
        self._fused.append(value)
        assert value.operation is not None
        value.operation.line = line
        self._register(result, value)
        return self._changed(result, value)

    def imagine(self, name: str, function: Callable[..., Tensor], *values: Value) -> None:
        """Names what ``function`` gives of values: no part of the pass, computed when asked for."""
        self.name(name, function(*map(self._empty, values)))
        operation = self.names[name].operation
        assert operation is not None
        operation.line = Line()

    def _empty(self, value: Value) -> Tensor:
        """A tensor without numbers that stands for a value."""
        with self.paused():
            tensor = torch.empty(value.shape, dtype=value.dtype, device="meta")
        self._live[id(tensor)] = (weakref.ref(tensor), value)
        return tensor

    def returns(self, tensor: Tensor) -> Value:
        """The value of a tensor that the pass returns, which costs nothing to keep."""
        value = self.value(tensor)
        value.tensor = tensor
        return value

    def value(self, tensor: Tensor) -> Value:
        """The value that a tensor holds now."""
        ref, value = self._live.get(id(tensor), (None, None))
        if ref is not None and value is not None and ref() is tensor:
            return value
        return self.leaf(tensor, "", "constant")

    def _register(self, tensor: Tensor, value: Value) -> None:
        strided = tensor.layout == torch.strided
        storage = int(tensor.untyped_storage()._cdata) if strided else 0
        value.geometry = (
            (storage, int(tensor.storage_offset()), tensor.stride()) if strided else (0, 0, ())
        )
        self._live[id(tensor)] = (weakref.ref(tensor), value)
        self._sharing.setdefault(storage, []).append(id(tensor))

    def _sharers(self, tensor: Tensor) -> list[tuple[Tensor, Value]]:
        """The other live tensors that share memory with ``tensor``."""
        storage = self.value(tensor).geometry[0]
        live = (self._live[key] for key in dict.fromkeys(self._sharing[storage]))
        sharers = [(ref(), value) for ref, value in live if value.geometry[0] == storage]
        return [(x, value) for x, value in sharers if x is not None and x is not tensor]

    def _keep(self, value: Value) -> None:
        """Keeps a result, and drops the largest ones where all are more than the bound."""
        assert value.tensor is not None
        memory = value.tensor.untyped_storage()
        if (storage := int(memory._cdata)) not in self._kept:
            size = memory.nbytes()
            self._kept[storage] = []
            self.kept_bytes += size
            heapq.heappush(self._largest, (-size, storage))
        self._kept[storage].append(value)
        while self.kept_bytes > self.keep:
            self.kept_all = False
            size, dropped = heapq.heappop(self._largest)
            self.kept_bytes += size
            for old in self._kept.pop(dropped):
                old.tensor = None

    def _forget(self, start: int, result: Value) -> None:
        """Drops what was computed from operation ``start`` on, but the result and what fused
        functions gave."""
        inside = {x for operation in self.operations[start:] for x in operation.outputs}
        inside -= {result, *self._fused}
        for storage, values in list(self._kept.items()):
            if inside.issuperset(values):
                self.kept_all = False
                for value in self._kept.pop(storage):
                    value.tensor = None
        self._largest = [pair for pair in self._largest if pair[1] in self._kept]
        heapq.heapify(self._largest)
        self.kept_bytes = -sum(size for size, _ in self._largest)

    def _copy_kept(self, target: Tensor) -> None:
        """Copies the numbers that a write into ``target`` changes."""
        memory = target.untyped_storage()
        values = self._kept.pop(int(memory._cdata), [])
        if values:
            self._largest.remove((-memory.nbytes(), int(memory._cdata)))
            heapq.heapify(self._largest)
            self.kept_bytes -= memory.nbytes()
        for value in values:
            assert value.tensor is not None
            value.tensor = value.tensor.clone()
            self._keep(value)
        for value in (*self.leaves, *self._fused):
            if value.tensor is not None and value.geometry[0] == int(memory._cdata):
                value.tensor = value.tensor.detach().clone()

    # -------------------------------------------------------------------------------- operations

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_paused:
            return function(*args, **kwargs)
        if function is F.multi_head_attention_forward:
            with self:  # Python code all the way, so its own operations are recorded
                return MULTI_HEAD(*args, **kwargs)
        if function is F.scaled_dot_product_attention:
            rate = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
            self._check_random("dropout", (None, rate, True), {})
        if function is F.scaled_dot_product_attention and self._changes_attention():
            with self:  # a step of it is to be edited
                return attention(*args, **kwargs)
        if function is F.scaled_dot_product_attention and not self.is_written_out:
            fused: Tensor = function(*args, **kwargs)
            with self:
                return self.write_out(attention, fused, *args, **kwargs)
        target = overwritten(function, args, kwargs)
        if target is not None:
            return self._write(target, function, args, kwargs)
        result = function(*args, **kwargs)
        outputs = tensors_of(result)
        if not outputs:
            return result
        arguments = tensors_of((args, kwargs))
        if any(output is argument for output in outputs for argument in arguments):
            return result
        operation = self._operation(function, args, kwargs, len(outputs))
        edited = [self._result(operation, output) for output in outputs]
        if all(new is old for new, old in zip(edited, outputs, strict=True)):
            return result
        remaining = iter(edited)
        return pytree.tree_map(lambda x: next(remaining) if isinstance(x, Tensor) else x, result)

    def _changes_attention(self) -> bool:
        """True where an edit is of a number inside of fused attention."""
        steps = attention.__code__.co_varnames
        return any(path == self.path and variable in steps for path, variable, *_ in self.edits)

    def _write(self, target: Tensor, function: Any, args: Any, kwargs: Any) -> Any:
        """A call that overwrites ``target``: a new version of its value, and of its sharers'."""
        sharers = self._sharers(target)
        self.value(target)
        self._copy_kept(target)
        is_out = kwargs.get("out") is target  # its numbers before are not read
        operands = {name: x for name, x in kwargs.items() if name != "out" or not is_out}
        operation = self._operation(function, args, operands)
        places = [at for at, x in enumerate(tensors_of((args, operands))) if x is target]
        operation.written = NEW if is_out else places[0]
        result = function(*args, **kwargs)
        edited = self._result(operation, target)
        if edited is not target:
            self._copy_kept(target)
            target.copy_(edited)
            self._register(target, self.value(edited))
        new = self.value(target)
        for alias, value in sharers:
            call = partial(overlay, value.geometry, new.geometry)
            overlaid = self._operation(call, (value, new), step=("overlay", operation.line))
            self._result(overlaid, alias)
        return result

    def _operation(
        self,
        function: Any,
        args: Any,
        kwargs: Any = None,
        count: int = 1,
        step: tuple[str, Line] | None = None,
    ) -> Operation:
        """Records a call; a ``step`` of the recorder's own has a name and the line that it
        follows."""
        name, line = step or (function_name(function), calling_line())
        if step is None:
            self._check_random(name, args, kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs or {}))
        leaves = [self.value(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        at = (self.path, line.variable(0, count), name)
        self._occurrences[at] += 1
        operation = Operation(function, name, leaves, spec, line, (*at, self._occurrences[at]))
        operation.is_written_out = self.is_written_out
        self.operations.append(operation)
        return operation

    @staticmethod
    def _check_random(name: str, args: Any, kwargs: Any) -> None:
        is_dropout = "dropout" in name and (args[2:3] == (True,) or kwargs.get("training") is True)
        rate = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        if name in RANDOM or (is_dropout and rate):
            advice = "call model.eval() first" if is_dropout else "give the module its noise"
            raise UserError(
                f"The pass draws random numbers ({name}), so a second pass would differ; {advice}."
            )

    def _result(self, operation: Operation, tensor: Tensor) -> Tensor:
        """Records a result; gives what an edit makes of it."""
        output = len(operation.outputs)
        # a tensor of its own: the module's lives only as long as the module needs it
        detached = tensor.detach()
        value = Value(tuple(tensor.shape), tensor.dtype, detached, operation, output)
        operation.outputs.append(value)
        self._register(tensor, value)
        if tensor.device.type == "meta":  # its shape is all there is
            value.tensor = None
            return tensor
        if tensor.layout == torch.strided:
            self._keep(value)
        return self._changed(tensor, value)

    def _changed(self, tensor: Tensor, value: Value) -> Tensor:
        """A result after its edit, where it has one."""
        assert value.operation is not None
        edit = self.edits.get(key := (*value.operation.place, value.output))
        if edit is None:
            return tensor
        self.applied.add(key)
        return self.edited(tensor, edit)

    def edited(self, before: Tensor, edit: Edit) -> Tensor:
        """The result of an edit of a value: a step of its own."""
        value = self.value(before)
        with self.paused():
            after = edit(before.clone())
            if not isinstance(after, Tensor):
                raise UserError(f"The edit gives {type(after).__name__}; it must give a tensor.")
            after = after.to(before)
        if after.shape != before.shape:
            raise UserError(
                f"The edit makes {tuple(after.shape)} of {tuple(before.shape)} numbers; it must "
                "keep the shape."
            )
        line = Line() if value.operation is None else value.operation.line
        return self._result(self._operation(edit, (value,), step=("edit", line)), after)


MULTI_HEAD = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {**F.__dict__, "has_torch_function": lambda tensors: False},
    "multi_head_attention_forward",
    F.multi_head_attention_forward.__defaults__,
)
"""PyTorch's own function, without the question whether a mode wants it whole."""
