"""The tape: which named values of a forward pass to record, and which to edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from torch import Tensor

Edit = Callable[[str, Tensor], Tensor]


class Tape:
    """Records what matches ``patterns`` and applies ``edits`` on the way.

    Patterns are shell wildcards over paths such as ``decoder.blocks.3.attn.pattern``; an edit is a
    function (path, value) -> value for every path its pattern matches. ``graph=True`` keeps the
    records attached to autograd. Recording changes no bit of what the model computes.
    """

    def __init__(self, *patterns: str, edits: Mapping[str, Edit] | None = None, graph: bool = False) -> None:
        self.patterns = patterns
        self.edits = dict(edits or {})
        self.graph = graph
        self.records: dict[str, Tensor] = {}
        self._watched: dict[str, bool] = {}

    def __getitem__(self, path: str) -> Tensor:
        return self.records[path]

    def watches(self, path: str) -> bool:
        """Whether this path is recorded or edited."""
        if path not in self._watched:
            patterns = (*self.patterns, *self.edits)
            self._watched[path] = any(fnmatchcase(path, pattern) for pattern in patterns)
        return self._watched[path]

    def changes(self, path: str) -> bool:
        """Whether this path is edited."""
        return any(fnmatchcase(path, pattern) for pattern in self.edits)

    def pass_through(self, path: str, x: Tensor) -> Tensor:
        """``x``, edited and recorded as asked; the very same tensor where no edit matches."""
        if not self.watches(path):
            return x
        x = self.edit(path, x)
        self.record(path, x)
        return x

    def edit(self, path: str, x: Tensor) -> Tensor:
        """``x`` as the edits that match ``path`` make it."""
        for pattern, edit in self.edits.items():
            if fnmatchcase(path, pattern):
                x = edit(path, x)
        return x

    def record(self, path: str, x: Tensor) -> None:
        """Keep ``x`` where ``path`` is asked for."""
        if any(fnmatchcase(path, pattern) for pattern in self.patterns):
            self.records[path] = x if self.graph else x.detach()
