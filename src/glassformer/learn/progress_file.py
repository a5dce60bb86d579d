"""A learner's progress: a plain file in the folder of their exercises."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from ..core import files
from ..core.errors import UserError, note
from .exercise import Exercise

FILE = "glassformer-learn.json"
NEW = "new"


def read_progress(folder: Path) -> dict[str, dict[str, Any]]:
    """Reads the folder's record of each exercise: state (started, done), file, checks, hints;
    UserError if broken."""
    path = folder / FILE
    if not path.exists():
        return {}
    records = files.read_json(path, "restore it, or delete it to begin anew")
    if not all(isinstance(record, dict) for record in records.values()):
        raise UserError(f"{path} is not a record of exercises; delete it to begin anew.")
    return records


def state(exercise: Exercise, records: dict[str, dict[str, Any]]) -> str:
    """new, started or done."""
    return str(records.get(exercise.name, {}).get("state", NEW))


def save_progress(folder: Path, name: str, **fields: Any) -> None:
    """Add to what is said of an exercise; UserError where the folder cannot be written."""
    records = read_progress(folder)
    today = datetime.date.today().isoformat()
    records[name] = {**records.get(name, {}), **fields, "changed": today}
    files.write(folder / FILE, json.dumps(records, indent=1, ensure_ascii=False) + "\n")


def update_progress(folder: Path, name: str, **fields: Any) -> None:
    """``save_progress``; a folder that cannot be written is said on standard error, no more."""
    try:
        save_progress(folder, name, **fields)
    except (UserError, OSError) as error:
        note(f"Your progress could not be saved: {error}")
