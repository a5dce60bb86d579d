"""A user's own Python file: run once, so that what it adds to the vocabulary is known."""

from __future__ import annotations

import sys
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from ..core.errors import UserError, need

_USED: set[Path] = set()


class SourceLoader(SourceFileLoader):
    """Compiles a Python file anew: saved bytecode stays valid where an edit keeps second and size."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def load_module(path: str | Path, name: str) -> ModuleType:
    """Runs a file as a module."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(name, path, loader=SourceLoader(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # annotations are looked up there
    spec.loader.exec_module(module)
    return module


def use(path: str | Path) -> None:
    """Runs a Python file of your own, once, so that what it registers is known.

    Only ever a file that a person names, never one that a checkpoint or a run file names.

    Args:
        path: The file, which calls ``member`` and ``builds`` (docs/extending.md).

    Raises:
        UserError: The file cannot be read or fails.

    Example:
        >>> glassformer.use("mixer.py")
    """
    file = Path(path).expanduser()
    if not file.is_file():  # a link to itself, too, which cannot be resolved
        raise UserError(f"{path} is not a file; name a Python file that defines parts of your own.")
    file = file.resolve()
    if file in _USED:
        return
    name = f"glassformer_used_{len(_USED)}_{file.stem}"
    need(file.suffix == ".py", f"{path} is not a Python file; its name must end in .py.")
    try:
        load_module(file, name)
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, UserError):
            raise
        steps = [
            step.lineno
            for step in traceback.extract_tb(error.__traceback__)
            if step.filename == str(file)
        ]
        line = steps[-1] if steps else getattr(error, "lineno", None)
        message = " ".join(str(error).split())[:200]
        raise UserError(
            f"{path}, line {line}: {type(error).__name__}: {message}; fix it."
        ) from error
    _USED.add(file)
