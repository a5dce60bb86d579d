"""What a learner has done: a plain file in the folder of their exercises."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from .. import files
from ..errors import UserError, note
from .exercise import Exercise

FILE = "glassformer-learn.json"
NEW = "new"


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """What the folder's file says of each exercise: state (started, done), file, checks, hints;
    UserError if broken."""
    path = folder / FILE
    if not path.exists():
        return {}
    told = files.read_json(path, "restore it, or delete it to begin anew")
    if not all(isinstance(one, dict) for one in told.values()):
        raise UserError(f"{path} is not a record of exercises; delete it to begin anew.")
    return told


def state(exercise: Exercise, kept: dict[str, dict[str, Any]]) -> str:
    """new, started or done."""
    return str(kept.get(exercise.name, {}).get("state", NEW))


def keep(folder: Path, name: str, **told: Any) -> None:
    """Add to what is said of an exercise; a folder that cannot be written is said on standard
    error, no more."""
    try:
        kept = read(folder)
        today = datetime.date.today().isoformat()
        kept[name] = {**kept.get(name, {}), **told, "changed": today}
        files.write(folder / FILE, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    except (UserError, OSError) as error:
        note(f"What is done could not be kept: {error}")
