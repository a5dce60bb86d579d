"""``glassformer learn``: exercises that check themselves."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UserError, need, note
from .common import count_noun, progress_counter, text_table
from .parsing import CommandOutput
from .sources import read_prompts

EXAMPLES = (
    "glassformer learn",
    "glassformer learn start causal-mask",
    "glassformer learn check causal_mask.py",
    "glassformer learn hint causal-mask",
    "glassformer learn check --all CLASS --grades grades.csv --gradebook canvas",
    "glassformer learn solution causal-mask",
    "glassformer learn sheets STUDENTS.txt --seed 7 --out lab1",
)
USAGE = """glassformer learn [--out FOLDER] [--exercises FOLDER] [--json]
       glassformer learn start NAME [--out FOLDER] [--notebook]
       glassformer learn check [FILE|NAME] [--seed S] [--seconds T] [--json]
       glassformer learn check --all CLASS [--grades FILE [--gradebook LAYOUT]] [--json]
       glassformer learn hint NAME [--all-hints]
       glassformer learn solution NAME
       glassformer learn sheets STUDENTS [--problems NAMES] [--seed S] [--out FOLDER]"""
EPILOG = (
    "A check runs your code in separate processes with limits of time and memory. It is no sandbox."
)
MAX_SECONDS = 86_400


@dataclass
class LearnOptions:
    """The folder of a learner's files, and the exercises.

    out FOLDER: the folder of your files and your progress (here)
    exercises FOLDER: a folder with a teacher's extra exercises (docs/learn.md)
    """

    _: KW_ONLY
    out: Path = Path()
    exercises: Path | None = None


def run(options: LearnOptions) -> CommandOutput:
    """Lists all exercises with their states."""
    from ..learn import progress_file
    from ..learn.exercise import catalogue

    record = progress_file.read_progress(options.out)
    entries: list[dict[str, Any]] = [
        {
            "name": exercise.name,
            "title": exercise.title,
            "state": progress_file.state(exercise, record),
            "road": exercise.road,
            "page": exercise.page,
        }
        for exercise in catalogue(options.exercises)
    ]
    rows = [(e["name"], e["state"], e["title"], f"{e['road']:g} {e['page']}") for e in entries]
    todo = [entry["name"] for entry in entries if entry["state"] != "done"]
    ending = f"{len(entries) - len(todo)} of {len(entries)} done."
    if todo:
        ending += f" Next: glassformer learn start {todo[0]}"
    heading = ("exercise", "state", "what", "on the road")
    return CommandOutput(entries, text_table.lines(rows, heading, (0, 1, 2, 3)), ending=ending)


def start(name: str, options: LearnOptions, *, notebook: bool = False) -> CommandOutput:
    """Writes your file of an exercise.

    name NAME: an exercise; glassformer learn lists them
    notebook: a notebook instead of a .py file
    """
    from ..learn import progress_file, starting
    from ..learn.exercise import find

    exercise, folder = find(name, options.exercises), options.out
    progress_file.read_progress(folder)  # a broken record is said before anything is written
    path = starting.write(exercise, folder, notebook)
    if progress_file.state(exercise, progress_file.read_progress(folder)) == progress_file.NEW:
        try:
            progress_file.save_progress(folder, exercise.name, state="started", file=path.name)
        except UserError:  # which says that nothing was changed
            path.unlink()
            raise
    ending = f"{exercise.title}. Fill in what is TODO, then: glassformer learn check {path}"
    return CommandOutput({"file": str(path)}, [str(path)], ending=ending)


def check(
    options: LearnOptions,
    file: str | None = None,
    *,
    all_: Path | None = None,
    grades: Path | None = None,
    gradebook: str = "csv",
    seed: int | None = None,
    seconds: float | None = None,
) -> CommandOutput:
    """Checks your file, or each file of a class.

    file FILE: your file, or the name of its exercise (the file that changed last)
    all_ CLASS: a folder with the files of a whole class
    grades FILE: with --all: save the points as a CSV file
    gradebook LAYOUT: the layout of --grades: csv (a column for each exercise), canvas or nbgrader
    seed S: repeat the random inputs of an earlier check
    seconds T: stop the code after T processor seconds (20)
    """
    from ..learn import progress_file
    from ..learn.checking import Checker

    need(
        seconds is None or 0 < seconds <= MAX_SECONDS,
        f"--seconds is {seconds}; give 0 to {MAX_SECONDS:,}, above 0.",
    )
    need(
        seed is None or 0 <= seed < 1 << 31,
        f"--seed is {seed}; give 0 to {(1 << 31) - 1:,}.",
    )
    if all_:
        need(file is None, "Give a FILE or --all CLASS, not both.")
        return _check_class(all_, options.exercises, seconds, grades, gradebook)
    need(grades is None, "--grades is for a class; give --all CLASS too.")
    path = _started_file(options.out, Path(file)) if file else _latest_file(options.out)
    with Checker(options.exercises) as checker:
        verdict = checker.check(path, seed, seconds)
    passed = verdict.state == "passed"
    before = progress_file.read_progress(path.parent).get(verdict.exercise, {})
    state = "done" if passed or before.get("state") == "done" else "started"
    checks = int(before.get("checks", 0)) + 1
    progress_file.update_progress(
        path.parent, verdict.exercise, state=state, file=path.name, checks=checks
    )
    printed = [f"  | {line}" for line in verdict.printed.rstrip().splitlines()]
    if printed:
        printed.insert(0, "Your code printed:")
    ending = (
        f"Stuck? glassformer learn hint {verdict.exercise}. The same inputs again: --seed "
        f"{verdict.seed}"
    )
    return CommandOutput(
        verdict.to_dict,
        [*printed, *verdict.lines()],
        ending="" if passed else ending,
        exit_code=int(not passed),
    )


def hint(name: str, options: LearnOptions, *, all_hints: bool = False) -> CommandOutput:
    """Shows the next hint at the solution.

    name NAME: an exercise; glassformer learn lists them
    all_hints: show every hint, not only the next
    """
    from ..learn import progress_file
    from ..learn.exercise import find

    exercise, folder = find(name, options.exercises), options.out
    count = len(exercise.hints)
    solution = f"glassformer learn solution {exercise.name}"
    need(count > 0, f"{exercise.name} has no hints; {solution} shows the solution.")
    record = progress_file.read_progress(folder).get(exercise.name, {})
    last = count if all_hints else min(int(record.get("hints", 0)) + 1, count)
    hints = exercise.hints[0 if all_hints else last - 1 : last]
    progress_file.update_progress(
        folder, exercise.name, state=record.get("state", "started"), hints=last
    )
    more = f"{count_noun(count - last, 'more hint')}: ask again"
    if last == count:
        more = f"the last; {solution}"
    return CommandOutput(list(hints), hints, ending=f"({more})")


def solution(name: str, options: LearnOptions) -> CommandOutput:
    """Shows an exercise solved, so that it can be checked as it is.

    name NAME: an exercise; glassformer learn lists them
    """
    from ..learn.exercise import find

    exercise = find(name, options.exercises)
    record = {"name": exercise.name, "solution": exercise.solution}
    return CommandOutput(
        record, [f"# exercise: {exercise.name}\n\n{exercise.solution}".removesuffix("\n")]
    )


def _started_file(folder: Path, file: Path) -> Path:
    """The file, or where there is none, the one that was begun for the exercise of this name."""
    from ..learn import progress_file

    record = progress_file.read_progress(folder).get(str(file), {}) if not file.exists() else {}
    return folder / record["file"] if "file" in record else file


def _latest_file(folder: Path) -> Path:
    """Returns the learner's file that was changed last."""
    from ..learn import starting

    paths = [*folder.glob("*.py"), *folder.glob("*.ipynb")]
    for path in sorted(paths, key=lambda path: -path.stat().st_mtime):
        try:
            starting.read_source(path)
        except UserError:
            continue
        note(f"{path}, the file that changed last:")
        return path
    raise UserError(
        f"No exercise is started in {folder.resolve()}; run glassformer learn start NAME, or "
        "name a FILE."
    )


def _check_class(
    folder: Path,
    exercises: Path | None,
    seconds: float | None,
    grades: Path | None,
    gradebook: str,
) -> CommandOutput:
    """Checks each learner's files; a row for each."""
    from ..core import files
    from ..learn.checking import Checker, class_folder
    from ..learn.exercise import catalogue
    from ..learn.grades import LAYOUTS, grades_file, learner_points

    need(
        gradebook in LAYOUTS,
        f"--gradebook is {gradebook!r}; give {', '.join(LAYOUTS)}.",
    )
    reports, rows, count = [], [], progress_counter("files checked")
    verdicts = []
    with Checker(exercises) as checker:
        for learner, verdict in class_folder(folder, checker, seconds):
            verdicts.append((learner, verdict))
            reports.append({"learner": learner, **verdict.to_dict()})
            count(len(reports))
            message = f"{verdict.where}: {verdict.message}".removeprefix(": ")
            rows.append((learner, verdict.exercise, verdict.state, message[:100]))
    if grades:
        handed_in = {verdict.exercise for _, verdict in verdicts}
        points = {e.name: e.points for e in catalogue(exercises) if e.name in handed_in}
        files.write(grades, grades_file(learner_points(verdicts, points), points, gradebook))
    passed = sum(row[2] == "passed" for row in rows)
    learners = count_noun(len({row[0] for row in rows}), "learner")
    heading = ("learner", "exercise", "state", "what")
    return CommandOutput(
        reports,
        text_table.lines(rows, heading, (0, 1, 2, 3)),
        ending=f"{learners}, {count_noun(len(rows), 'file')}, {passed} passed."
        + (f" Points are in {grades}." if grades else ""),
    )


def sheets(
    students: Path, options: LearnOptions, *, problems: str = "", seed: int = 1
) -> CommandOutput:
    """Writes lab sheets to print, drawn for each student, and the solutions for staff.

    students STUDENTS: a text file, a student's name on each line
    problems NAMES: the problems, separated by commas (all)
    seed S: the seed of random numbers; the same seed and name give the same sheet
    """
    from ..core import files
    from ..learn.sheets import PROBLEMS, print_sheets

    lines = map(str.strip, read_prompts(str(students)))
    names = list(dict.fromkeys(filter(None, lines)))
    need(bool(names), f"{students} names no student; write a name on each line.")
    requested = [name for part in problems.split(",") if (name := part.strip())] or list(PROBLEMS)
    paths = {
        options.out / "sheets.html": print_sheets(requested, names, seed, solved=False),
        options.out / "solutions.html": print_sheets(requested, names, seed, solved=True),
    }
    (first, page), (second, solved) = paths.items()

    def both(beside: Path) -> None:
        beside.write_text(page, encoding="utf-8")
        files.write(second, solved)

    files.write(first, both)  # where either fails, neither is there
    ending = f"{count_noun(len(names), 'student')}; open a file in a browser and print it."
    return CommandOutput({"files": list(map(str, paths))}, map(str, paths), ending=ending)


TASKS = {"start": start, "check": check, "hint": hint, "solution": solution, "sheets": sheets}
