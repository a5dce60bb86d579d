"""``glassformer learn``: exercises that check themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError, nearest, need, note
from .common import CommandOutput, count_noun, progress_counter, tables
from .signature import Words

if TYPE_CHECKING:
    from ..learn.exercise import Exercise

EXAMPLES = (
    "glassformer learn",
    "glassformer learn start causal-mask",
    "glassformer learn check causal_mask.py",
    "glassformer learn hint causal-mask",
    "glassformer learn check --all CLASS --json",
)
USAGE = """glassformer learn [--out FOLDER] [--exercises FOLDER] [--json]
       glassformer learn start NAME [--out FOLDER] [--notebook]
       glassformer learn check [FILE|NAME] [--seed S] [--seconds T] [--json]
       glassformer learn check --all CLASS [--json]
       glassformer learn hint NAME [--all-hints]
       glassformer learn solution NAME"""
EPILOG = (
    "A check runs your code in processes of their own, with limits of time and memory; it "
    "is no sandbox."
)
VERBS = ("start", "check", "hint", "solution")


def run(
    words: Words = (),
    *,
    out: Path = Path(),
    exercises: Path | None = None,
    notebook: bool = False,
    all_: Path | None = None,
    seed: int | None = None,
    seconds: float | None = None,
    all_hints: bool = False,
) -> CommandOutput:
    """Lists the exercises, starts one, checks it, hints at its solution or shows it.

    words VERB: start, check, hint or solution, and what of; none lists them
    out FOLDER: where your files are, and what is done (here)
    exercises FOLDER: a teacher's exercises besides ours (docs/learn.md)
    notebook: start: a notebook instead of a .py file
    all_ CLASS: check: a folder of many learners' files
    seed S: check: draw the inputs of an earlier check again
    seconds T: check: stop the code after so many of the processor (20)
    all_hints: hint: every hint, not the next one alone
    json: what is found as JSON
    """
    verb, *names = words or ["list"]
    if verb not in ("list", *VERBS):
        raise UserError(
            f'learn knows no "{verb}".{nearest(verb, VERBS)} glassformer learn lists the exercises.'
        )
    takes_name = verb != "list" and not all_
    need(
        len(names) <= takes_name,
        f"learn {verb} takes {'one name' if takes_name else 'nothing more'}; see "
        "glassformer learn --help.",
    )
    longest = 86_400
    need(
        seconds is None or 0 < seconds <= longest,
        f"--seconds is {seconds}; give 0 to {longest:,}, above 0.",
    )
    need(
        seed is None or 0 <= seed < 1 << 31,
        f"--seed is {seed}; give 0 to {(1 << 31) - 1:,}.",
    )
    if verb == "list":
        return _list(out, exercises)
    if verb == "check":
        if all_:
            return _check_class(all_, exercises, seconds)
        file = _started_file(out, Path(names[0])) if names else _latest_file(out)
        return _check(file, exercises, seed, seconds)
    need(
        bool(names),
        f"Say of which exercise: glassformer learn {verb} NAME; glassformer learn lists them.",
    )
    from ..learn.exercise import find

    exercise = find(names[0], exercises)
    if verb == "start":
        return _start(exercise, out, notebook)
    if verb == "hint":
        return _hint(exercise, out, all_hints)
    # so that it can be checked as it is
    solution = f"# exercise: {exercise.name}\n\n{exercise.solution}"
    record = {"name": exercise.name, "solution": exercise.solution}
    return CommandOutput(record, [solution.removesuffix("\n")])


def _list(folder: Path, others: Path | None) -> CommandOutput:
    """All exercises with their states."""
    from ..learn import progress
    from ..learn.exercise import catalogue

    record, exercises = progress.read_progress(folder), catalogue(others)
    entries: list[dict[str, Any]] = [
        {
            "name": exercise.name,
            "title": exercise.title,
            "state": progress.state(exercise, record),
            "road": exercise.road,
            "page": exercise.page,
        }
        for exercise in exercises
    ]
    rows = [(e["name"], e["state"], e["title"], f"{e['road']:g} {e['page']}") for e in entries]
    todo = [entry["name"] for entry in entries if entry["state"] != "done"]
    ending = f"{len(entries) - len(todo)} of {len(entries)} done."
    if todo:
        ending += f" Next: glassformer learn start {todo[0]}"
    heading = ("exercise", "state", "what", "on the road")
    return CommandOutput(entries, tables.lines(rows, heading, (0, 1, 2, 3)), ending=ending)


def _start(exercise: Exercise, folder: Path, notebook: bool) -> CommandOutput:
    from ..learn import progress, starting

    progress.read_progress(folder)  # a broken record is said before anything is written
    path = starting.write(exercise, folder, notebook)
    if progress.state(exercise, progress.read_progress(folder)) == progress.NEW:
        progress.update_progress(folder, exercise.name, state="started", file=path.name)
    ending = f"{exercise.title}. Fill in what is TODO, then: glassformer learn check {path}"
    return CommandOutput({"file": str(path)}, [str(path)], ending=ending)


def _check(
    file: Path, exercises: Path | None, seed: int | None, seconds: float | None
) -> CommandOutput:
    from ..learn import progress
    from ..learn.checking import Checker

    with Checker(exercises) as checker:
        verdict = checker.check(file, seed, seconds)
    passed = verdict.state == "passed"
    before = progress.read_progress(file.parent).get(verdict.exercise, {})
    state = "done" if passed or before.get("state") == "done" else "started"
    checks = int(before.get("checks", 0)) + 1
    progress.update_progress(
        file.parent, verdict.exercise, state=state, file=file.name, checks=checks
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


def _started_file(folder: Path, file: Path) -> Path:
    """The file, or where there is none, the one that was begun for the exercise of this name."""
    from ..learn import progress

    record = progress.read_progress(folder).get(str(file), {}) if not file.exists() else {}
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
        note(f"{path}, which was changed last:")
        return path
    raise UserError(
        f"There is no exercise begun in {folder.resolve()}; glassformer learn start NAME, or "
        "name a FILE."
    )


def _check_class(folder: Path, exercises: Path | None, seconds: float | None) -> CommandOutput:
    """Checks each learner's files; a row for each."""
    from ..learn.checking import Checker, class_folder

    reports, rows, count = [], [], progress_counter("files checked")
    with Checker(exercises) as checker:
        for report in class_folder(folder, checker, seconds):
            reports.append(report.to_dict())
            count(len(reports))
            verdict = report.verdict
            row, message = ("", "refused"), report.refused
            if verdict is not None:
                place = f"{verdict.where}: " if verdict.where else ""
                row, message = (verdict.exercise, verdict.state), f"{place}{verdict.message}"
            rows.append((report.learner, *row, message[:100]))
    passed = sum(row[2] == "passed" for row in rows)
    learners = count_noun(len({row[0] for row in rows}), "learner")
    heading = ("learner", "exercise", "state", "what")
    return CommandOutput(
        reports,
        tables.lines(rows, heading, (0, 1, 2, 3)),
        ending=f"{learners}, {count_noun(len(rows), 'file')}, {passed} passed.",
    )


def _hint(exercise: Exercise, folder: Path, all_hints: bool) -> CommandOutput:
    """The next hint, or all."""
    from ..learn import progress

    count = len(exercise.hints)
    solution = f"glassformer learn solution {exercise.name}"
    need(count > 0, f"{exercise.name} has no hints; {solution} shows it solved.")
    record = progress.read_progress(folder).get(exercise.name, {})
    last = count if all_hints else min(int(record.get("hints", 0)) + 1, count)
    hints = exercise.hints[0 if all_hints else last - 1 : last]
    progress.update_progress(
        folder, exercise.name, state=record.get("state", "started"), hints=last
    )
    more = f"{count_noun(count - last, 'more hint')}: ask again"
    if last == count:
        more = f"the last; {solution}"
    return CommandOutput(list(hints), hints, ending=f"({more})")
