"""Several runs on the same data under one budget, one after the other; what is finished is not done
again.

OUT/  NAME/ (a run folder each)   comparison.json
"""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core import config, files
from ..core.config import serial
from ..core.errors import need, note
from ..fast import device as devices
from ..fast.training import execution
from ..fast.training.allocator import peak_memory, reset_peak_memory
from ..scale.cost import cost
from . import run_file
from .callbacks import read_log
from .launch import Sampler, run
from .run_config import Run
from .run_plan import plan_run

TRIAL_STEPS = 12  # steps that tell how many fit into a number of minutes
TIMED_STEPS = 3  # the last of them, which count: the first ones warm up


@dataclass(frozen=True)
class Arm:
    """One of what is compared: a run file with some settings changed; ``settings`` are what both
    say together."""

    name: str
    settings: Run


def read_arms(
    paths: Sequence[str], vary: Sequence[str] = (), common: Mapping[str, str] | None = None
) -> list[Arm]:
    """Each run file under each choice of the settings to ``vary``, all with the ``common`` ones.

    Raises UserError unless all learn the same from the same data and are validated.
    """
    arms: dict[str, Arm] = {}
    for path in paths:
        for changes in itertools.product(*map(choices, vary)):
            name = ".".join(
                (Path(path).stem, *(f"{key.rpartition('.')[2]}={value}" for key, value in changes))
            )
            need(
                name not in arms,
                f"Two runs are called {name}; give each run file a name of its own.",
            )
            need(
                "/" not in name,
                f"{name} cannot be the name of a folder; put such a value into a run file.",
            )
            arm = arms[name] = Arm(
                name, run_file.read_run(path, {**dict(changes), **(common or {})})
            )
            need(
                arm.settings.train.evaluate_every > 0,
                f"{path} is never validated; set train.evaluate_every above 0.",
            )
    first, *other_arms = arms.values()
    for arm in other_arms:
        sides = comparable_settings(arm.settings), comparable_settings(first.settings)
        for table, arm_table, first_table in zip(("data", "objective"), *sides, strict=True):
            differing = next(
                (
                    key
                    for key in {**first_table, **arm_table}
                    if arm_table.get(key) != first_table.get(key)
                ),
                None,
            )
            need(
                differing is None,
                f"{arm.name} and {first.name} differ in {table}.{differing}; a comparison needs "
                "the same in all run files.",
            )
    return list(arms.values())


def choices(text: str) -> list[tuple[str, str]]:
    """``decoder.depth=2,4`` as (decoder.depth, 2), (decoder.depth, 4)."""
    path, equals, values = text.partition("=")
    options = [value.strip() for value in values.split(",")]
    right = equals and path and all(options) and path not in ("seed", "train.seed")
    need(
        bool(right),
        f'--vary is "{text}"; give NAME=VALUE,VALUE such as decoder.depth=2,4 (and '
        "--seeds N for seeds).",
    )
    return [(path, value) for value in options]


def comparable_settings(settings: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings that must not differ between arms: the data and the objective.

    A loss is one of tokens, so the tokenizer counts; labels are the same in any. What only
    regularizes belongs to how a model is trained, as the optimizer does.
    """
    data, objective = serial.to_dict(settings.data), settings.train.objective
    if objective.labelled:
        data = {
            key: value for key, value in data.items() if key not in ("tokenizer", "vocab", "cut")
        }
    return data, objective.task()


def compare(
    arms: Sequence[Arm],
    out: Path,
    budget: Mapping[str, float],
    *,
    seeds: int = 1,
    sample: Sampler | None = None,
) -> Iterator[tuple[str, Path, dict[str, Any], int | None]]:
    """Train every arm under every seed in its own folder below ``out``; yields each run when it has
    ended: the arm's name, the folder, the record, and the signal that stopped it.

    The budget is the same for all: about so many ``minutes`` of steps (validation not counted), so
    many ``tokens`` (rows counted as full), or the steps that each run file says. comparison.json
    holds the records: steps, "peak" bytes of memory, "processor" seconds (of all threads,
    validation counted), whether the run is "finished", and what the reader adds; so another call
    with the same budget goes on. A run that was stopped is the last. Raises UserError where ``out``
    holds a comparison under another budget.
    """
    comparison = _read_record(out, budget)
    if "precision" not in comparison:
        comparison["precision"] = shared_precision(arms)
    shared = comparison["precision"]
    note(f"Where nothing else is said, all are trained in {shared['dtype']}: {shared['why']}.")
    for arm in arms:
        settings = with_precision(arm.settings, shared["dtype"])
        steps = None
        for seed in range(settings.train.seed, settings.train.seed + seeds):
            folder = out / (arm.name if seeds == 1 else f"{arm.name}.seed-{seed}")
            record = comparison["runs"].setdefault(folder.name, {})
            if not folder.exists():
                record.clear()
                record["steps"] = steps or steps_for(settings, folder, budget)
            steps = record.get("steps")
            _write_record(out, comparison)
            train_config = replace(settings.train, seed=seed, steps=steps or settings.train.steps)
            stopped = _train(replace(settings, train=train_config), folder, record, sample)
            _write_record(out, comparison)
            yield arm.name, folder, record, stopped
            _write_record(out, comparison)
            if stopped:
                return


def _write_record(out: Path, comparison: Mapping[str, Any]) -> None:
    files.write(out / "comparison.json", json.dumps(comparison, indent=1) + "\n")


def _train(
    settings: Run, folder: Path, record: dict[str, Any], sample: Sampler | None
) -> int | None:
    """Train in ``folder``, or go on there; the signal that stopped it."""
    if record.get("finished"):
        note(f"{folder.name} is finished; it is not trained again.")
        return None
    note(f"--- {folder.name}")
    reset_peak_memory()
    start = time.process_time()
    ended = run(
        settings,
        folder,
        (folder / "run.json").exists(),
        sample=sample,
        command=f"the same compare command: it goes on with what is in {folder.parent}",
    )
    record["peak"] = max(peak_memory(), record.get("peak", 0))
    record["processor"] = record.get("processor", 0.0) + time.process_time() - start
    record["finished"] = ended.signal is None
    return ended.signal


def steps_for(settings: Run, folder: Path, budget: Mapping[str, float]) -> int | None:
    """Number of steps that the budget allows; None: those of the run file. For minutes a short
    trial run is timed."""
    if "tokens" in budget:
        row_tokens = settings.train.batch * plan_run(settings).context
        return max(1, round(budget["tokens"] / row_tokens))
    if "minutes" not in budget:
        return None
    trial = folder.with_name(f"{folder.name}.trial")
    shutil.rmtree(trial, ignore_errors=True)
    never = dict.fromkeys(("evaluate_every", "save_every", "sample_every"), 0)
    quiet = replace(settings.train, steps=TRIAL_STEPS, tensorboard=False, **never)  # type: ignore[arg-type]
    try:
        ended = run(replace(settings, train=quiet), trial, command="the same compare command")
        if ended.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if ended.signal:
            raise SystemExit(128 + ended.signal)
        lines = read_log(trial / "log.jsonl")[-TIMED_STEPS:]
        seconds = statistics.median(line["seconds"] for line in lines)
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    steps: int = max(1, round(budget["minutes"] * 60 / seconds))
    note(
        f"{folder.name}: {seconds:.3f} s a step, so {steps:,} steps in {budget['minutes']:g} "
        "minutes."
    )
    return steps


def shared_precision(arms: Sequence[Arm]) -> dict[str, str]:
    """The number format for all: bf16 where the table of measured reasons has it for each of them,
    else fp32."""
    kind = execution.machine(devices.find())
    rows = [execution.find_rule(plan_run(arm.settings).shape, kind) for arm in arms]
    row = next((row for row in rows if row.dtype == "float32"), rows[0])
    return {"dtype": row.dtype, "why": row.why}


def with_precision(settings: Run, dtype: str) -> Run:
    """The settings, with what they leave open of number format and compiling decided: the same for
    all arms."""
    unset = {
        name: value
        for name, value in {"dtype": dtype, "compile": "no"}.items()
        if getattr(settings.train, name) == "auto"
    }
    return replace(settings, train=replace(settings.train, **unset))  # type: ignore[arg-type]


def _read_record(out: Path, budget: Mapping[str, float]) -> dict[str, Any]:
    """Reads comparison.json of an earlier call; UserError where its budget was another."""
    path = out / "comparison.json"
    if not path.exists():
        return {"budget": budget, "runs": {}}
    fix = "remove it to train what is not finished, or choose another --out"
    comparison = files.read_json(path, fix)
    before: Any = comparison.get("budget")
    need(
        isinstance(before, dict) and isinstance(comparison.get("runs"), dict),
        f"{path} is damaged; {fix}.",
    )
    words = (
        " ".join(f"--{key} {value:g}" for key, value in before.items())
        or "the run files' own steps"
    )
    need(
        before == budget,
        f"{out} holds a comparison with another budget ({words}); give that, or choose "
        "another --out.",
    )
    return comparison


def figures(folder: Path) -> dict[str, Any]:
    """A run's figures: at its best validation, of which the checkpoint is kept, and over all.

    "curve" has a point for each validation: tokens and seconds until then, its loss, the mean
    training loss since the one before.
    """
    tokens, seconds, curve, validated = 0, 0.0, [], []
    losses: list[float] = []  # since the last validation
    for line in read_log(folder / "log.jsonl"):
        tokens, seconds = tokens + line.get("tokens", 0), seconds + line.get("seconds", 0.0)
        losses += [line["loss"]] if "loss" in line else []
        if "valid_loss" in line:
            mean = statistics.fmean(losses) if losses else None
            curve.append((tokens, seconds, line["valid_loss"], mean))
            validated.append(line)
            losses = []
    best = min(validated, key=lambda line: line["valid_loss"])
    run_info = files.read_json(folder / "run.json")
    execution = run_info["execution"]
    return {
        "valid": {name[6:]: value for name, value in best.items() if name.startswith("valid_")},
        "parameters": cost(serial.from_dict(config.Model, run_info["model"])).total,
        "tokens": tokens,
        "seconds": seconds,
        "precision": execution["dtype"] + (", compiled" if execution["compile"] else ""),
        "curve": curve,
    }


def over_seeds(name: str, seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One row for several seeds: means, ``spread`` (standard deviations), the most memory; each run
    under ``seeds``."""

    def merged(reduce: Callable[[Sequence[float]], float], values: Sequence[Any]) -> Any:
        if isinstance(values[0], Mapping):
            return {key: merged(reduce, [value[key] for value in values]) for key in values[0]}
        return reduce(values) if isinstance(values[0], float) else values[0]

    measured = [{"valid": row["valid"], "test": row.get("test", {})} for row in seeds]
    return {
        **merged(statistics.fmean, seeds),
        "name": name,
        "seeds": list(seeds),
        "spread": merged(statistics.stdev, measured),
        "peak": max(row["peak"] for row in seeds),
    }
