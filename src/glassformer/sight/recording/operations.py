"""The parts of a recorded pass: values, and the operations that gave them."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

# module path, variable, function, occurrence, number of the result
Key: TypeAlias = tuple[str, str, str, int, int]
Edit: TypeAlias = Callable[[Tensor], Tensor]
Slices: TypeAlias = tuple[int | slice, ...]  # an index of a value
# a function that PyTorch cannot run again, or not in float64
FAILURES = (RuntimeError, TypeError, IndexError, NotImplementedError)
NEW = -1  # what a function overwrites with ``out=`` is none of its inputs
Geometry: TypeAlias = tuple[int, int, tuple[int, ...]]  # storage, offset, stride


@dataclass(eq=False)
class Value:
    """A tensor of the pass at one moment: the result of an operation, a weight, an input or a
    constant.

    ``tensor`` is None where the value is not kept; it is then computed from its operation's inputs.
    ``geometry`` says where its numbers lay in memory.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    tensor: Tensor | None = None
    operation: Operation | None = None
    output: int = 0  # its number among the operation's results
    address: str = ""
    kind: str = "constant"  # of a value without an operation: weight, input, constant
    is_named: bool = False  # the model itself has a name for it
    batch: int = 0  # sides of one row that addresses leave out
    geometry: Geometry = (0, 0, ())

    @property
    def key(self) -> Key | None:
        """The place of the value in any pass of the module; None where no operation gave it."""
        if self.operation is None:
            return None
        return (*self.operation.place, self.output)

    @property
    def is_view(self) -> bool:
        """True where the value only shows numbers of its operation's first input."""
        operation = self.operation
        if operation is None or operation.written is not None or not operation.inputs:
            return False
        if operation.name in ("overlay", "edit"):
            return False
        first = operation.inputs[0]
        return first.dtype == self.dtype and first.geometry[0] == self.geometry[0] != 0


@dataclass(eq=False)
class Operation:
    """One call of a PyTorch function: ``leaves`` are its flattened arguments, a Value for each
    tensor."""

    function: Callable[..., Any]
    name: str
    leaves: list[Any]
    spec: pytree.TreeSpec
    line: Line
    place: tuple[str, str, str, int] = ("", "", "", 0)
    written: int | None = None  # the number of the input that the function overwrites
    outputs: list[Value] = field(default_factory=list)
    is_written_out: bool = False  # a step of a fused function that was computed in one
    origins: list[Tensor] | None = None  # of a function that moves numbers: where each came from

    @property
    def inputs(self) -> list[Value]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Value)]

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by its position or its name; a Value where it is a tensor."""
        args, kwargs = pytree.tree_unflatten(self.leaves, self.spec)
        return args[position] if len(args) > position else kwargs.get(name, default)

    def run(self, tensors: Sequence[Tensor], exact: bool = False) -> list[Tensor]:
        """The results of the function with other tensors in its inputs' places, which stay as they
        are; ``exact`` computes in float64."""
        remaining = iter(tensors)
        leaves = [next(remaining) if isinstance(leaf, Value) else leaf for leaf in self.leaves]
        target: Tensor | None = None
        if self.written is not None and self.written != NEW:
            places = [at for at, leaf in enumerate(self.leaves) if isinstance(leaf, Value)]
            target = leaves[places[self.written]] = tensors[self.written].clone()
        for at, leaf in enumerate(leaves):
            if exact and isinstance(leaf, torch.dtype) and leaf.is_floating_point:
                leaves[at] = torch.float64
            elif isinstance(leaf, torch.device) and leaf.type == "meta":
                leaves[at] = tensors[0].device if tensors else torch.device("cpu")
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        result = self.function(*args, **kwargs)
        return tensors_of(result) if target is None else [target]


def tensors_of(structure: Any) -> list[Tensor]:
    """The tensors of a nested structure, in order."""
    return [leaf for leaf in pytree.tree_leaves(structure) if isinstance(leaf, Tensor)]


OPERATORS = {"truediv": "div", "itruediv": "div", "idiv": "div", "rtruediv": "rdiv"}
OPERATORS |= {"iadd": "add", "radd": "add", "isub": "sub", "imul": "mul", "rmul": "mul"}
OPERATORS |= {"floordiv": "floor_divide", "mod": "remainder", "invert": "logical_not"}
OPERATORS |= {"multiply": "mul", "subtract": "sub", "divide": "div", "negative": "neg"}
OPERATORS |= {"ipow": "pow", "iand": "and", "ior": "or"}


def function_name(function: Callable[..., Any]) -> str:
    """The word for a function: ``add`` for ``torch.add``, ``x + y`` and ``x.add_``."""
    name = str(getattr(function, "__name__", type(function).__name__))
    if name == "__get__":  # a property such as x.T
        name = str(getattr(getattr(function, "__self__", None), "__name__", name))
    return OPERATORS.get(name.strip("_"), name.strip("_"))


TORCH = str(Path(torch.__file__).parent)
HERE = str(Path(__file__).parent)
# code of torch's and of this folder that reads as a model's
READ = (f"{TORCH}/nn/modules/transformer.py", f"{HERE}/written_out.py")
READ_FUNCTIONS = ("multi_head_attention_forward",)


@dataclass(frozen=True)
class Line:
    """A line of a source file, and the variables that its statement assigns to."""

    file: str = ""
    number: int = 0
    variables: tuple[str, ...] = ()

    def __str__(self) -> str:
        """``modeling_llama.py:243``; inside this package with its folder."""
        _, package, inside = self.file.rpartition("/glassformer/")
        name = inside if package else self.file.rpartition("/")[2]
        return f"{name}:{self.number}" if name else ""

    def variable(self, output: int, count: int) -> str:
        """The variable that result number ``output`` of ``count`` goes to, "" where none does."""
        if len(self.variables) == 1:
            return self.variables[0]
        return self.variables[output] if count == len(self.variables) else ""


def calling_line() -> Line:
    """The innermost line of code under way that is neither PyTorch's nor the recorder's; of a module
    of PyTorch itself its own."""
    frame: FrameType | None = sys._getframe(1)
    torch_line, is_recorder = Line(), True
    while frame is not None:
        code, file = frame.f_code, frame.f_code.co_filename
        is_read = file in READ or code.co_name in READ_FUNCTIONS
        if is_read or not file.startswith((TORCH, HERE, "<frozen")):
            return _line(frame)
        if file.startswith(HERE):
            if not is_recorder:  # who called the trace says nothing about the module
                break
        else:
            is_recorder = False
            if not torch_line.file and file.startswith(f"{TORCH}/nn/"):
                torch_line = _line(frame)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return torch_line


def _line(frame: FrameType) -> Line:
    file, number = frame.f_code.co_filename, frame.f_lineno
    return Line(file, number, _assignments(file).get(number, ()))


@functools.cache
def _assignments(file: str) -> dict[int, tuple[str, ...]]:
    """The assigned variables by line; of nested statements the innermost."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return {}
    names: dict[int, tuple[str, ...]] = {}
    for node in ast.walk(tree):  # outer statements first, so that inner ones stay
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            variables = _variables(target)
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                names[number] = variables
    return names


def _variables(target: ast.expr) -> tuple[str, ...]:
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, ast.Attribute):
        return (target.attr,)
    if isinstance(target, ast.Subscript | ast.Starred):
        return _variables(target.value)
    if isinstance(target, ast.Tuple | ast.List):
        return tuple("".join(_variables(element)[:1]) for element in target.elts)
    return ()
