"""Models of the page: a card without loading, the model loaded at first use."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...core.errors import UserError, need
from ...core.files import JsonObject
from ...formats.chat_template import find
from ...formats.checkpoint import Checkpoint, has_tokenizer
from ...formats.resolve import MODELS, is_recipe
from ...sight.answers import card, module_card
from ..asgi.limits import LONGEST_NAME
from ..asgi.replies import CancelCheck, HttpError

if TYPE_CHECKING:
    from ...sight.recording.module_trace import ModuleTrace
    from ...sight.recording.outside import Outside

SHIPPED = "tiny-page"
NO_TEXT = 'There is no text; give "text", or "ids".'


def shipped() -> Path:
    """Folder of the small model that the package contains."""
    return MODELS / "tiny"


class FairLock:
    """Lock that goes to whoever has waited longest: one client's passes never overtake another's."""

    def __init__(self) -> None:
        self._queue = list[object]()  # its first holds the lock
        self._condition = threading.Condition()

    @contextmanager
    def acquire(self, check: CancelCheck) -> Iterator[CancelCheck]:
        """Exclusive access; ``check`` is called while waiting. Yields a function for long work to call
        between its passes: those who wait go first."""
        turn = object()

        def wait() -> None:
            check()
            with self._condition:
                while self._queue[0] is not turn:
                    self._condition.wait(0.05)
                    check()

        def leave() -> None:
            with self._condition:
                self._queue.remove(turn)
                self._condition.notify_all()

        def give_way() -> None:
            with self._condition:
                self._queue.append(turn)
            leave()
            wait()

        self._queue.append(turn)
        try:
            wait()
            yield give_way
        finally:
            leave()


class Loaded:
    """Model in memory with its tokenizer; ``lock`` serializes its forward passes."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.lock = FairLock()
        dtypes = (str(weight.dtype) for weight in model.parameters())
        self.dtype = next(dtypes, "torch.float32").removeprefix("torch.")
        self.bytes: int = sum(weight.nbytes for weight in model.parameters())
        self.digest = digest(model, tokenizer)

    @classmethod
    def of(cls, checkpoint: Checkpoint, dtype: str | None, device: str | None) -> Loaded:
        """Loads a model from a checkpoint."""
        from ...fast import device as devices

        place = devices.find(device)
        model = checkpoint.model(dtype=dtype, device=place)
        if dtype is None and place.type == "cpu" and next(model.parameters()).element_size() < 4:
            # a CPU rounds half precision otherwise than it is shown, and is slower in it
            model = model.float()
        return cls(model, checkpoint.tokenizer())

    def acquire(self, check: CancelCheck) -> AbstractContextManager[CancelCheck]:
        """Exclusive access to the model."""
        return self.lock.acquire(check)

    def encode(self, text: Any, source: bool, cut: bool) -> tuple[Any, int]:
        """Token ids (1, T) of a text or of ids, and the number of tokens truncated to fit the
        context."""
        import torch

        from ...sight.inputs import text_frame, token_ids
        from ...sight.streams import blanks_masked

        model, tokenizer, cfg = self.model, self.tokenizer, self.model.config
        is_target = cfg.has_source and not source
        need(text is not None, NO_TEXT)
        if isinstance(text, str):
            if tokenizer is None:
                raise UserError(
                    "This model has no tokenizer, so text cannot be read; give ids, or a model "
                    "with one."
                )
            text = blanks_masked(model, tokenizer, text)
        if isinstance(text, str):
            reader, before, after = text_frame(cfg, tokenizer, is_target)
            text = [*before, *reader.encode(text), *after]
        ids = torch.tensor([text], dtype=torch.long)
        truncated = max(0, len(text) - cfg.context) if cut else 0
        return token_ids(model, tokenizer, ids, is_target, truncate=cut), truncated

    def trace(self, tokens: Any, source: Any, hooks: Any, check: CancelCheck) -> ModuleTrace:
        """Traces a forward pass; ``check`` is called at each named value and may raise."""
        from ...sight.recording.trace import Trace

        return Trace(self.model, self.tokenizer, tokens, source, hooks, check=check)


class RecordedModel(Loaded):
    """Model that is not ours, in memory: its passes are recorded, and nothing else is known of
    it."""

    def __init__(self, outside: Outside) -> None:
        self.outside = outside
        self.context: int = module_card(outside.module, None)["context"]
        super().__init__(outside.module, outside.tokenizer)

    @property
    def model(self) -> Any:
        raise UserError(
            "This is for models of Glassformer's own families, and this one was opened by its own "
            "code: it shows what its passes compute."
        )

    @model.setter
    def model(self, module: Any) -> None:
        self.module = module

    def encode(self, text: Any, source: bool, cut: bool) -> tuple[Any, int]:
        need(text is not None, NO_TEXT)
        is_target = self.outside.is_pair and not source
        ids = self.outside.ids(text, is_target)
        truncated = max(0, ids.shape[1] - self.context) if cut else 0
        return ids[:, : self.context] if cut else ids, truncated

    def trace(self, tokens: Any, source: Any, hooks: Any, check: CancelCheck) -> ModuleTrace:
        return self.outside.read(tokens, source)


def digest(model: Any, tokenizer: Any) -> str:
    """SHA-256 of config, weights and tokenizers."""
    import torch

    from ...core.config import serial
    from ...core.nn import Model

    is_ours = isinstance(model, Model)
    hasher = hashlib.sha256((serial.dumps(model.config) if is_ours else repr(model)).encode())
    for name, weight in model.state_dict().items():
        hasher.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        raw = weight.detach().cpu().contiguous().flatten().view(torch.uint8)
        hasher.update(memoryview(raw.numpy()))
    if tokenizer is not None:
        for side in dict.fromkeys((tokenizer, tokenizer.for_source)):
            hasher.update(side.fingerprint.encode())
    return f"sha256:{hasher.hexdigest()}"


class ModelEntry:
    """Model that a server offers: ``id`` in requests, ``title`` as the user named it; ``heads`` are
    the scores of its attention heads, once they were measured."""

    heads: JsonObject | None = None

    def __init__(
        self,
        id: str,
        name: str | Path,
        title: str,
        dtype: str | None = None,
        device: str | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.id = id
        self.name = name
        self.title = title
        self.dtype = dtype
        self.device = device
        self.checkpoint = checkpoint or Checkpoint.open(name)
        self.stamp = self.checkpoint.stamp
        self.loaded: Loaded | None = None
        self.lock = FairLock()

    def open(self, check: CancelCheck = lambda: None) -> Loaded:
        """Returns the model, loaded at first use and again when its files change. Raises UserError
        as loading does."""
        with self.lock.acquire(check):
            checkpoint = Checkpoint.open(self.name)
            loaded = self.loaded  # which another thread may take out meanwhile
            if loaded is None or checkpoint.stamp != self.stamp:
                self.checkpoint = checkpoint
                if checkpoint.stamp != self.stamp:
                    self.heads = None
                loaded = self.loaded = None
                loaded = self.loaded = Loaded.of(checkpoint, self.dtype, self.device)
                self.stamp = checkpoint.stamp
            return loaded

    def has_tokenizer(self) -> bool:
        return self.checkpoint.folder is not None and has_tokenizer(self.checkpoint.folder)

    def open_tokenizer(self) -> Any:
        """Tokenizer, without loading the weights; None if there is none."""
        return Checkpoint.open(self.name).tokenizer()

    def chat_template(self) -> str | None:
        """The template that makes one text of a conversation; None of a base model."""
        folder = self.checkpoint.folder
        return None if folder is None or self.checkpoint.config.has_source else find(folder)

    def card(self) -> JsonObject:
        """Description of the model from its config, without loading it."""
        facts = card(self.checkpoint.config)
        loaded = self.loaded
        with suppress(UserError):  # of a folder whose files are broken
            facts["abilities"]["chat"] = self.chat_template() is not None
        return {
            "name": self.id,
            "title": self.title,
            **facts,
            "labels": list(self.checkpoint.labels),
            "dtype": None if loaded is None else loaded.dtype,
            "loaded": loaded is not None,
        }


class InMemoryEntry(ModelEntry):
    """Model that a caller holds in memory; its files, if any, are ignored."""

    def __init__(self, id: str, checkpoint: Checkpoint, model: Any, tokenizer: Any) -> None:
        super().__init__(id, checkpoint.name, id, checkpoint=checkpoint)
        self.model = model
        self.tokenizer = tokenizer

    def has_tokenizer(self) -> bool:
        return self.tokenizer is not None

    def open_tokenizer(self) -> Any:
        return self.tokenizer

    def chat_template(self) -> str | None:
        return self.tokenizer.chat_template if self.tokenizer else None

    def open(self, check: CancelCheck = lambda: None) -> Loaded:
        with self.lock.acquire(check):
            self.loaded = self.loaded or Loaded(self.model, self.tokenizer)
            return self.loaded


class RecordedEntry(InMemoryEntry):
    """Model that is not ours, in memory."""

    def __init__(self, title: str, outside: Outside) -> None:
        self.id = self.name = Path(title).name
        self.title, self.stamp, self.lock = title, (), FairLock()
        self.outside, self.tokenizer = outside, outside.tokenizer
        self.loaded = RecordedModel(outside)

    def card(self) -> JsonObject:
        module, tokenizer = self.outside.module, self.tokenizer
        sizes = module_card(module, tokenizer, source=self.outside.is_pair, attention=True)
        card = {"name": self.id, "title": self.title, **sizes, "labels": [], "loaded": True}
        return {**card, "dtype": self.open().dtype}


def unique_id(name: str, taken: Container[str], allowed: str = "A-Za-z0-9._-") -> str:
    """``name`` in the characters that an id may have, with a number if it is taken."""
    base = re.sub(f"[^{allowed}]+", "-", name).strip("-./")[:LONGEST_NAME] or "model"
    candidates = (base, *(f"{base}-{number}" for number in range(2, 10_000)))
    return next(id for id in candidates if id not in taken)


class ModelSource(Protocol):
    """Source of additional models, such as training checkpoints."""

    def find(self, id: str) -> ModelEntry | None:
        """Returns the model of an id, or None."""

    def listed(self) -> list[ModelEntry]:
        """Models to list."""


class Models:
    """Models by id, in the order of the command line; training checkpoints are ``RUN@STEP``."""

    def __init__(
        self,
        models: Sequence[ModelEntry | str | Path],
        dtype: str | None = None,
        device: str | None = None,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.entries: dict[str, ModelEntry] = {}
        self.sources: list[ModelSource] = []
        homes = {SHIPPED: shipped()} | {path.name: path for path in sorted(MODELS.glob("tiny-*"))}
        usual = [ModelEntry(name, home, name, dtype, device) for name, home in homes.items()]
        for model in models or usual:
            if not isinstance(model, ModelEntry):
                plain = str(model) if is_recipe(str(model)) else Path(model).name
                model = ModelEntry(unique_id(plain, self.entries), model, str(model), dtype, device)
            model.id = unique_id(model.id, self.entries)
            self.entries[model.id] = model

    def __getitem__(self, id: str) -> ModelEntry:
        if id in self.entries:
            return self.entries[id]
        for source in self.sources:
            entry = source.find(id)
            if entry is not None:
                return entry
        message = f'There is no model "{id[:80]}" here; there are: {", ".join(self.entries)}.'
        raise HttpError(404, message, "model", "model_not_found")

    def cards(self) -> list[JsonObject]:
        """Cards of all models; trainings last, without duplicates of named folders."""
        entries = [*self.entries.values()]
        folders = {Path(entry.name).resolve() for entry in entries}
        for source in self.sources:
            entries += [
                entry for entry in source.listed() if Path(entry.name).resolve() not in folders
            ]
        return [entry.card() for entry in entries]
