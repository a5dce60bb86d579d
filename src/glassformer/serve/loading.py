"""Models that a server loads from their names, with the probes and the adapters that it serves beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import need, note
from ..core.memory import gibibytes
from ..core.nn import Model
from ..formats.checkpoint import Checkpoint
from ..formats.resolve import GGUF, is_recipe
from ..sight import Probe
from ..sight.tuned_lens import fingerprint
from .asgi.limits import LONGEST_NAME
from .page.models import unique_id
from .served_models import EngineLimits, Registry, ServedModel


def model_id(name: str, taken: Sequence[str]) -> str:
    """Model id: folder, hub or recipe name, with a number if it is taken."""
    is_path = Path(name).exists() and not is_recipe(name)
    plain = Path(name).resolve().name.removesuffix(GGUF) if is_path else name
    return unique_id(plain, taken, "A-Za-z0-9._/-")


def open_models(
    names: Sequence[str],
    bounds: EngineLimits,
    *,
    dtype: str | None = None,
    device: Any = None,
    bits: int | None = None,
    template: Path | None = None,
    ids: Sequence[str] = (),
    directions: Sequence[str] = (),
    adapters: Sequence[str] = (),
) -> Registry:
    """Loads every model; the first ones are called by ``ids``. Each of ``directions``, NAME=FILE, is
    a probe. Each of ``adapters``, NAME=FOLDER, is the first model with a change, called ID:NAME.
    Raises UserError as loading does, and for a probe of another model."""
    check_names(ids, len(names))
    need(all("=" in text for text in directions), "--direction takes NAME=FILE.")
    files = dict(text.split("=", 1) for text in directions)
    probes = {name: replace(Probe.load(file), name=name) for name, file in files.items()}
    taken = list(ids)
    served = list[ServedModel]()
    for name in names[len(ids) :]:
        taken.append(model_id(name, taken))
    options: Any = {"dtype": dtype, "device": device, "bits": bits}
    for id, name in zip(taken, names, strict=True):
        checkpoint = Checkpoint.open(name)
        served.append(ServedModel(id, checkpoint, checkpoint.model(**options), bounds, template))
    for id, folder in _adapter_folders(adapters, taken).items():
        base = served[0]
        checkpoint = base.checkpoint.changed_by(folder)
        model = checkpoint.model(**options)
        count, size = share_weights(model, base.model)
        note(f"{id}: {count:,} of its numbers are not its base's, {gibibytes(size)}")
        served.append(ServedModel(id, checkpoint, model, bounds, template, base))
    prints = {fingerprint(entry.model) for entry in served} if probes else set()
    for probe in probes.values():
        message = f"The probe {probe.name} was fitted to none of these models; serve its model."
        need(probe.model in prints, message)
    for entry in served:
        entry.directions = probes
    return Registry(served)


def _adapter_folders(adapters: Sequence[str], ids: Sequence[str]) -> dict[str, Path]:
    """The folder of each adapter by its id. Raises UserError for a name that is none or is taken."""
    folders = dict[str, Path]()
    for text in adapters:
        name, _, folder = text.partition("=")
        id = f"{ids[0]}:{name}"
        plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) and len(id) <= LONGEST_NAME
        need(
            bool(plain and folder),
            f'--adapter "{text[:80]}" is no NAME=FOLDER; give a name of letters, digits and . _ -, '
            "and the folder of an adapter.",
        )
        need(
            id not in folders and name not in ids,
            f'--adapter "{name}" is the name of another model; each needs its own.',
        )
        folders[id] = Path(folder)
    return folders


def share_weights(model: Model, base: Model) -> tuple[int, int]:
    """Puts a base's parameters in the place of equal ones, so that both are one in memory. Returns
    how many numbers differ, and their bytes."""
    shared = dict(base.named_parameters())
    changed = dict[str, Tensor]()
    for path, weight in model.named_parameters(remove_duplicate=False):
        twin = shared.get(path)
        if twin is None or twin.dtype != weight.dtype or not torch.equal(twin, weight):
            changed[path] = weight
        else:
            owner, _, name = path.rpartition(".")
            setattr(model.get_submodule(owner), name, twin)
    tensors = {id(weight): weight for weight in changed.values()}.values()
    return sum(weight.numel() for weight in tensors), sum(weight.nbytes for weight in tensors)


def check_names(ids: Sequence[str], models: int) -> None:
    """Raises UserError for names that no client could send, for the same twice, and for more names
    than models."""
    need(
        len(ids) <= models,
        f"--name is given {len(ids)} times for {models} models; give it once a model at most.",
    )
    for id in ids:
        plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]*", id) and len(id) <= LONGEST_NAME
        need(
            bool(plain),
            f'--name "{id[:80]}" is no name; give letters, digits and . _ : @ / + '
            "-, a letter first.",
        )
        need(ids.count(id) == 1, f'--name "{id}" is given twice; each model needs its own.')
