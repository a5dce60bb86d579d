"""``glassformer learn``: exercises that check themselves."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, nearest, need, note
from .common import counted, counting, emit, table

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


def options(one: argparse.ArgumentParser) -> None:
    add = one.add_argument
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


def run(given: argparse.Namespace) -> int:
    verb, *rest = given.words or ["list"]
    if verb != "list" and verb not in VERBS:
        raise UserError(
            f'learn knows no "{verb}".{nearest(verb, VERBS)} glassformer learn lists the exercises.'
        )
    most = 0 if verb == "list" or given.everyone else 1
    need(
        len(rest) <= most,
        f"learn {verb} takes {'one name' if most else 'nothing more'}; see "
        "glassformer learn --help.",
    )
    if verb == "list":
        return _list(given)
    most = 86_400
    need(
        given.seconds is None or 0 < given.seconds <= most,
        f"--seconds is {given.seconds}; give 0 to {most:,}, above 0.",
    )
    need(
        given.seed is None or 0 <= given.seed < 1 << 31,
        f"--seed is {given.seed}; give 0 to {(1 << 31) - 1:,}.",
    )
    if verb == "check":
        return _class(given) if given.everyone else _check(given, Path(rest[0]) if rest else None)
    need(
        bool(rest),
        f"Say of which exercise: glassformer learn {verb} NAME; glassformer learn lists them.",
    )
    from ..learn.exercise import find

    exercise = find(rest[0], given.exercises)
    return {"start": _start, "hint": _hint, "solution": _solution}[verb](given, exercise)


def _list(given: argparse.Namespace) -> int:
    """All exercises, and what is done of them."""
    from ..learn import progress
    from ..learn.exercise import catalogue

    kept, exercises = progress.read(given.out), catalogue(given.exercises)
    if given.json:
        told: list[dict[str, Any]] = [
            {
                "name": one.name,
                "title": one.title,
                "state": progress.state(one, kept),
                "road": one.road,
                "page": one.page,
            }
            for one in exercises
        ]
        emit(told)
        return 0
    table(
        [
            (one.name, progress.state(one, kept), one.title, f"{one.road:g} {one.page}")
            for one in exercises
        ],
        ("exercise", "state", "what", "on the road"),
        left=(0, 1, 2, 3),
    )
    done = sum(progress.state(one, kept) == "done" for one in exercises)
    first = next((one.name for one in exercises if progress.state(one, kept) != "done"), None)
    note(
        f"{done} of {len(exercises)} done."
        + (f" Next: glassformer learn start {first}" if first else "")
    )
    return 0


def _start(given: argparse.Namespace, exercise: Exercise) -> int:
    from ..learn import progress, starting

    progress.read(given.out)  # a broken record is said before anything is written
    path = starting.write(exercise, given.out, given.notebook)
    if progress.state(exercise, progress.read(given.out)) == progress.NEW:
        progress.keep(given.out, exercise.name, state="started", file=path.name)
    print(path)
    note(f"{exercise.title}. Fill in what is TODO, then: glassformer learn check {path}")
    return 0


def _check(given: argparse.Namespace, file: Path | None) -> int:
    from ..learn import progress
    from ..learn.checking import Checker

    file = _latest(given) if file is None else _begun(given, file)
    with Checker(given.exercises) as checker:
        verdict = checker.check(file, given.seed, given.seconds)
    passed = verdict.state == "passed"
    before = progress.read(file.parent).get(verdict.exercise, {})
    state = "done" if passed or before.get("state") == "done" else "started"
    checks = int(before.get("checks", 0)) + 1
    progress.keep(file.parent, verdict.exercise, state=state, file=file.name, checks=checks)
    if given.json:
        emit(verdict.to_dict())
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


def _begun(given: argparse.Namespace, named: Path) -> Path:
    """The file, or where there is none, the one that was begun for the exercise of this name."""
    from ..learn import progress

    kept = progress.read(given.out).get(str(named), {}) if not named.exists() else {}
    return given.out / kept["file"] if "file" in kept else named


def _latest(given: argparse.Namespace) -> Path:
    """The learner's file that was changed last."""
    from ..learn import starting

    found: list[Path] = [path for kind in ("*.py", "*.ipynb") for path in given.out.glob(kind)]
    for path in sorted(found, key=lambda path: -path.stat().st_mtime):
        try:
            starting.read(path)
        except UserError:
            continue
        note(f"{path}, which was changed last:")
        return path
    raise UserError(
        f"There is no exercise begun in {given.out.resolve()}; glassformer learn start NAME, or "
        "name a FILE."
    )


def _class(given: argparse.Namespace) -> int:
    """Each learner's files, a row each."""
    from ..learn.checking import Checker, class_folder

    found, count = [], counting("files checked")
    with Checker(given.exercises) as checker:
        for one in class_folder(given.everyone, checker, given.seconds):
            found.append(one)
            count(len(found))
    if given.json:
        emit([one.to_dict() for one in found])
        return 0
    rows = []
    for one in found:
        told = one.verdict
        where = f"{told.where}: " if told is not None and told.where else ""
        said = one.refused if told is None else f"{where}{told.message}"
        rows.append(
            (
                one.learner,
                told.exercise if told else "",
                told.state if told else "refused",
                said[:100],
            )
        )
    table(rows, ("learner", "exercise", "state", "what"), left=(0, 1, 2, 3))
    passed = Counter(row[0] for row in rows if row[2] == "passed")
    learners = {row[0] for row in rows}
    note(
        f"{counted(len(learners), 'learner')}, {counted(len(rows), 'file')}, {passed.total()} "
        "passed."
    )
    return 0


def _hint(given: argparse.Namespace, exercise: Exercise) -> int:
    """The next hint, or all."""
    from ..learn import progress

    need(
        bool(exercise.hints),
        f"{exercise.name} has no hints; glassformer learn solution {exercise.name} shows it solved.",
    )
    seen = progress.read(given.out).get(exercise.name, {}).get("hints", 0)
    at = min(int(seen), len(exercise.hints) - 1)
    told = exercise.hints if given.all_hints else exercise.hints[at : at + 1]
    if given.json:
        emit(list(told))
    else:
        print("\n".join(told))
    state = progress.state(exercise, progress.read(given.out))
    state = "started" if state == progress.NEW else state
    progress.keep(
        given.out,
        exercise.name,
        state=state,
        hints=len(exercise.hints) if given.all_hints else at + 1,
    )
    left = 0 if given.all_hints else len(exercise.hints) - at - 1
    more = (
        f"{counted(left, 'more hint')}: ask again"
        if left
        else f"the last; glassformer learn solution {exercise.name}"
    )
    note(f"({more})")
    return 0


def _solution(given: argparse.Namespace, exercise: Exercise) -> int:
    if given.json:
        emit({"name": exercise.name, "solution": exercise.solution})
    else:
        # so that it can be checked as it is
        print(f"# exercise: {exercise.name}\n\n{exercise.solution}", end="")
    return 0
