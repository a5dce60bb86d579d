"""Models that are not ours: from a Python file of the user's own, or by the library ``transformers``."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...core.errors import UserError
from .module_trace import KEEP, ModuleTrace


def trace_file(name: str, text: str, keep: int = KEEP) -> ModuleTrace:
    """A pass of the model that ``FILE.py:FUNCTION`` makes.

    The function returns a module, which then reads ``text`` as token ids ("5 3 8"); or a module and
    a function that makes the module's arguments of the text: a tensor, a tuple or a dict.
    """
    path, _, function = name.partition(":")
    if not function or not path.endswith(".py") or not Path(path).is_file():
        raise UserError(
            f'"{name}" is no model file; give FILE.py:FUNCTION, a file that exists and a function '
            "in it that returns the module."
        )
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    if not callable(make := getattr(code, function, None)):
        raise UserError(f'{path} has no function "{function}".')
    result = make()
    module, encode = result if isinstance(result, tuple) else (result, _ids)
    if not isinstance(module, nn.Module):
        raise UserError(
            f"{name} returns {type(module).__name__}; it must return a torch.nn.Module."
        )
    return _pass(module.eval(), encode(text), keep)


def _ids(text: str) -> torch.Tensor:
    numbers = re.split(r"[\s,]+", text.strip())
    if not all(number.isdigit() for number in numbers):
        raise UserError(
            f'"{text}" is not a row of token ids such as "5 3 8"; or let the function return the '
            "module and a function that makes its arguments of a text."
        )
    return torch.tensor([[int(number) for number in numbers]])


def _pass(module: nn.Module, inputs: Any, keep: int) -> ModuleTrace:
    try:
        if isinstance(inputs, dict):
            return ModuleTrace(module, (), inputs, keep)
        return ModuleTrace(module, inputs if isinstance(inputs, tuple) else (inputs,), {}, keep)
    except UserError:
        raise
    except Exception as error:
        name = type(module).__name__
        raise UserError(
            f"The code of {name} fails on this text: {type(error).__name__}: {error}"
        ) from None


def trace_transformers(folder: str, text: str, keep: int = KEEP) -> ModuleTrace:
    """A pass of the model in a folder, by the code that ``transformers`` has for it."""
    try:
        import transformers
    except ImportError:
        raise UserError(
            "--with-transformers needs the library: pip install transformers."
        ) from None
    path = Path(folder).expanduser() / "config.json"
    if not path.is_file():
        raise UserError(f"{folder} holds no config.json; give the folder of a checkpoint.")
    names = json.loads(path.read_text()).get("architectures") or [""]
    kind: Callable[..., Any] | None = getattr(transformers, names[0], None) if names[0] else None
    if kind is None:
        raise UserError(
            f'transformers {transformers.__version__} has no architecture "{names[0]}", which '
            f"{path} names."
        )
    load: Any = kind.from_pretrained  # type: ignore[attr-defined]
    module = load(folder, local_files_only=True, trust_remote_code=False).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return _pass(module, dict(tokenizer(text, return_tensors="pt")), keep)


def trace(model: nn.Module, *args: Any, keep: int = KEEP, **kwargs: Any) -> Any:
    """One forward pass in which every number has an address and opens to its arithmetic.

    ``trace(model, tokenizer, text)`` of a model of ours or of ``transformers``;
    ``trace(module, *args, **kwargs)`` of any other module, called with these arguments. ``keep``
    bounds the bytes of recorded values. Raises UserError for what cannot be opened.
    """
    from ...core.nn import Model
    from . import trace as ours

    if isinstance(model, Model):
        return ours.trace(model, *args, **{**kwargs, "keep": keep})
    if len(args) == 2 and isinstance(args[1], str) and callable(args[0]):
        return ModuleTrace(model, (), {**args[0](args[1], return_tensors="pt"), **kwargs}, keep)
    return ModuleTrace(model, args, kwargs, keep)
