"""Checkpoints: a model folder with the state of training beside the weights; whole or absent.

DIR/step-000500/  config.json model.safetensors tokenizer.json   a model that anything can load
                  state.json state.safetensors                   what training needs to go on, bit for bit
                  SHA256SUMS                                     what all of these must be (`sha256sum -c` reads it)
DIR/last, DIR/best                                               one line: the name of such a folder
"""

from __future__ import annotations

import json
import math
import operator
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from ..core import files
from ..core.checkpoints import tensors as tensorfiles
from ..core.config import serial
from ..core.errors import UserError, need
from ..core.training.loop import State
from ..families.differences import differences
from ..formats import store, tuning
from ..formats.checkpoint import ANOTHER, SUMS, Checkpoint, verify
from ..scale import shares
from ..scale.place import share_of
from ..scale.shard import cuts_of, place_in
from ..scale.shared_batches import mesh_of

STEP = re.compile(r"step-(\d{6,})")
NUMBERS = ("step", "tokens", "skipped_in_a_row", "best_step", "frozen_digest")
"""Fields of ``State`` that state.json holds as they are."""
_json_value = operator.methodcaller("tolist")  # numpy's numbers and arrays as JSON holds them
LEFTOVERS = re.compile(rf"\.({STEP.pattern}|last|best|(run|log|curves)\.\w+)\.(.+\.)?(part|old)")


def save(folder: Path, state: State, tokenizer: Any = None, source_tokenizer: Any = None) -> Path:
    """Write ``folder/step-NNNNNN`` and point ``folder/last`` at it, ``folder/best`` at the best."""
    path = write(folder, state, tokenizer, source_tokenizer)
    point(folder, state)
    return path


def write(folder: Path, state: State, tokenizer: Any = None, source_tokenizer: Any = None) -> Path:
    """Write ``folder/step-NNNNNN``.

    A checkpoint of this step that is there already stays. Raises UserError when a weight is not
    finite or the disk is full; what was saved before still stands.
    """
    path, mesh = folder / _name(state.step), mesh_of(state)
    if not mesh.first(path.exists()):
        with mesh.agreeing():
            for name, tensor in state.model.named_parameters():
                local = tensor if not hasattr(tensor, "to_local") else tensor.to_local()
                if not bool(torch.isfinite(local).all()):
                    raise UserError(
                        f'The weights of "{name}" are not finite; nothing was saved, use the '
                        "last checkpoint."
                    )
        with shares.write_folder(path, mesh) as beside:
            named: dict[str, Any] = {
                "labels": state.labels,
                "base": state.base_model,
                "source_tokenizer": source_tokenizer,
            }
            joined = [name for name, _ in tuning.trained(state.model)] if state.base_model else []
            with (
                shares.gathered_weights(state.model, joined, mesh),
                shares.uncut(state.model, mesh) as filled,
            ):
                contents = store.contents_of(state.model, tokenizer, "glassformer", **named)
                shares.write(beside, filled(contents), mesh)
            tensors: dict[str, Any] = state.optimizer.state()
            numbers = {name: getattr(state, name) for name in NUMBERS}
            numbers["best"] = state.best if math.isfinite(state.best) else None
            numbers["batches"] = state.batches.state()
            # an adapter's or a dictionary's own file names its tensors as others do
            if tuning.adapted(state.model) or "features" in state.model._modules:
                cuts = cuts_of(state.model)
                for name, weight in tuning.trained(state.model):
                    tensors[f"weight:{name}"] = (
                        share_of(weight, mesh, cuts.get(name)) or weight.detach()
                    )
            (content,) = tensorfiles.contents(tensorfiles.plain(tensors), limit=1 << 62).values()
            written = {
                "state.safetensors": content,
                "state.json": json.dumps(numbers, default=_json_value) + "\n",
            }
            shares.write(beside, written, mesh)
            with mesh.agreeing():
                if mesh.is_first and tokenizer is not None:
                    tokenizer.save(beside)
            digests = shares.sums(beside, mesh)
            shares.write(
                beside,
                {SUMS: "".join(f"{digest}  {name}\n" for name, digest in digests.items())},
                mesh,
            )
    return path


def point(folder: Path, state: State) -> None:
    """Write the files ``last`` and ``best`` from ``state``: a killed process may have left them
    stale.

    Where the best checkpoint was removed, the next validation is the best.
    """
    mesh = mesh_of(state)
    with mesh.agreeing():
        if mesh.is_first:
            if state.best_step is not None and not (folder / _name(state.best_step)).is_dir():
                state.best, state.best_step = math.inf, None
                (folder / "best").unlink(missing_ok=True)
            for pointer, step in (("best", state.best_step), ("last", state.step)):
                if step is not None:
                    files.write(folder / pointer, _name(step) + "\n")
    state.best, state.best_step = mesh.first([state.best, state.best_step])


def restore(path: Path, state: State) -> dict[str, Any]:
    """Put a checkpoint's weights, optimizer, and cursor in place; the numbers in its state.json.

    Raises UserError when it is broken or another model's; ``state`` may then be half filled: build
    it anew.
    """
    mesh = mesh_of(state)
    with mesh.agreeing():
        saved_state = verified(path) if mesh.is_first else read_json(path / "state.json")
    differs = difference(
        serial.to_dict(Checkpoint.open(path).config), serial.to_dict(state.model.config)
    )
    need(
        not differs,
        f"{path} is a checkpoint of another model: {differs}; give the same config "
        "or another folder.",
    )
    saved_digest = saved_state.get("frozen_digest")
    sums = saved_digest is not None and ":" not in saved_digest  # of a version before: no hash
    need(
        saved_digest == state.frozen_digest or sums,
        f"{state.base_model} has other weights than when {path} was made; restore the weights "
        "that the run started from.",
    )
    saved_state["frozen_digest"] = state.frozen_digest
    state_file = tensorfiles.open_file(path / "state.safetensors")
    names = [name for name in state_file.entries if not name.startswith("weight:")]
    weights = {
        name[7:]: (state_file, name) for name in state_file.entries if name.startswith("weight:")
    }
    if not weights:
        weight_files = tensorfiles.open_files(path)
        weights = {name: (weight_files, name) for name in weight_files.entries}
    parameters: dict[str, Any] = dict(
        state.model.named_parameters() if state.base_model is None else tuning.trained(state.model)
    )
    places = {name: place_in(state.model, name, mesh) for name in parameters}
    model_shapes = {
        name: list((places[name] or weight).shape) for name, weight in parameters.items()
    }
    saved_shapes = {name: list(file.entries[key].shape) for name, (file, key) in weights.items()}
    differs = difference(saved_shapes, model_shapes)
    need(
        not differs,
        f"{path} holds another model's weights: the shape of {differs}; use another checkpoint.",
    )
    with torch.no_grad():
        for name, weight in parameters.items():
            value: Any = shares.read_share(*weights[name], places[name])
            if places[name] is not None:
                weight.to_local().copy_(value.numbers)
            else:
                weight.copy_(value)
    state.optimizer.restore(
        {name: shares.read_share(state_file, name, state.optimizer.place(name)) for name in names}
    )
    try:
        for name in NUMBERS:
            setattr(state, name, saved_state[name])
        state.best = math.inf if saved_state["best"] is None else saved_state["best"]
        state.batches.restore(saved_state["batches"])
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path / 'state.json'} lacks {error}; it is damaged, use another checkpoint."
        ) from None
    return saved_state


def newest(folder: Path) -> Path | None:
    """The checkpoint of the highest step; None where nothing was saved."""
    return next(reversed(steps(folder)), None)


def steps(folder: Path) -> list[Path]:
    """The checkpoints of a run folder, oldest first."""
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted(
        (path for path in entries if STEP.fullmatch(path.name) and path.is_dir()), key=number
    )


def number(path: Path) -> int:
    """The step at which a checkpoint was made."""
    return int(path.name[5:])


def rotate(folder: Path, keep: int, save_at: Collection[int] = ()) -> None:
    """Remove all checkpoints but the newest ``keep``, those of the steps ``save_at``, and those that
    ``last`` and ``best`` name."""
    named = {
        (folder / name).read_text().strip() for name in ("last", "best") if (folder / name).exists()
    }
    for path in [path for path in steps(folder) if number(path) not in save_at][:-keep]:
        if path.name not in named:
            # half a checkpoint never bears a good name
            gone = path.rename(path.with_name(f".{path.name}.old"))
            shutil.rmtree(gone, ignore_errors=True)


def tidy(folder: Path) -> None:
    """Remove what a killed process left half-written, and nothing of the user's; call it with the
    folder locked."""
    for path in folder.glob(".*"):
        if LEFTOVERS.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(
                missing_ok=True
            )


def average(folder: Path, last: int) -> tuple[Any, Any]:
    """A model of the mean weights of a run's ``last`` checkpoints, in fp32, and the tokenizer of
    the newest.

    Raises UserError where fewer are kept or one is damaged. (Vaswani et al. 2017, section 6.1)
    """
    need(last > 0, f"--last is {last}; give a number of checkpoints above 0.")
    paths = steps(folder)
    need(bool(paths), f"{folder} holds no checkpoints; give the folder of a run.")
    count = "1 checkpoint" if len(paths) == 1 else f"{len(paths)} checkpoints"
    need(
        last <= len(paths),
        f"{folder} keeps {count}; give --last {len(paths)}, or train with --keep {last}.",
    )
    newest = paths[-1]
    model, tokenizer = store.load(newest, dtype=torch.float32, mapped=False)
    mean = dict(model.named_parameters())
    with torch.no_grad():
        for path in paths[-last:-1]:
            weights = dict(store.load(path, dtype=torch.float32)[0].named_parameters())
            matching = {n: w.shape for n, w in weights.items()} == {
                n: w.shape for n, w in mean.items()
            }
            need(
                matching,
                f"{path} holds another model than {newest}; give the folder of one run.",
            )
            torch._foreach_add_(list(mean.values()), [weights[name] for name in mean])
        torch._foreach_div_(list(mean.values()), last)
    return model, tokenizer


def difference(saved: Any, current: Any, path: str = "") -> str | None:
    """The first place where two nested values differ, in words; None when they are equal."""
    first = next(differences(saved, current, path), None)
    return first and f"{first[0] or 'it'} is {_short(first[1])} there and {_short(first[2])} here"


def _short(value: Any) -> str:
    return (
        value["type"]
        if isinstance(value, dict) and "type" in value
        else json.dumps(value, default=_json_value)[:60]
    )


def _name(step: int) -> str:
    return f"step-{step:06d}"


def verified(path: Path) -> dict[str, Any]:
    """The numbers in a checkpoint's state.json; UserError unless each of its files is what was
    written."""
    need((path / SUMS).is_file(), f"{path / SUMS} is missing; {ANOTHER}.")
    verify(path)
    return read_json(path / "state.json")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a run folder; UserError when it is damaged."""
    return files.read_json(path, "use another checkpoint of the folder")
