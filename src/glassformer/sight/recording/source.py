"""The author's words: the line of Python that called a function, and the variable that it fills."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

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
