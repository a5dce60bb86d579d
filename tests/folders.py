"""Files of a test: JSON read, written and changed, texts to learn from, all below a folder."""

from __future__ import annotations

import json


def snapshot(folder):
    """Every file below a folder with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def edit_json(path, **changes):
    """Write a JSON file anew with other entries, None for one that goes; return what it was."""
    raw = json.loads(path.read_text())
    entries = {name: value for name, value in (raw | changes).items() if value is not None}
    path.write_text(json.dumps(entries))
    return raw


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path, value):
    path.write_text(json.dumps(value), encoding="utf-8")


def read_rows(path):
    """The lines of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def squares(count):
    """A text to learn from, a line a number."""
    return "".join(f"{i} times {i} is {i * i}.\n" for i in range(count))


def sums(count):
    """A text to learn from, a line a sum."""
    return "".join(f"{i} and {i + 1} make {2 * i + 1}.\n" for i in range(count))
