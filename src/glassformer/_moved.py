"""Names of modules as they were, found where they are now, with a warning: ``glassformer.text`` and
others."""

from __future__ import annotations

import importlib
from types import ModuleType

from .errors import old_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOVED = {
    "config.ends": "config.embed_head",
    "config.rnn": "config.recurrence",
    "lengths": "config.context_length",
    "nn.ends": "nn.embed_head",
    "nn.recurrent": "nn.recurrence",
    "nn.stack": "nn.block",
    "nn.tape": "nn.flow",
    "run": "config.run",
    "serial": "config.serial",
    "store": "checkpoints.store",
    "text": "tokenizer",
    "training.checkpoint": "training.run_checkpoints",
    "training.data": "training.batches",
    "training.objective": "training.loss",
}
"""The old module and the new one, below ``glassformer``."""
ALSO = {
    "config.ends": ("config.init", "config.norm", "config.pool"),
    "run": ("config.run_file",),
    "text": ("data",),
    "training.objective": ("training.objectives",),
}
"""What else the old module held."""


class Finder:
    """Finds old modules at import (``from glassformer.serial import change``), as ``sys.meta_path``
    asks."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        """A spec that loads the new module under the old name; None for every other name."""
        package, _, module = name.partition(".")
        if package != __package__ or module not in MOVED:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, Finder)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: Any) -> ModuleType:
        """A module that looks its names up in the new one, and says where that is."""
        old = spec.name.partition(".")[2]
        module = ModuleType(spec.name)
        homes = [MOVED[old], *ALSO.get(old, ())]
        told = " and ".join(f"glassformer.{home}" for home in homes)
        old_name(f"glassformer.{old}", told, depth=3)

        def look_up(name: str) -> Any:
            for home in homes:
                found = importlib.import_module(f".{home}", __package__)
                if not name.startswith("__") and hasattr(found, name):
                    return getattr(found, name)
            raise AttributeError(
                f"module {spec.name!r} has no attribute {name!r}; it is {told} now."
            )

        module.__dict__["__getattr__"] = look_up
        return module

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Nothing to run."""
