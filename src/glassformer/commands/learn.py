"""``glassformer learn``: exercises that check themselves."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, nearest, need, note
from .common import count_noun, print_json, print_table, progress_counter

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


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "words",
        nargs="*",
        metavar="VERB",
        help="start, check, hint or solution, and what of; none lists them",
    )
    add(
        "--out",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="where your files are, and what is done (here)",
    )
    add(
        "--exercises",
        type=Path,
        metavar="FOLDER",
        help="a teacher's exercises besides ours (docs/learn.md)",
    )
    add("--notebook", action="store_true", help="start: a notebook instead of a .py file")
    add(
        "--all",
        type=Path,
        dest="everyone",
        metavar="CLASS",
        help="check: a folder of many learners' files",
    )
    add("--seed", type=int, metavar="S", help="check: draw the inputs of an earlier check again")
    add(
        "--seconds",
        type=float,
        metavar="T",
        help="check: stop the code after so many of the processor (20)",
    )
    add("--all-hints", action="store_true", help="hint: every hint, not the next one alone")
    add("--json", action="store_true", help="what is found as JSON")


def run(args: argparse.Namespace) -> int:
    verb, *names = args.words or ["list"]
    if verb != "list" and verb not in VERBS:
        raise UserError(
            f'learn knows no "{verb}".{nearest(verb, VERBS)} glassformer learn lists the exercises.'
        )
    most = 0 if verb == "list" or args.everyone else 1
    need(
        len(names) <= most,
        f"learn {verb} takes {'one name' if most else 'nothing more'}; see "
        "glassformer learn --help.",
    )
    if verb == "list":
        return _list(args)
    most = 86_400
    need(
        args.seconds is None or 0 < args.seconds <= most,
        f"--seconds is {args.seconds}; give 0 to {most:,}, above 0.",
    )
    need(
        args.seed is None or 0 <= args.seed < 1 << 31,
        f"--seed is {args.seed}; give 0 to {(1 << 31) - 1:,}.",
    )
    if verb == "check":
        return (
            _check_class(args) if args.everyone else _check(args, Path(names[0]) if names else None)
        )
    need(
        bool(names),
        f"Say of which exercise: glassformer learn {verb} NAME; glassformer learn lists them.",
    )
    from ..learn.exercise import find

    exercise = find(names[0], args.exercises)
    return {"start": _start, "hint": _hint, "solution": _solution}[verb](args, exercise)


def _list(args: argparse.Namespace) -> int:
    """Prints all exercises with their states."""
    from ..learn import progress
    from ..learn.exercise import catalogue

    record, exercises = progress.read_progress(args.out), catalogue(args.exercises)
    if args.json:
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
        print_json(entries)
        return 0
    print_table(
        [
            (
                exercise.name,
                progress.state(exercise, record),
                exercise.title,
                f"{exercise.road:g} {exercise.page}",
            )
            for exercise in exercises
        ],
        ("exercise", "state", "what", "on the road"),
        left_aligned=(0, 1, 2, 3),
    )
    done = sum(progress.state(exercise, record) == "done" for exercise in exercises)
    first = next(
        (exercise.name for exercise in exercises if progress.state(exercise, record) != "done"),
        None,
    )
    note(
        f"{done} of {len(exercises)} done."
        + (f" Next: glassformer learn start {first}" if first else "")
    )
    return 0


def _start(args: argparse.Namespace, exercise: Exercise) -> int:
    from ..learn import progress, starting

    progress.read_progress(args.out)  # a broken record is said before anything is written
    path = starting.write(exercise, args.out, args.notebook)
    if progress.state(exercise, progress.read_progress(args.out)) == progress.NEW:
        progress.update_progress(args.out, exercise.name, state="started", file=path.name)
    print(path)
    note(f"{exercise.title}. Fill in what is TODO, then: glassformer learn check {path}")
    return 0


def _check(args: argparse.Namespace, file: Path | None) -> int:
    from ..learn import progress
    from ..learn.checking import Checker

    file = _latest_file(args) if file is None else _started_file(args, file)
    with Checker(args.exercises) as checker:
        verdict = checker.check(file, args.seed, args.seconds)
    passed = verdict.state == "passed"
    before = progress.read_progress(file.parent).get(verdict.exercise, {})
    state = "done" if passed or before.get("state") == "done" else "started"
    checks = int(before.get("checks", 0)) + 1
    progress.update_progress(
        file.parent, verdict.exercise, state=state, file=file.name, checks=checks
    )
    if args.json:
        print_json(verdict.to_dict())
        return int(not passed)
    if verdict.printed.strip():
        print(
            "Your code printed:\n"
            + "\n".join(f"  | {line}" for line in verdict.printed.rstrip().splitlines())
        )
    print("\n".join(verdict.lines()))
    if not passed:
        note(
            f"Stuck? glassformer learn hint {verdict.exercise}. The same inputs again: --seed "
            f"{verdict.seed}"
        )
    return int(not passed)


def _started_file(args: argparse.Namespace, named: Path) -> Path:
    """The file, or where there is none, the one that was begun for the exercise of this name."""
    from ..learn import progress

    record = progress.read_progress(args.out).get(str(named), {}) if not named.exists() else {}
    return args.out / record["file"] if "file" in record else named


def _latest_file(args: argparse.Namespace) -> Path:
    """Returns the learner's file that was changed last."""
    from ..learn import starting

    paths: list[Path] = [path for kind in ("*.py", "*.ipynb") for path in args.out.glob(kind)]
    for path in sorted(paths, key=lambda path: -path.stat().st_mtime):
        try:
            starting.read_source(path)
        except UserError:
            continue
        note(f"{path}, which was changed last:")
        return path
    raise UserError(
        f"There is no exercise begun in {args.out.resolve()}; glassformer learn start NAME, or "
        "name a FILE."
    )


def _check_class(args: argparse.Namespace) -> int:
    """Checks each learner's files and prints a row for each."""
    from ..learn.checking import Checker, class_folder

    reports, count = [], progress_counter("files checked")
    with Checker(args.exercises) as checker:
        for report in class_folder(args.everyone, checker, args.seconds):
            reports.append(report)
            count(len(reports))
    if args.json:
        print_json([report.to_dict() for report in reports])
        return 0
    rows = []
    for report in reports:
        verdict = report.verdict
        place = f"{verdict.where}: " if verdict is not None and verdict.where else ""
        message = report.refused if verdict is None else f"{place}{verdict.message}"
        rows.append(
            (
                report.learner,
                verdict.exercise if verdict else "",
                verdict.state if verdict else "refused",
                message[:100],
            )
        )
    print_table(rows, ("learner", "exercise", "state", "what"), left_aligned=(0, 1, 2, 3))
    passed = Counter(row[0] for row in rows if row[2] == "passed")
    learners = {row[0] for row in rows}
    note(
        f"{count_noun(len(learners), 'learner')}, {count_noun(len(rows), 'file')}, {passed.total()} "
        "passed."
    )
    return 0


def _hint(args: argparse.Namespace, exercise: Exercise) -> int:
    """The next hint, or all."""
    from ..learn import progress

    need(
        bool(exercise.hints),
        f"{exercise.name} has no hints; glassformer learn solution {exercise.name} shows it solved.",
    )
    hints_taken = progress.read_progress(args.out).get(exercise.name, {}).get("hints", 0)
    at = min(int(hints_taken), len(exercise.hints) - 1)
    hints = exercise.hints if args.all_hints else exercise.hints[at : at + 1]
    if args.json:
        print_json(list(hints))
    else:
        print("\n".join(hints))
    state = progress.state(exercise, progress.read_progress(args.out))
    state = "started" if state == progress.NEW else state
    progress.update_progress(
        args.out,
        exercise.name,
        state=state,
        hints=len(exercise.hints) if args.all_hints else at + 1,
    )
    remaining = 0 if args.all_hints else len(exercise.hints) - at - 1
    more = (
        f"{count_noun(remaining, 'more hint')}: ask again"
        if remaining
        else f"the last; glassformer learn solution {exercise.name}"
    )
    note(f"({more})")
    return 0


def _solution(args: argparse.Namespace, exercise: Exercise) -> int:
    if args.json:
        print_json({"name": exercise.name, "solution": exercise.solution})
    else:
        # so that it can be checked as it is
        print(f"# exercise: {exercise.name}\n\n{exercise.solution}", end="")
    return 0
