"""Run files read: from TOML or a table, with overrides, to a checked ``Run``. No torch here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core import config, files
from ..core.config import serial
from ..core.config.objective import Frozen, Full
from ..core.config.run import FINETUNE, FROM_SCRATCH, AdamW, Optimizer, Train
from ..core.errors import UserError, nearest, need
from . import settings
from .run_config import Data, Examples, Run


def saved_run(folder: Path) -> dict[str, Any] | None:
    """Returns the settings of the run in a folder, as ``read_run`` takes them; None where there are
    none that can be read."""
    try:
        saved = json.loads(files.read_bytes(folder / "run.json"))
        return {
            "model": saved.get("asked") or saved["model"],
            "data": saved["data"],
            "train": saved["train"],
        }
    except (OSError, ValueError, LookupError, AttributeError):
        return None


def read_run(
    path: Path | str | Mapping[str, Any] | None = None, overrides: Mapping[str, Any] | None = None
) -> Run:
    """The run in a TOML file (``run_file`` finds it) or a table, changed by dotted ``overrides``.

    Overrides are as the command line gives them: ``steps`` is a field of [train],
    ``data.tokenizer`` of [data]; anything else (``decoder.depth``, ``dim``) is a path into the
    model. Raises UserError for what is unknown or does not fit.
    """
    table = (
        dict(path)
        if isinstance(path, Mapping)
        else _table(run_file(path))
        if path is not None
        else {}
    )
    _check_places(table)
    for options in (dict(overrides or {}), table.get("model") or {}):
        has_both = isinstance(options, dict) and {"recipe", "from"} <= {
            name.removeprefix("model.") for name in options
        }
        need(
            not has_both,
            "--from (a trained model) and --recipe (an untrained shape) exclude each "
            "other; give one of them.",
        )
    if isinstance(table.get("model"), dict) and not {"recipe", "from", "type"} & set(
        table["model"]
    ):
        table["model"] = {"recipe": "glass/1m", **table["model"]}
    if isinstance(table.get("data"), dict):
        table["data"] = {"type": "Data", **table["data"]}
    changes = _by_table(overrides or {})
    has_optimizer = False
    if isinstance(table.get("train"), dict):  # optimizer.lr = 1e-3 changes the usual optimizer
        inside = {
            k: v
            for k, v in table["train"].items()
            if k in ("optimizer", "schedule") and _is_untyped(v)
        }
        table["train"] = {k: v for k, v in table["train"].items() if k not in inside}
        changes["train"] = {**inside, **changes["train"]}
        has_optimizer = "optimizer" in table["train"]
    run: Run = serial.from_dict(Run, table)
    longer = (overrides or {}).get("context")
    data, train, model = run.data, run.train, dict(run.model)
    if longer is not None and isinstance(model.get("context"), int) and "from" not in model:
        # one option for both
        model["context"] = max(model["context"], serial.from_dict(int, longer, "context"))
    for name, value in changes["model"].items():
        # a new beginning takes the place of another, and what is said last is done last
        beginning = ("recipe", "from", "type") if name in ("recipe", "from") else ()
        for key in (*beginning, name):
            model.pop(key, None)
        model[name] = value
    if not has_optimizer:
        named = {k: v for k, v in changes["train"].items() if k.partition(".")[0] == "objective"}
        objective = serial.change(train, named, "train").objective
        optimizer = objective.optimizer or default_optimizer(model)
        train = dataclasses.replace(train, optimizer=optimizer)
    other_changes, rate = _split_off_lr(changes["train"])
    data = _with_type(data, changes["data"])
    train = serial.change(train, other_changes, "train")
    if train.objective.trains and train.tune == Full():
        # TopK of bf16 would have ties
        dtype = "float32" if train.dtype == "auto" else train.dtype
        train = dataclasses.replace(train, tune=Frozen(train.objective.trains), dtype=dtype)
    if rate is not None:
        train = dataclasses.replace(train, optimizer=_with_lr(train.optimizer, rate))
    parallel = serial.change(run.parallel, changes["parallel"], "parallel")
    return Run(model, serial.change(data, changes["data"], "data"), train, parallel)


def _check_places(table: Mapping[str, Any]) -> None:
    """UserError for a setting of [train] that stands elsewhere, and for one of [model] that there
    is not."""
    model = table.get("model")
    for place, section in (
        ("outside of any table", table),
        ("in [model]", model if isinstance(model, dict) else {}),
    ):
        for key in section:
            need(
                key not in _names(Train) or key in _MODEL,
                f'"{key}" stands {place}; put it below [train].',
            )
            if section is not table and key.partition(".")[0] not in (*_MODEL, "type"):
                raise UserError(
                    "model: there is no setting "
                    f'"{key}".{nearest(key, (*_MODEL, *settings.paths()))}'
                )


def _by_table(overrides: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Overrides by the table of the run file they belong to; ``lr`` is short for
    ``optimizer.lr``."""
    changes: dict[str, dict[str, Any]] = {"train": {}, "data": {}, "model": {}, "parallel": {}}
    for name, value in overrides.items():
        first, _, inside = name.partition(".")
        if first in changes and inside:
            changes[first][inside] = value
        elif first in _names(Train):
            changes["train"][name] = value
        elif first in _MODEL:
            changes["model"][name] = value
        elif name == "lr":
            changes["train"].pop("optimizer.lr", None)  # so that what is said last counts
            changes["train"]["optimizer.lr"] = value
        else:
            paths = {"out", "resume", "use", "lr", *settings.paths()}
            raise UserError(f'There is no setting "{name}".{nearest(name, paths)}')
    return changes


def _table(file: Path) -> dict[str, Any]:
    """The table of a run file; UserError where it is none."""
    try:
        return files.read_toml(file)
    except UserError:
        if file.suffix == ".toml" or not file.is_file():
            raise
        raise UserError(
            f"{file} is not a run file (TOML); a text to train on is given as --data.train {file}."
        ) from None


def _is_untyped(value: Any) -> bool:
    return isinstance(value, dict) and "type" not in value


def _split_off_lr(changes: Mapping[str, Any]) -> tuple[dict[str, Any], float | None]:
    """Changes to [train] without ``optimizer.lr``, and that learning rate.

    It is None where it is not given, and where ``optimizer.rest.lr`` is given too: then each is
    what it says.
    """
    flat: dict[str, Any] = {}
    for name, value in changes.items():
        flat |= (
            {f"{name}.{key}": v for key, v in value.items()}
            if name == "optimizer" and _is_untyped(value)
            else {name: value}
        )
    adamw = flat.get("optimizer.rest", {})
    alone = "optimizer.rest.lr" not in flat and _is_untyped(adamw) and "lr" not in adamw
    if not alone or "optimizer.lr" not in flat:
        return flat, None
    return flat, serial.from_dict(float, flat.pop("optimizer.lr"), "train.optimizer.lr")


def _with_lr(optimizer: Optimizer, rate: float) -> Optimizer:
    """The optimizer at another learning rate; that of its ``rest`` stays in the same ratio to
    it."""
    try:
        if isinstance(optimizer, AdamW):
            return dataclasses.replace(optimizer, lr=rate)
        adamw = dataclasses.replace(optimizer.rest, lr=optimizer.rest.lr * (rate / optimizer.lr))
        return dataclasses.replace(optimizer, lr=rate, rest=adamw)
    except UserError:
        raise UserError(
            f"The learning rate optimizer.lr is {rate:g}; give one above 0 and well below "
            "1000, such as 1e-3."
        ) from None


def run_files() -> dict[str, Path]:
    """The run files that come with the package, by name: ``demo``, ``compare/sst2-rnn``."""
    home = Path(__file__).parents[1] / "run_files"  # in a wheel
    home = home if home.is_dir() else Path(__file__).parents[3] / "runs"  # in a checkout
    return {
        str(path.relative_to(home).with_suffix("")): path for path in sorted(home.rglob("*.toml"))
    }


def run_file(name: Path | str) -> Path:
    """The run file at a path, else the one of that name that comes with the package: ``demo`` or
    ``runs/demo.toml``.

    Raises UserError, with the nearest name, where there is neither.
    """
    path, packaged = Path(name), run_files()
    short = str(name).removeprefix("runs/").removesuffix(".toml")
    if short in packaged and not path.exists():
        return packaged[short]
    if path.exists() or path.suffix:
        return path
    hint = nearest(short, packaged) or f" Known: {', '.join(packaged)}."
    raise UserError(f'There is no run file "{name}".{hint}')


def _with_type(data: Data | Examples, changes: dict[str, Any]) -> Data | Examples:
    """``data``, or a new one where the changes ask for the other kind."""
    kind = changes.pop("type", type(data).__name__)
    if kind == type(data).__name__:
        return data
    need(
        kind in ("Data", "Examples"),
        f'data.type is "{kind}"; give Data (running text) or Examples.',
    )
    if kind == "Data":
        return Data()
    need(
        "train" in changes,
        'data.type "Examples" needs data.train; name a file, or a file for each part.',
    )
    return Examples(train="-")


def default_optimizer(model: Mapping[str, Any]) -> Optimizer:
    """Returns the optimizer of a run that names none, by the [model] table."""
    if "from" in model:
        return FINETUNE
    if str(model.get("recipe")).startswith("glass/"):
        return FROM_SCRATCH
    return Train().optimizer


def _names(kind: type) -> list[str]:
    return [f.name for f in dataclasses.fields(kind)]


_MODEL = (
    "recipe",
    "from",
    *dict.fromkeys(name for kind in config.Model.__args__ for name in _names(kind)),
)


def model_changes(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings by which ``Run.model`` changes the config it starts from."""
    return {key: value for key, value in model.items() if key not in ("recipe", "from")}
