"""A tape of a packed row, which shows each text its own columns alone.

N tokens of several texts in the row, H heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..core.nn.hooks import Tape

# values (1, H, N, ...), the last two of PyTorch's own attention; all others of a row are (1, N, ...)
HEADS = ("q", "k", "v", "z", "scores", "pattern")


class PackedTape(Tape):
    """The tapes of some texts of a row, each shown its own columns alone; nobody else's bits
    change.

    ``tapes`` are the columns and the tape of each text that is watched in the pass under way,
    ``answers`` the rows of logits that are its own: all of its columns where the tape watches them.
    """

    def __init__(
        self,
        tapes: Mapping[int, tuple[tuple[int, int], Tape]],
        answers: Mapping[int, tuple[int, int]],
    ) -> None:
        super().__init__()
        self.tapes = tapes
        self.answers = answers
        # by text: what its edits raised, which are not asked any more
        self.errors: dict[int, Exception] = {}

    def start_pass(self, pos: Tensor, document_ids: Tensor | None) -> None:
        for (first, end), tape in self.tapes.values():
            tape.start_pass(pos[:, first:end], None)

    def watches(self, path: str) -> bool:
        return any(tape.watches(path) for _, tape in self.tapes.values())

    def changes(self, path: str) -> bool:
        return any(tape.changes(path) for _, tape in self.tapes.values())

    def of_text(self, text: int, tape: Tape, path: str, value: Tensor) -> Tensor:
        """One text's value as its tape has it; an edit that fails is of that text alone."""
        if text in self.errors:
            return value
        try:
            return tape.pass_through(path, value)
        except Exception as error:
            self.errors[text] = error
            return value

    def look(self, text: int, tape: Tape, path: str, name: str, x: Tensor) -> Tensor:
        """One text's value inside of the attention at ``path``."""
        return self.of_text(text, tape, f"{path}.{name}", x)

    def pass_through(self, path: str, x: Tensor) -> Tensor:
        """x (1, N, ...), or (1, H, N, D) of an attention's heads, where a text's edits have changed
        its own columns."""
        if path == "logits":
            for text, (_, tape) in self.tapes.items():
                if tape.watches(path):  # then all its columns were asked for
                    first, end = self.answers[text]
                    changed = self.of_text(text, tape, path, x[:, first:end])
                    if tape.changes(path):
                        x = x.clone()
                        x[:, first:end] = changed
            return x
        dim = 2 if path.rpartition(".")[2] in HEADS else 1
        for text, ((first, end), tape) in self.tapes.items():
            if tape.watches(path):
                columns = dim, first, end - first
                value = x.narrow(*columns)
                changed = self.of_text(text, tape, path, value)
                if changed is not value:
                    x = x.clone()
                    x.narrow(*columns).copy_(changed)
        return x
