"""A log of JSON lines that grows, as columns of numbers: each line is read once, and few points
tell of many."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from array import array
from pathlib import Path
from typing import Any


class Tail:
    """A log of JSON lines as columns of numbers; ``rows`` were read so far, ``turn`` counts how
    often it began anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.turn = 0
        self._begin()

    def _begin(self) -> None:
        self.offset, self.inode, self.rest = 0, 0, b""
        self.columns: dict[str, array[float]] = {}
        self.rows = 0

    def read(self) -> None:
        """Take what was appended; from the start where the file is another one or has become
        shorter."""
        try:
            told = self.path.stat()
        except OSError:
            return
        if self.inode and (told.st_ino != self.inode or told.st_size < self.offset):
            self._begin()
            self.turn += 1
        self.inode = told.st_ino
        if told.st_size == self.offset:
            return
        with contextlib.suppress(OSError), self.path.open("rb") as opened:
            opened.seek(self.offset)
            data = opened.read()
            self.offset += len(data)
            *lines, self.rest = (self.rest + data).split(b"\n")  # the last line may be half written
            for line in lines:
                self._add(line)

    def _add(self, line: bytes) -> None:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(found, dict) or not isinstance(found.get("step"), int):
            return
        for name, value in found.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                if name not in self.columns:
                    if len(self.columns) >= 100:
                        continue
                    self.columns[name] = array("d", [math.nan]) * self.rows
                self.columns[name].append(float(value))
        self.rows += 1
        for column in self.columns.values():
            if len(column) < self.rows:
                column.append(math.nan)

    def series(self, since: int, most: int) -> dict[str, Any]:
        """The rows from ``since`` on, in buckets of a power of two of them where they are more than
        ``most``.

        A bucket of rows says the least, greatest and mean number of each column and its first and
        last step; buckets begin at multiples of their size, so a point never moves and a spike
        never vanishes.
        """
        with self.lock:
            self.read()
            reset = since > self.rows
            since = 0 if reset else since
            size = 1
            while (self.rows - since) / size > most:
                size *= 2
            edges = sorted(
                {since, *range(since // size * size, self.rows, size)} - set(range(since))
            )
            spans = (
                list(zip(edges, [*edges[1:], self.rows], strict=True)) if self.rows > since else []
            )
            steps = self.columns.get("step", array("d"))
            told: dict[str, Any] = {}
            for name, column in self.columns.items():
                if name != "step":
                    told[name] = [_bucket(column[low:high]) for low, high in spans]
            return {
                "cursor": self.rows,
                "since": since,
                "reset": reset,
                "turn": self.turn,
                "bucket": size,
                "first": [int(steps[low]) for low, _ in spans],
                "last": [int(steps[high - 1]) for _, high in spans],
                "columns": {
                    name: {
                        key: [one[at] for one in rows]
                        for at, key in enumerate(("min", "max", "mean"))
                    }
                    for name, rows in told.items()
                },
            }


def _bucket(column: array[float]) -> tuple[float | None, float | None, float | None]:
    some = [value for value in column if math.isfinite(value)]
    if not some:
        return None, None, None
    return min(some), max(some), math.fsum(some) / len(some)
