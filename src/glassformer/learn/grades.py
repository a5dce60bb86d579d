"""A class's verdicts as points, in the tables that gradebooks read."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from .checking import Verdict

Points: TypeAlias = Mapping[str, float]
"""Points by exercise."""
Row: TypeAlias = Sequence[str | float]


NBGRADER = (
    *("assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email"),
    *("raw_score", "late_submission_penalty", "score", "max_score"),
)


def learner_points(verdicts: Iterable[tuple[str, Verdict]], points: Points) -> dict[str, Points]:
    """Computes each learner's points: all of an exercise's where one of their files passes it, else
    none.

    Args:
        verdicts: The learner and the verdict on each file, as ``class_folder`` gives them.
        points: What each exercise is worth.

    Returns:
        For each learner the points of the exercises they handed in.
    """
    table: dict[str, dict[str, float]] = {}
    for learner, verdict in verdicts:
        scores = table.setdefault(learner, {})
        if verdict.exercise in points:
            score = points[verdict.exercise] * (verdict.state == "passed")
            scores[verdict.exercise] = max(score, scores.get(verdict.exercise, 0.0))
    return dict(sorted(table.items()))


def _plain(table: Mapping[str, Points], points: Points) -> list[Row]:
    """A row for each learner, a column for each exercise; an exercise without a file is empty."""
    rows: list[Row] = [
        ("learner", *points, "total"),
        ("(possible)", *points.values(), sum(points.values())),
    ]
    for learner, scores in table.items():
        rows.append((learner, *(scores.get(name, "") for name in points), sum(scores.values())))
    return rows


def _canvas(table: Mapping[str, Points], points: Points) -> list[Row]:
    """Canvas's gradebook import: the learner's folder is the login, the second row the possible
    points."""
    heading = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
    rows: list[Row] = [(*heading, *points), ("    Points Possible", *[""] * 4, *points.values())]
    for learner, scores in table.items():
        rows.append((learner, "", "", learner, "", *(scores.get(name, "") for name in points)))
    return rows


def _nbgrader(table: Mapping[str, Points], points: Points) -> list[Row]:
    """The columns of ``nbgrader export``: a row for each learner and exercise."""
    rows: list[Row] = [NBGRADER]
    for name, possible in points.items():
        for learner, scores in table.items():
            score = scores.get(name, 0.0)
            rows.append((name, "", "", learner, "", "", "", score, 0.0, score, possible))
    return rows


LAYOUTS: dict[str, Callable[[Mapping[str, Points], Points], list[Row]]] = {
    "csv": _plain,
    "canvas": _canvas,
    "nbgrader": _nbgrader,
}


def grades_file(table: Mapping[str, Points], points: Points, layout: str) -> str:
    """Writes the points as comma-separated values.

    Args:
        table: Each learner's points by exercise.
        points: What each exercise is worth, in the order of the columns.
        layout: One of ``LAYOUTS``.

    Returns:
        The text of the file. A cell that a spreadsheet would take for a formula begins with an
        apostrophe, since a learner names their folder.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in LAYOUTS[layout](table, points):
        writer.writerow([_cell(cell) for cell in row])
    return text.getvalue()


def _cell(value: str | float) -> str:
    if isinstance(value, float | int):
        return f"{value:g}"
    if value.startswith(("=", "+", "-", "@")):
        return f"'{value}"
    return value
