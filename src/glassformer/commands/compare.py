"""``glassformer compare``: several run files on the same data under one budget, one table and one picture.

DIR/  NAME/ (a run folder each)   comparison.json   comparison.png
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import UserError, need
from .common import computing, emit, note, passed
from .comparison import draw, facts, log, table, together
from .eval import numbers
from .process import alone, answer

EXAMPLES = ("glassformer compare a.toml b.toml --minutes 5",)
EPILOG = "Each run is trained in a process of its own, one after the other; what is finished is not done again."
TRIAL = 12  # steps that tell how many fit into --minutes
LAST = 3  # of them, the ones that count: the first ones warm up


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
    one.add_argument("runs", nargs="+", metavar="RUN.toml", help="run files with the same data and objective")
    one.add_argument("--minutes", type=float, metavar="M", help="train each for about so long, validation not counted")
    one.add_argument("--tokens", type=int, metavar="N", help="train each on so many tokens, rows counted as full")
    one.add_argument(
        "--vary", action="append", default=[], metavar="NAME=V,...", help="each run with each value; may be repeated"
    )
    one.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="each N times, seeds counting on: mean and spread"
    )
    one.add_argument("--bag", action="store_true", help="beside them, for labels: a bag of words (TF-IDF)")
    one.add_argument("--out", default="out/compare", metavar="DIR", help="where the runs go (out/compare)")
    one.add_argument("--json", action="store_true", help="the figures as JSON")
    computing(one)
    test = one.add_argument_group("a test set, read by the best checkpoint of each run: BLEU, or accuracy")
    test.add_argument("--test", metavar="FILE", help="examples, or their sources")
    test.add_argument("--target", metavar="FILE", help="the file with the right targets, line by line")
    test.add_argument("--beams", type=int, default=5, metavar="K", help="width of the beam search (5)")
    test.add_argument(
        "--lengths", type=numbers, default=[10, 15, 20], metavar="N,...", help="BLEU by source length (10,15,20)"
    )


def run(given: argparse.Namespace) -> int | None:
    """The command; its exit code, None for 0."""
    need(given.minutes is None or given.tokens is None, "Give --minutes or --tokens, not both: one budget for all.")
    need(given.minutes is None or 0 < given.minutes < math.inf, f"--minutes is {given.minutes}; give more than 0.")
    need(given.tokens is None or given.tokens > 0, f"--tokens is {given.tokens}; give more than 0.")
    need(bool(given.out), "--out is empty; name a folder.")
    need(given.target is None or given.test is not None, "--target goes with --test; name the file of the sources.")
    need(given.seeds > 0, f"--seeds is {given.seeds}; give 1 or more.")
    arms = read(given.runs, given.vary)
    first = arms[0].plan
    bag = bag_of(first) if given.bag else None
    readable(given, first)
    out, results = Path(given.out), []
    before = known(out, budget(given))
    shared = before.setdefault("plan", None if before["runs"] else shared_plan(arms))
    if shared is not None:  # a comparison begun by an older version has none
        arms = [replace(arm, changes=(*arm.changes, *settled(arm.plan.train, shared["dtype"]))) for arm in arms]
        note(f"Where nothing else is said, all are trained in {shared['dtype']}: {shared['why']}.")
    for arm in arms:
        found: list[dict[str, Any]] = []
        for seed in range(given.seeds):
            name = arm.name if given.seeds == 1 else f"{arm.name}.seed-{arm.plan.train.seed + seed}"
            done = before["runs"].setdefault(name, {})
            if not (out / name).exists():
                done.clear()
                done["steps"] = found[0]["steps"] if found else steps_of(given, arm, out / name)
            remember(out, before)
            code = trained(given, arm, arm.plan.train.seed + seed if seed else None, out / name, done)
            remember(out, before)
            if code:
                note(f"Or give the same compare command again: it goes on with what is in {out}.")
                return code
            tested(given, arm.plan, out / name, done)
            remember(out, before)
            found.append({"name": name, **facts(out / name), **done})
        results.append(found[0] if given.seeds == 1 else together(arm.name, found))
    if bag is not None:
        before["runs"][BAG] = bagged(bag, first.data.valid, given.test)
        remember(out, before)
        results.append({"name": BAG, **before["runs"][BAG]})
    picture = draw(results, out / "comparison.png")
    if given.json:
        emit(results)
    else:
        print("\n".join(table(results)))
        note(picture)
    return None


# ------------------------------------------------------------------------------- the same for all


@dataclass(frozen=True)
class Arm:
    """One of what is compared: a run file with some settings changed; ``plan`` is what both say together."""

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    plan: Any

    def words(self) -> list[str]:
        """The arm as ``glassformer train`` takes it."""
        return [self.file, *(word for name, value in self.changes for word in (f"--{name}", value))]


def read(files: Sequence[str], vary: Sequence[str] = ()) -> list[Arm]:
    """Each run file under each choice of the varied settings; UserError unless all learn the same from the same."""
    from ..config import run as runs

    found: dict[str, Arm] = {}
    for file in files:
        for changes in itertools.product(*map(choices, vary)):
            name = ".".join((Path(file).stem, *(f"{path.rpartition('.')[2]}={value}" for path, value in changes)))
            need(name not in found, f"Two runs are called {name}; give each run file a name of its own.")
            need("/" not in name, f"{name} cannot be the name of a folder; put such a value into a run file.")
            found[name] = Arm(name, file, changes, runs.read(file, dict(changes)))
            validated = found[name].plan.train.evaluate_every > 0
            need(validated, f"{file} is never validated; set train.evaluate_every above 0.")
    first, *others = found.values()
    for arm in others:
        for place, mine, theirs in zip(("data", "objective"), same(arm.plan), same(first.plan), strict=True):
            if mine != theirs:
                keys = [key for key in {**theirs, **mine} if mine.get(key) != theirs.get(key)]
                where = f"{place}.{keys[0]}"
                raise UserError(
                    f"{arm.name} and {first.name} differ in {where}; a comparison needs the same in all run files."
                )
    return list(found.values())


def choices(text: str) -> list[tuple[str, str]]:
    """``decoder.depth=2,4`` as (decoder.depth, 2), (decoder.depth, 4)."""
    path, equals, values = text.partition("=")
    given = [value.strip() for value in values.split(",")]
    right = equals and path and all(given) and path not in ("seed", "train.seed")
    need(bool(right), f'--vary is "{text}"; give NAME=VALUE,VALUE such as decoder.depth=2,4 (and --seeds N for seeds).')
    return [(path, value) for value in given]


def same(plan: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What of a run must not differ: the data, and what is learned from it.

    A loss is one of tokens, so the tokenizer counts; labels are the same in any, however often a text is read for one.
    """
    from ..config import serial
    from ..config.objective import Classify, Tag

    data, objective = serial.to_dict(plan.data), serial.to_dict(plan.train.objective)
    if isinstance(plan.train.objective, Classify | Tag):
        data = {key: value for key, value in data.items() if key not in ("tokenizer", "vocab", "cut")}
        objective = {key: value for key, value in objective.items() if key not in ("rdrop", "adversarial")}
    return data, objective


def budget(given: argparse.Namespace) -> dict[str, float]:
    """The budget in words; empty where each run file says its own number of steps."""
    return {key: getattr(given, key) for key in ("minutes", "tokens") if getattr(given, key) is not None}


def known(out: Path, wanted: dict[str, float]) -> dict[str, Any]:
    """What an earlier call found in this folder; UserError where its budget was another."""
    path = out / "comparison.json"
    if not path.exists():
        return {"budget": wanted, "runs": {}}
    try:
        before: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        there, _ = before["budget"], before["runs"].items()
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise UserError(
            f"{path} is damaged; remove it to train what is not finished, or choose another --out."
        ) from None
    if there != wanted:
        said = " ".join(f"--{key} {value:g}" for key, value in there.items()) or "the run files' own steps"
        raise UserError(f"{out} holds a comparison with another budget ({said}); give that, or choose another --out.")
    return before


def remember(out: Path, known: Mapping[str, Any]) -> None:
    """Keep what was found."""
    from .. import files

    files.write(out / "comparison.json", json.dumps(known, indent=1) + "\n")


def shared_plan(arms: Sequence[Arm]) -> dict[str, str]:
    """The number format for all: bf16 where the table of measured reasons has it for each of them, else fp32."""
    from ..nn import device as devices
    from ..training import prepare, probe

    kind = probe.machine(devices.find())
    rows = [probe.chosen(prepare.fitted(arm.plan, prepare.origin(arm.plan, None)[0]), kind) for arm in arms]
    row = next((row for row in rows if row.dtype == "float32"), rows[0])
    return {"dtype": row.dtype, "why": row.why}


def settled(how: Any, dtype: str) -> list[tuple[str, str]]:
    """What a run leaves open of its plan, as settings: the same for all."""
    return [(name, value) for name, value in (("dtype", dtype), ("compile", "no")) if getattr(how, name) == "auto"]


# ---------------------------------------------------------------------------- each in its process


def steps_of(given: argparse.Namespace, arm: Arm, folder: Path) -> int | None:
    """How many steps the budget pays for; None: those of the run file."""
    plan, how = arm.plan, arm.plan.train
    if given.tokens is not None:
        context = how.context or context_of(plan)
        return int(max(1, round(given.tokens / (how.batch * context))))
    if given.minutes is None:
        return None
    trial = folder.with_name(f"{folder.name}.trial")
    shutil.rmtree(trial, ignore_errors=True)
    quiet = ["--evaluate_every", "0", "--save_every", "0", "--sample_every", "0", "--tensorboard", "false"]
    words = ["train", *arm.words(), "--out", str(trial), "--steps", str(TRIAL), *quiet, *passed(given)]
    try:
        alone(words)
        seconds = statistics.median(line["seconds"] for line in log(trial)[-LAST:])
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    steps = int(max(1, round(given.minutes * 60 / seconds)))
    note(f"{folder.name}: {seconds:.3f} s a step, so {steps:,} steps in {given.minutes:g} minutes.")
    return steps


def context_of(plan: Any) -> int:
    """The context of the model that a run file describes."""
    from ..training import prepare

    model = prepare.fitted(plan, prepare.origin(plan, None)[0])
    return model.context


def trained(given: argparse.Namespace, arm: Arm, seed: int | None, folder: Path, done: dict[str, Any]) -> int:
    """Train, or go on; 0, or the exit code of a training that was stopped."""
    if done.get("finished"):
        note(f"{folder.name} is finished; it is not trained again.")
        return 0
    words = ["train", *arm.words(), "--out", str(folder), *passed(given)]
    words += ["--resume"] if (folder / "run.json").exists() else []
    words += [] if seed is None else ["--seed", str(seed)]
    if done.get("steps"):
        words += ["--steps", str(done["steps"])]
    note(f"--- {folder.name}")
    code, peak = alone(words, stopped=(130, 143))
    done["peak"] = max(peak, done.get("peak", 0))
    done["finished"] = code == 0
    return code


def tested(given: argparse.Namespace, plan: Any, folder: Path, done: dict[str, Any]) -> None:
    """Put the figures of the test set under ``done``, unless they are there."""
    from ..config.objective import Classify, Seq2Seq, Tag

    if given.test is None:
        return
    pairs = isinstance(plan.train.objective, Seq2Seq)
    need(
        pairs or isinstance(plan.train.objective, Classify | Tag),
        "--test is for translations and labels; leave it out.",
    )
    words = ["eval", str(folder), "--data", given.test, "--json", *passed(given)]
    words += ["--before", plan.data.before] if plan.data.before else []
    words += columns_of(plan.data)
    if pairs:
        words += ["--target", given.target] if given.target else []
        words += ["--beams", str(given.beams), "--figures", "bleu", "--lengths", ",".join(map(str, given.lengths))]
        if plan.data.tokenizer == "words":  # texts that were parted before, perhaps into pieces
            words += ["--tokenised", "--whole-words"]
    asked = " ".join(words[2:])
    if done.get("asked") != asked:
        done["test"], done["asked"] = answer(words)[0], asked


BAG = "bag-of-words"


def readable(given: argparse.Namespace, plan: Any) -> None:
    """Refuse what a test set would be in want of, before anything is trained."""
    from ..config.objective import Classify, Tag
    from ..data import examples, published
    from ..evaluation import metrics

    labels, tags = (isinstance(plan.train.objective, kind) for kind in (Classify, Tag))
    if (given.test is not None or given.bag) and not tags:
        metrics.installed("sklearn" if labels else "sacrebleu")
    if given.test is not None and (labels or tags):
        examples.read(given.test, plan.train.objective, columns=plan.data.columns)
    for name in (given.test, given.target):
        need(name is None or published.locate(name).is_file(), f"{name} is not a file; give a file of examples.")


def bag_of(plan: Any) -> list[str]:
    """The command that learns a plan's labels from bags of words, but for the file it is held against."""
    from ..config.objective import Classify

    told, data = plan.train.objective, plan.data
    fits = isinstance(told, Classify) and not told.regression and isinstance(data.train, str)
    need(fits and isinstance(data.valid, str), "--bag is for two files of texts and labels; leave it out.")
    return ["words", "classify", data.train, *columns_of(data), "--json"]


def columns_of(data: Any) -> list[str]:
    """What a plan says of its files' columns, as an option."""
    parts = ",".join(f"{part}={column}" for part, column in data.columns.items())
    return ["--columns", parts] if parts else []


def bagged(learn: list[str], valid: str, test: str | None) -> dict[str, Any]:
    """A bag of words, held against both files; a row like the others', without a curve."""
    said, peak = answer([*learn[:3], valid, *learn[3:]])
    sizes = {"parameters": said["parameters"], "tokens": said["read"], "seconds": said["seconds"]}
    row = {"valid": {"loss": said["loss"], "accuracy": said["accuracy"] / 100}, **sizes, "peak": peak, "curve": []}
    if test is not None:
        found, _ = answer([*learn[:3], test, *learn[3:]])
        row["test"] = {"texts": found["examples"]}
        row["test"] |= {name: found[name] for name in ("accuracy", "f1", "matthews") if name in found}
    return row
