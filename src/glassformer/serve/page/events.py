"""Training runs, followed through the log files in their folders.

A training only appends lines to its log, so it can run in a terminal or on another machine with a
shared disk, and this server may start before or after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core import files
from ...core.config.run import PAUSE, PAUSED, STOP
from ...core.errors import UserError, need
from ...core.files import JsonObject
from ..asgi.event_stream import format_event
from ..asgi.limits import LONGEST_NAME
from ..asgi.replies import CancelCheck, not_found
from . import run_records
from .fields import PageFields, PauseFields, RunFields, SeriesFields
from .models import ModelEntry, Models, unique_id
from .tail import MAX_STEP, LogTail

if TYPE_CHECKING:
    from .runs import TraceCache

LOG_FILE = "log.jsonl"
RUN_FILE = "run.json"
IDLE_SECONDS = 60.0  # seconds without a line after which a training no longer counts as running
POLL_SECONDS = 0.5  # seconds between looks at the logs of a stream
HEARTBEAT_SECONDS = 15.0  # seconds after which a silent stream says that it lives
MAX_ROWS = 2000  # rows of a log in an answer
MAX_LOADED = 4  # checkpoints that stay in memory
PROBE_TEXT = "The king said to the queen that"
# objectives whose loss is that of guessing a token
TOKEN_OBJECTIVES = {"Causal", "Prefix", "Masked", "Span", "Seq2Seq"}


class Trainings:
    """Training runs in ``folder``: a run folder, or the parent of several; it may not exist yet."""

    def __init__(self, folder: Path | None, models: Models) -> None:
        self.folder = folder
        self.models = models
        self._tails: dict[Path, LogTail] = {}
        self._entries: OrderedDict[str, ModelEntry] = OrderedDict()
        self._lock = threading.Lock()
        models.sources.append(self)

    def folders(self) -> dict[str, Path]:
        """Run folders by name in the API."""
        if self.folder is None or not self.folder.is_dir():
            return {}
        folders = [self.folder] if is_run(self.folder) else []
        if not folders:
            with contextlib.suppress(OSError):
                folders = sorted(filter(is_run, self.folder.iterdir()))
        by_name: dict[str, Path] = {}
        for path in folders[:200]:
            names = {*by_name, *self.models.entries}  # a training is a model too
            by_name[unique_id(path.resolve().name, names)] = path
        return by_name

    def _path(self, name: str) -> Path:
        folders = self.folders()
        if name not in folders:
            names = ", ".join(folders) or "none"
            raise not_found(f'There is no training "{name[:80]}" here; there are: {names}.')
        return folders[name]

    def _tail(self, path: Path) -> LogTail:
        with self._lock:
            return self._tails.setdefault(path, LogTail(path / LOG_FILE))

    def listing(self, fields: PageFields, check: CancelCheck) -> list[JsonObject]:
        """A card of each training: its settings, how far it is, its checkpoints as models."""
        return [self._card(name, path) for name, path in self.folders().items()]

    def _card(self, name: str, path: Path) -> JsonObject:
        tail = self._tail(path)
        with tail.lock:
            tail.update()
            rows = tail.rows
            step = int(tail.columns["step"][-1]) if rows else 0
            spent = tail.columns["seconds"][-1] if "seconds" in tail.columns else 0.0
        settings: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, RecursionError):
            settings = json.loads(files.read_bytes(path / RUN_FILE))
        steps = _setting(settings, "train", "steps")
        objective = _setting(settings, "train", "objective", "type")
        vocab = _setting(settings, "model", "embed", "vocab")
        # of a damaged run file nothing is answered that the page does not know
        steps = steps if type(steps) is int and abs(steps) < MAX_STEP else None
        objective = objective[:LONGEST_NAME] if isinstance(objective, str) else None
        chance = None
        if objective in TOKEN_OBJECTIVES and isinstance(vocab, int) and vocab > 1:
            chance = math.log(vocab)
        age = file_age(path / LOG_FILE)
        saved_steps = [*checkpoints(path)]
        pause_requested, paused_seconds = _pause(path)
        if age is not None and paused_seconds is not None:
            age = min(age, paused_seconds)
        done = steps is not None and step >= steps
        is_stale = age is not None and age > max(3.0, 3 * spent)
        # it was saved, and nothing came
        has_ended = saved_steps[-1:] == [step] and is_stale and paused_seconds is None
        return {
            "name": name,
            "title": str(path),
            "step": step,
            "steps": steps,
            "rows": rows,
            "age_s": age,
            "live": age is not None and age < IDLE_SECONDS and not done and not has_ended,
            "done": done,
            "objective": objective,
            "chance": chance,
            "stopping": (path / STOP).is_file(),
            "pausing": pause_requested and paused_seconds is None,
            "paused": paused_seconds is not None and paused_seconds < IDLE_SECONDS,
            "samples": run_records.size(path / run_records.SAMPLES),
            "routing": run_records.size(path / run_records.ROUTING),
            "checkpoints": [{"step": saved, "model": f"{name}@{saved}"} for saved in saved_steps],
        }

    # ---------------------------------------------------------------- checkpoints as models

    def find(self, id: str) -> ModelEntry | None:
        """The model ``RUN`` (its best, else its last checkpoint) or ``RUN@STEP``; None where there
        is none."""
        name, at, step = id.partition("@")
        path = self.folders().get(name)
        saved = {} if path is None else checkpoints(path)
        is_step = re.fullmatch("[0-9]{1,12}", step) is not None
        if path is None or (at and not (is_step and int(step) in saved)):
            return None
        folder = path
        title = str(path)
        if at:
            folder = saved[int(step)]
            title = f"{path.resolve().name} at step {int(step):,}"
        with self._lock:
            # a new folder can take over the name of another
            if id not in self._entries or self._entries[id].name != folder:
                self._entries.pop(id, None)
                with contextlib.suppress(UserError):
                    self._entries[id] = ModelEntry(
                        id, folder, title, self.models.dtype, self.models.device
                    )
            if id in self._entries:
                self._entries.move_to_end(id)
            loaded = [entry for entry in self._entries.values() if entry.loaded is not None]
            for entry in loaded[:-MAX_LOADED]:
                entry.loaded = None
            return self._entries.get(id)

    def listed(self) -> list[ModelEntry]:
        """A model for each training that has a checkpoint."""
        names = [name for name, path in self.folders().items() if checkpoints(path)]
        return [entry for name in names if (entry := self.find(name)) is not None]

    # ----------------------------------------------------------------------- a training's routes

    def series(self, fields: SeriesFields, check: CancelCheck, name: str) -> JsonObject:
        """Numbers of a training from row ``since`` on, in at most ``most`` buckets."""
        return self._series(name, fields.since, fields.most)

    def _series(self, name: str, since: int, max_rows: int) -> JsonObject:
        return {"name": name, **self._tail(self._path(name)).series(since, max_rows)}

    def samples(self, fields: PageFields, check: CancelCheck, name: str) -> list[JsonObject]:
        """Samples generated during the training."""
        return run_records.samples(self._path(name))

    def routing(self, fields: PageFields, check: CancelCheck, name: str) -> list[JsonObject]:
        """Expert routing of the validations."""
        return run_records.routing(self._path(name))

    def stop(self, fields: PageFields, check: CancelCheck, name: str) -> JsonObject:
        """Asks a running training, by a file in its folder, to save and end after the current
        step."""
        files.write(self._live(name) / STOP, "The page asked this training to save and end.\n")
        return {"name": name, "asked": True}

    def pause(self, fields: PauseFields, check: CancelCheck, name: str) -> JsonObject:
        """Asks a running training, by a file in its folder, to pause after the current step, or to
        resume."""
        path = self._path(name)
        if not fields.paused:
            (path / PAUSE).unlink(missing_ok=True)
        # what a training that waits has written there stays
        elif not (self._live(name) / PAUSE).is_file():
            files.write(path / PAUSE, "The page asked this training to wait.\n")
        return {"name": name, "asked": True}

    def _live(self, name: str) -> Path:
        """Folder of a running training. Raises UserError for one that is not running."""
        path = self._path(name)
        need(self._card(name, path)["live"], f'The training "{name}" is not running.')
        return path

    def probe(self, runs: TraceCache, name: str, text: str, check: CancelCheck) -> JsonObject:
        """Runs one text through the latest checkpoints; returns a run id for each."""
        path = self._path(name)
        probes = []
        for step in [*checkpoints(path)][-12:]:
            check()
            # removed meanwhile, or of a model that reads no text alone
            with contextlib.suppress(UserError):
                fields = RunFields(model=f"{name}@{step}", text=text or PROBE_TEXT)
                answer = runs.make(fields, check)
                probes.append({"step": step, "model": f"{name}@{step}", "run": answer["run"]})
        return {"name": name, "text": text or PROBE_TEXT, "steps": probes}

    def cursors(self, names: list[str], since: str) -> dict[str, int]:
        """Row cursors by training, parsed from ``NAME:ROWS,...``."""
        need(len(names) <= 20, "20 topics at most.")
        rows_read: dict[str, int] = {}
        for item in since.split(","):
            name, colon, rows = item.rpartition(":")
            if colon and rows.isascii() and rows.isdigit() and len(rows) < 16:
                rows_read[name] = int(rows)
        return {name: rows_read.get(name, 0) for name in names}

    def updates(self, cursors: dict[str, int]) -> JsonObject:
        """New log rows of each training, and the next cursor."""
        trainings = {}
        cursor = dict(cursors)
        folders = self.folders()
        for name, since in cursors.items():
            if name in folders:
                series = self._series(name, since, MAX_ROWS)
                if series["cursor"] != since:
                    trainings[name] = series
                    cursor[name] = series["cursor"]
        return {
            "cursor": ",".join(f"{name}:{rows}" for name, rows in cursor.items()),
            "trainings": trainings,
        }

    async def stream(
        self, cursors: dict[str, int], run: Callable[..., Awaitable[JsonObject]] = asyncio.to_thread
    ) -> AsyncGenerator[bytes]:
        """Server-sent events: ``train`` when a log has grown; the event id is the cursor to resume
        from. ``run`` reads the logs in a thread."""
        last_sent = time.monotonic()
        yield b"retry: 1000\n\n"
        while True:
            update = await run(self.updates, cursors)
            if update["trainings"]:
                cursors = self.cursors(list(cursors), update["cursor"])
                last_sent = time.monotonic()
                yield format_event(update, "train", update["cursor"])
            elif time.monotonic() - last_sent > HEARTBEAT_SECONDS:
                last_sent = time.monotonic()
                yield b": still here\n\n"
            await asyncio.sleep(POLL_SECONDS)


def _setting(settings: Any, *names: str) -> Any:
    """A setting of a run file; None where somebody else's or a damaged one has none."""
    for name in names:
        settings = settings.get(name) if isinstance(settings, dict) else None
    return settings


def is_run(folder: Path) -> bool:
    """False for a folder that cannot be read, too: the others are listed all the same."""
    return _is_file(folder / RUN_FILE) or _is_file(folder / LOG_FILE)


def _is_file(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.is_file()
    return False


def file_age(path: Path) -> float | None:
    """Seconds since a file was written; None if it is missing."""
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime
    return None


def _pause(path: Path) -> tuple[bool, float | None]:
    """(pause requested, seconds since the training last reported itself paused or None)."""
    age = file_age(path / PAUSE)
    try:
        is_paused = (path / PAUSE).read_text(encoding="utf-8", errors="replace").startswith(PAUSED)
    except OSError:
        return False, None
    return True, max(0.0, age) if is_paused and age is not None else None


def checkpoints(path: Path) -> dict[int, Path]:
    """The complete checkpoints in a run folder by their steps, ascending, replayed ones too."""
    steps = {}
    for parent in (path / "replayed", path):
        with contextlib.suppress(OSError):
            for folder in parent.iterdir():
                match = re.fullmatch(r"step-(\d{6,12})", folder.name)
                if match and _is_file(folder / "config.json"):
                    steps[int(match[1])] = folder
    return dict(sorted(steps.items()))
