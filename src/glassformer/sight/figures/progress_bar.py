"""The progress of a long work: a bar in a terminal, a bar in a notebook (without widgets),
nothing elsewhere."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from html import escape
from types import TracebackType
from typing import Any, TypeAlias

Report: TypeAlias = Callable[[int, int], None] | bool
"""True for a bar, False for none, or a function that is called with (done, of all) instead."""
OFTEN = 0.1  # seconds between two pictures of it


def in_notebook() -> bool:
    """True in a kernel of Jupyter, VS Code or Colab, which shows output below the cell."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class Progress:
    """A bar for ``what``, of ``total`` steps: call it with (done, of all) or (done, of all, what to
    say beside it).

        with Progress("patching") as report:
            report(3, 40)

    ``show`` may be False, for none, or a function that is called instead.
    """

    def __init__(self, what: str, show: Callable[..., None] | bool = True) -> None:
        self.what = what
        self.show = show
        self.began = self.last = time.monotonic()
        self.board: Any = None  # rich's, in a terminal; the display's handle in a notebook
        self.task: Any = None
        self.notebook = show is True and in_notebook()
        self.said = (0, 0, "")

    def __enter__(self) -> Progress:
        if (
            self.show is True
            and not self.notebook
            and sys.stderr is not None
            and sys.stderr.isatty()
        ):
            from rich.console import Console
            from rich.progress import Progress as Bars

            self.board = Bars(console=Console(stderr=True), transient=True)
            self.board.start()
            self.task = self.board.add_task(self.what, total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, *_: TracebackType | BaseException | None
    ) -> None:
        if self.notebook and self.board is not None:
            self._display(ended="stopped" if kind else "done")
        elif self.board is not None:
            self.board.stop()

    def __call__(self, done: int, total: int, said: str = "") -> None:
        """``done`` of ``total``; 0 where nobody knows how many there will be."""
        if callable(self.show):
            self.show(done, total)
            return
        self.said = (done, total, said)
        if self.notebook:
            now = time.monotonic()
            if self.board is None or now - self.last >= OFTEN:
                self.last = now
                self._display()
        elif self.board is not None:
            description = f"{self.what} {said}" if said else self.what
            self.board.update(
                self.task, completed=done, total=total or None, description=description
            )

    def _display(self, ended: str = "") -> None:
        """Show it below the cell, in the place where it was shown before."""
        tools: Any = importlib.import_module("IPython.display")  # a notebook has it
        page = tools.HTML(self.html(ended))
        if self.board is None:
            self.board = tools.display(page, display_id=True)
        else:
            self.board.update(page)

    def html(self, ended: str = "") -> str:
        """The bar, and in words how far it is and how long it takes."""
        done, total, note = self.said
        spent = time.monotonic() - self.began
        parts = [f"{self.what}: {done:,} of {total:,}" if total else f"{self.what}: {done:,}"]
        parts.append(f"{spent:.1f} s{' (stopped)' * (ended == 'stopped')}")
        if done and total and not ended:
            parts.append(f"{spent / done * (total - done):.0f} s left")
        words = ", ".join([*parts, *filter(None, [note])])
        limits = f'value="{done}" max="{total}" ' if total else ""
        bar = f'<progress {limits}style="width:220px;vertical-align:middle"></progress> '
        return f'<div style="font-family:monospace;font-size:12px">{bar}{escape(words)}</div>'
