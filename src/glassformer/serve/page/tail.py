"""Incremental reader of a JSON-lines log as numeric columns, downsampled in buckets."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from array import array
from itertools import pairwise
from pathlib import Path

from ...core import files
from ...core.files import JsonObject

MAX_STEP = 1 << 53  # all whole numbers below are floats, too
PIECE_BYTES = 1 << 20  # bytes of a log that are in memory at once
LAST_BYTES = 512  # bytes before the offset, by which a replaced file is noticed


def record_of(line: bytes) -> JsonObject | None:
    """The object of a step in a line; None where there is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or type(record.get("step")) is not int:
        return None
    return record if abs(record["step"]) < MAX_STEP else None


class LogTail:
    """Columns of numbers of a JSON-lines log; ``rows`` counts the lines read, ``resets`` the times
    the file was replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.resets = 0
        self._reset()

    def _reset(self) -> None:
        self.offset = 0
        self.last_bytes = b""
        self.partial_line = b""
        self.columns: dict[str, array[float]] = {}
        self.rows = 0

    def update(self) -> None:
        """Reads the appended lines; starts over where the file was replaced or truncated."""
        with contextlib.suppress(OSError), files.open_regular(self.path) as log:
            log.seek(self.offset - len(self.last_bytes))
            # not by the inode, which a new file often takes over from a removed one
            if log.read(len(self.last_bytes)) != self.last_bytes:
                self._reset()
                self.resets += 1
                log.seek(0)
            while data := log.read(PIECE_BYTES):
                self.offset += len(data)
                self.last_bytes = (self.last_bytes + data)[-LAST_BYTES:]
                *lines, rest = (self.partial_line + data).split(b"\n")
                self.partial_line = rest[:PIECE_BYTES]  # the last line may be half written
                for line in lines:
                    self._add(line)

    def _add(self, line: bytes) -> None:
        record = record_of(line)
        if record is None:
            return
        numbers = {"step": float(record["step"])}  # first: never beyond the hundredth column
        for name, value in record.items():
            with contextlib.suppress(OverflowError):  # no float is as large
                if type(value) in (int, float):
                    numbers[name] = float(value)
        for name in [*dict.fromkeys((*self.columns, *numbers))][:100]:
            if name not in self.columns:
                self.columns[name] = array("d", [math.nan]) * self.rows
            self.columns[name].append(numbers.get(name, math.nan))
        self.rows += 1

    def series(self, since: int, max_rows: int) -> JsonObject:
        """The rows from ``since`` on, in buckets of a power of two of them where they are more than
        ``most``.

        A bucket of rows says the least, greatest and mean number of each column and its first and
        last step; buckets begin at multiples of their size, so a point never moves and a spike
        never vanishes.
        """
        with self.lock:
            self.update()
            reset = since > self.rows
            since = 0 if reset else since
            size = 1
            while (self.rows - since) / size > max_rows:
                size *= 2
            later = range((since // size + 1) * size, self.rows, size)
            edges = [*dict.fromkeys([since, *later, self.rows])]
            spans = [*pairwise(edges)]
            steps = self.columns.get("step", array("d"))
            buckets = {
                name: [_bucket(column[low:high]) for low, high in spans]
                for name, column in self.columns.items()
                if name != "step"
            }
            return {
                "cursor": self.rows,
                "since": since,
                "reset": reset,
                "turn": self.resets,
                "bucket": size,
                "first": [int(steps[low]) for low, _ in spans],
                "last": [int(steps[high - 1]) for _, high in spans],
                "columns": {
                    name: {
                        key: [bucket[position] for bucket in rows]
                        for position, key in enumerate(("min", "max", "mean"))
                    }
                    for name, rows in buckets.items()
                },
            }


def _bucket(column: array[float]) -> tuple[float | None, float | None, float | None]:
    finite = [value for value in column if math.isfinite(value)]
    if not finite:
        return None, None, None
    mean = math.fsum(value / len(finite) for value in finite)  # their sum may be no float
    return min(finite), max(finite), mean
