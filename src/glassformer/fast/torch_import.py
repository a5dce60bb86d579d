"""Torch's import without Python's garbage collector, which takes a third of its time.

The import makes a great many objects, and all of them stay: they are looked through again and again,
and then at each full collection of the process, unless they are frozen.
"""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False  # as in typing, whose import --help does without
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class TorchFinder:
    """Finds torch, once, for ``sys.meta_path``."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        from importlib.machinery import PathFinder

        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_uncollected(module: ModuleType) -> None:
                gc.disable()
                try:
                    execute(module)
                finally:
                    gc.freeze()
                    gc.enable()

            spec.loader.exec_module = execute_uncollected  # type: ignore[method-assign]
        return spec
