"""The models that the page offers: a card of each without loading it; the model itself when it is
first asked for."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from ..checkpoints.checkpoint import Checkpoint, has_tokenizer
from ..checkpoints.resolve import is_recipe
from ..errors import UserError
from ..inspection.answers import card

Check = Callable[[], None]
"""Raises where nobody waits for the answer any more."""
SHIPPED = "tiny-page"


class Missing(UserError):
    """What was asked for is not here (any more)."""


def shipped() -> Path:
    """The folder of the small model that comes with the package."""
    return Path(str(resources.files(__package__))) / "model"


class Loaded:
    """A model in memory with its tokenizer; ``lock`` is held by whoever runs it."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.lock = threading.Lock()
        # scores of its attention heads, once they were measured
        self.heads: dict[str, Any] | None = None
        self.dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        self.digest = digest(model, self.tokenizer)

    @classmethod
    def of(cls, checkpoint: Checkpoint, dtype: str | None, device: str | None) -> Loaded:
        """Read from a checkpoint."""
        from ..nn import device as devices

        place = devices.find(device)
        model = checkpoint.model(dtype=dtype, device=place)
        if dtype is None and place.type == "cpu" and next(model.parameters()).element_size() < 4:
            # a CPU rounds half precision otherwise than it is shown, and is slower in it
            model = model.float()
        return cls(model, checkpoint.tokenizer())

    @contextmanager
    def held(self, check: Check) -> Iterator[None]:
        """The model for oneself; ``check`` is asked while one waits."""
        while not self.lock.acquire(timeout=0.05):
            check()
        try:
            check()
            yield
        finally:
            self.lock.release()


def digest(model: Any, tokenizer: Any) -> str:
    """The SHA-256 of the config, every weight and the tokenizers."""
    import torch

    from ..config import serial

    whole = hashlib.sha256(serial.dumps(model.config).encode())
    for name, weight in model.state_dict().items():
        whole.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        whole.update(
            memoryview(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        )
    for one in [] if tokenizer is None else dict.fromkeys((tokenizer, tokenizer.for_source)):
        whole.update(one.fingerprint.encode())
    return f"sha256:{whole.hexdigest()}"


class Entry:
    """One offered model: ``id`` is what a browser calls it, ``title`` what the user called it."""

    def __init__(
        self,
        id: str,
        name: str | Path,
        title: str,
        dtype: str | None,
        device: str | None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.id, self.name, self.title, self.dtype, self.device = id, name, title, dtype, device
        self.checkpoint = checkpoint or Checkpoint.open(name)
        self.stamp = stamp(self.checkpoint)
        self.loaded: Loaded | None = None
        self.turn = threading.Lock()
        self._vocabulary: int | None = None

    def open(self, check: Check = lambda: None) -> Loaded:
        """The model, loaded, or loaded anew where its files have changed. Raises UserError as
        loading does."""
        while not self.turn.acquire(timeout=0.05):
            check()
        try:
            checkpoint = Checkpoint.open(self.name)
            now = stamp(checkpoint)
            if self.loaded is None or now != self.stamp:
                self.checkpoint, self.loaded = checkpoint, None
                self.loaded = Loaded.of(checkpoint, self.dtype, self.device)
                self.stamp = now
            return self.loaded
        finally:
            self.turn.release()

    def has_tokenizer(self) -> bool:
        """Whether one lies beside the model."""
        return self.checkpoint.folder is not None and has_tokenizer(self.checkpoint.folder)

    def tokenizer(self) -> Any:
        """Its tokenizer, without its weights; None where it has none."""
        return self.checkpoint.tokenizer()

    def card(self) -> dict[str, Any]:
        """What the page shows of it before it is loaded."""
        return {
            "name": self.id,
            "title": self.title,
            **card(self.checkpoint.config),
            "labels": list(self.checkpoint.labels),
            "dtype": None if self.loaded is None else self.loaded.dtype,
            "loaded": self.loaded is not None,
        }


class HeldEntry(Entry):
    """A model that somebody else holds in memory, whatever becomes of its files, if it has any."""

    def __init__(self, id: str, checkpoint: Checkpoint, model: Any, tokenizer: Any) -> None:
        super().__init__(id, checkpoint.name, id, None, None, checkpoint)
        self.held = model, tokenizer

    def has_tokenizer(self) -> bool:
        return self.held[1] is not None

    def tokenizer(self) -> Any:
        return self.held[1]

    def open(self, check: Check = lambda: None) -> Loaded:
        with self.turn:
            self.loaded = self.loaded or Loaded(*self.held)
        return self.loaded


def stamp(checkpoint: Checkpoint) -> tuple[Any, ...]:
    """What changes when a model's files are replaced."""
    if checkpoint.folder is None:
        return ()
    found = []
    for path in sorted(checkpoint.folder.iterdir()):
        with suppress(OSError):
            if path.suffix in (".json", ".safetensors", ".model", ".txt", ".tiktoken"):
                told = path.stat()
                found.append((path.name, told.st_mtime_ns, told.st_size, told.st_ino))
    return (str(checkpoint.folder.resolve()), *found)


class Finder(Protocol):
    """Who knows of more models."""

    def find(self, id: str) -> Entry | None:
        """The model of that id, None where there is none."""

    def found(self) -> list[Entry]:
        """Those to be listed."""


class Models:
    """Every offered model by its id, in the order given; checkpoints of runs come as
    ``RUN@STEP``."""

    def __init__(
        self, names: Sequence[str | Path], dtype: str | None = None, device: str | None = None
    ) -> None:
        self.dtype, self.device = dtype, device
        self.entries: dict[str, Entry] = {}
        self.finders: list[Finder] = []
        for name in names:
            self.add(name)
        if not names:
            self.add(shipped(), SHIPPED)

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Models:
        """Those and no others."""
        made = cls.__new__(cls)
        made.dtype, made.device, made.finders = None, None, []
        made.entries = {one.id: one for one in entries}
        return made

    def add(self, name: str | Path, title: str | None = None) -> Entry:
        """Offer one more. Raises UserError where no model is described there."""
        plain = Path(name).name if not is_recipe(str(name)) else str(name)
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", title or plain).strip("-.") or "model"
        id = next(
            one
            for one in (base, *(f"{base}-{n}" for n in range(2, 10_000)))
            if one not in self.entries
        )
        entry = self.entries[id] = Entry(id, name, title or str(name), self.dtype, self.device)
        return entry

    def __getitem__(self, id: str) -> Entry:
        if id not in self.entries:
            found = next(
                (entry for one in self.finders if (entry := one.find(id)) is not None), None
            )
            if found is not None:
                return found
            raise Missing(
                f'There is no model "{id[:80]}" here; there are: {", ".join(self.entries)}.'
            )
        return self.entries[id]

    def cards(self) -> list[dict[str, Any]]:
        """A card of each; those that others know of (trainings) at the end, without what was given
        by name too."""
        given = {
            folder.resolve()
            for entry in self.entries.values()
            if (folder := Path(entry.name)).is_dir()
        }
        found = [entry for one in self.finders for entry in one.found()]
        others = [entry for entry in found if Path(entry.name).resolve() not in given]
        return [entry.card() for entry in (*self.entries.values(), *others)]
