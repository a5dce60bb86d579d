"""Models of the page: a card without loading, the model loaded at first use."""

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

CancelCheck = Callable[[], None]
"""Raises where nobody waits for the answer any more."""
SHIPPED = "tiny-page"


class NotFound(UserError):
    """A model, run, training or file that does not exist (HTTP 404)."""


def shipped() -> Path:
    """Folder of the small model that the package contains."""
    return Path(str(resources.files(__package__))) / "model"


class Loaded:
    """Model in memory with its tokenizer; ``lock`` serializes its forward passes."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.lock = threading.Lock()
        # scores of its attention heads, once they were measured
        self.heads: dict[str, Any] | None = None
        self.dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        self.digest = digest(model, self.tokenizer)

    @classmethod
    def of(cls, checkpoint: Checkpoint, dtype: str | None, device: str | None) -> Loaded:
        """Loads a model from a checkpoint."""
        from ..nn import device as devices

        place = devices.find(device)
        model = checkpoint.model(dtype=dtype, device=place)
        if dtype is None and place.type == "cpu" and next(model.parameters()).element_size() < 4:
            # a CPU rounds half precision otherwise than it is shown, and is slower in it
            model = model.float()
        return cls(model, checkpoint.tokenizer())

    @contextmanager
    def acquire(self, check: CancelCheck) -> Iterator[None]:
        """Exclusive access to the model; ``check`` is called while waiting."""
        while not self.lock.acquire(timeout=0.05):
            check()
        try:
            check()
            yield
        finally:
            self.lock.release()


def digest(model: Any, tokenizer: Any) -> str:
    """SHA-256 of config, weights and tokenizers."""
    import torch

    from ..config import serial

    hasher = hashlib.sha256(serial.dumps(model.config).encode())
    for name, weight in model.state_dict().items():
        hasher.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        hasher.update(
            memoryview(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        )
    for tokenizer_part in (
        [] if tokenizer is None else dict.fromkeys((tokenizer, tokenizer.for_source))
    ):
        hasher.update(tokenizer_part.fingerprint.encode())
    return f"sha256:{hasher.hexdigest()}"


class Entry:
    """Model of the page: ``id`` in the API, ``title`` as the user named it."""

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
        self.stamp = file_stamp(self.checkpoint)
        self.loaded: Loaded | None = None
        self.lock = threading.Lock()
        self._vocabulary: int | None = None

    def open(self, check: CancelCheck = lambda: None) -> Loaded:
        """Returns the model, loaded at first use and again when its files change. Raises UserError
        as loading does."""
        while not self.lock.acquire(timeout=0.05):
            check()
        try:
            checkpoint = Checkpoint.open(self.name)
            new_stamp = file_stamp(checkpoint)
            if self.loaded is None or new_stamp != self.stamp:
                self.checkpoint, self.loaded = checkpoint, None
                self.loaded = Loaded.of(checkpoint, self.dtype, self.device)
                self.stamp = new_stamp
            return self.loaded
        finally:
            self.lock.release()

    def has_tokenizer(self) -> bool:
        return self.checkpoint.folder is not None and has_tokenizer(self.checkpoint.folder)

    def tokenizer(self) -> Any:
        """Tokenizer, without loading the weights; None if there is none."""
        return self.checkpoint.tokenizer()

    def card(self) -> dict[str, Any]:
        """Description of the model from its config, without loading it."""
        return {
            "name": self.id,
            "title": self.title,
            **card(self.checkpoint.config),
            "labels": list(self.checkpoint.labels),
            "dtype": None if self.loaded is None else self.loaded.dtype,
            "loaded": self.loaded is not None,
        }


class InMemoryEntry(Entry):
    """Model that a caller holds in memory; its files, if any, are ignored."""

    def __init__(self, id: str, checkpoint: Checkpoint, model: Any, tokenizer: Any) -> None:
        super().__init__(id, checkpoint.name, id, None, None, checkpoint)
        self.loaded_pair = model, tokenizer

    def has_tokenizer(self) -> bool:
        return self.loaded_pair[1] is not None

    def tokenizer(self) -> Any:
        return self.loaded_pair[1]

    def open(self, check: CancelCheck = lambda: None) -> Loaded:
        with self.lock:
            self.loaded = self.loaded or Loaded(*self.loaded_pair)
        return self.loaded


def file_stamp(checkpoint: Checkpoint) -> tuple[Any, ...]:
    """Fingerprint of the model's files (names, times, sizes, inodes)."""
    if checkpoint.folder is None:
        return ()
    stamps = []
    for path in sorted(checkpoint.folder.iterdir()):
        with suppress(OSError):
            if path.suffix in (".json", ".safetensors", ".model", ".txt", ".tiktoken"):
                stat = path.stat()
                stamps.append((path.name, stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return (str(checkpoint.folder.resolve()), *stamps)


class ModelSource(Protocol):
    """Source of additional models, such as training checkpoints."""

    def find(self, id: str) -> Entry | None:
        """Returns the model of an id, or None."""

    def entries(self) -> list[Entry]:
        """Models to list."""


class Models:
    """Models by id, in the order of the command line; training checkpoints are ``RUN@STEP``."""

    def __init__(
        self, names: Sequence[str | Path], dtype: str | None = None, device: str | None = None
    ) -> None:
        self.dtype, self.device = dtype, device
        self.entries: dict[str, Entry] = {}
        self.sources: list[ModelSource] = []
        for name in names:
            self.add(name)
        if not names:
            self.add(shipped(), SHIPPED)

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Models:
        """Builds the collection from entries."""
        models = cls.__new__(cls)
        models.dtype, models.device, models.sources = None, None, []
        models.entries = {entry.id: entry for entry in entries}
        return models

    def add(self, name: str | Path, title: str | None = None) -> Entry:
        """Adds a model. Raises UserError where no model is found."""
        plain = Path(name).name if not is_recipe(str(name)) else str(name)
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", title or plain).strip("-.") or "model"
        id = next(
            candidate
            for candidate in (base, *(f"{base}-{n}" for n in range(2, 10_000)))
            if candidate not in self.entries
        )
        entry = self.entries[id] = Entry(id, name, title or str(name), self.dtype, self.device)
        return entry

    def __getitem__(self, id: str) -> Entry:
        if id not in self.entries:
            match = next(
                (entry for source in self.sources if (entry := source.find(id)) is not None), None
            )
            if match is not None:
                return match
            raise NotFound(
                f'There is no model "{id[:80]}" here; there are: {", ".join(self.entries)}.'
            )
        return self.entries[id]

    def cards(self) -> list[dict[str, Any]]:
        """Cards of all models; trainings last, without duplicates of named folders."""
        folders = {
            folder.resolve()
            for entry in self.entries.values()
            if (folder := Path(entry.name)).is_dir()
        }
        found_entries = [entry for source in self.sources for entry in source.entries()]
        extra_entries = [
            entry for entry in found_entries if Path(entry.name).resolve() not in folders
        ]
        return [entry.card() for entry in (*self.entries.values(), *extra_entries)]
