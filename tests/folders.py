"""Folders of a test: what is in them, and JSON files changed by hand."""

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
