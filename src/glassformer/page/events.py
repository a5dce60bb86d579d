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
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from .. import files
from ..config.run import PAUSE, PAUSED, STOP
from ..errors import UserError, need
from . import records
from .models import CancelCheck, Entry, Models, NotFound
from .tail import Tail

if TYPE_CHECKING:
    from .runs import Runs

LOG_FILE, RUN_FILE = "log.jsonl", "run.json"
IDLE_SECONDS = 60.0  # seconds without a line after which a training no longer counts as running
POLL_SECONDS = 0.5  # seconds between looks at the logs of a stream
HEARTBEAT_SECONDS = 15.0  # seconds after which a silent stream says that it lives
MAX_LOADED = 4  # checkpoints that stay in memory
PROBE_TEXT = "The king said to the queen that"
# objectives whose loss is that of guessing a token
TOKEN_OBJECTIVES = {"Causal", "Prefix", "Masked", "Span", "Seq2Seq"}


class Trainings:
    """Training runs in ``folder``: a run folder, or the parent of several; it may not exist yet."""

    def __init__(self, folder: Path | None, models: Models) -> None:
        self.folder, self.models = folder, models
        self._tails: dict[Path, Tail] = {}
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._lock = threading.Lock()
        models.sources.append(self)

    def folders(self) -> dict[str, Path]:
        """Run folders by name in the API."""
        if self.folder is None or not self.folder.is_dir():
            return {}
        folders = (
            [self.folder]
            if (self.folder / RUN_FILE).is_file() or (self.folder / LOG_FILE).is_file()
            else []
        )
        if not folders:
            with contextlib.suppress(OSError):
                folders = sorted(
                    folder
                    for folder in self.folder.iterdir()
                    if (folder / RUN_FILE).is_file() or (folder / LOG_FILE).is_file()
                )
        by_name: dict[str, Path] = {}
        for path in folders[:200]:
            base = re.sub(r"[^A-Za-z0-9._-]+", "-", path.resolve().name).strip("-.") or "run"
            names = {*by_name, *self.models.entries}  # a training is a model too
            by_name[
                next(
                    candidate
                    for candidate in (base, *(f"{base}-{n}" for n in range(2, 1000)))
                    if candidate not in names
                )
            ] = path
        return by_name

    def _path(self, name: str) -> Path:
        folders = self.folders()
        if name not in folders:
            raise NotFound(
                f'There is no training "{name[:80]}" here; there are: {", ".join(folders) or "none"}.'
            )
        return folders[name]

    def _tail(self, path: Path) -> Tail:
        with self._lock:
            return self._tails.setdefault(path, Tail(path / LOG_FILE))

    def listing(self) -> list[dict[str, Any]]:
        """A card of each training: its settings, how far it is, its checkpoints as models."""
        return [self._card(name, path) for name, path in self.folders().items()]

    def _card(self, name: str, path: Path) -> dict[str, Any]:
        tail = self._tail(path)
        with tail.lock:
            tail.update()
            rows = tail.rows
            step = int(tail.columns["step"][-1]) if rows else 0
            spent = tail.columns["seconds"][-1] if "seconds" in tail.columns else 0.0
        settings: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            settings = json.loads((path / RUN_FILE).read_text(encoding="utf-8"))
        train = settings.get("train", {})
        age = None
        with contextlib.suppress(OSError):
            age = time.time() - (path / LOG_FILE).stat().st_mtime
        steps, objective = train.get("steps"), (train.get("objective") or {}).get("type")
        vocab = ((settings.get("model") or {}).get("embed") or {}).get("vocab")
        done, saved_steps = isinstance(steps, int) and step >= steps, checkpoints(path)
        pause_requested, paused_seconds = _pause(path)
        if age is not None and paused_seconds is not None:
            age = min(age, paused_seconds)
        stale = age is not None and age > max(3.0, 3 * spent)
        ended = (
            saved_steps[-1:] == [step] and stale and paused_seconds is None
        )  # it was saved, and nothing came
        return {
            "name": name,
            "title": str(path),
            "step": step,
            "steps": steps,
            "rows": rows,
            "age_s": age,
            "live": age is not None and age < IDLE_SECONDS and not done and not ended,
            "done": done,
            "objective": objective,
            "chance": math.log(vocab)
            if objective in TOKEN_OBJECTIVES and isinstance(vocab, int) and vocab > 1
            else None,
            "stopping": (path / STOP).is_file(),
            "pausing": pause_requested and paused_seconds is None,
            "paused": paused_seconds is not None and paused_seconds < IDLE_SECONDS,
            "samples": records.size(path / records.SAMPLES),
            "routing": records.size(path / records.ROUTING),
            "checkpoints": [
                {"step": number, "model": f"{name}@{number}"} for number in saved_steps
            ],
        }

    # ---------------------------------------------------------------------------- what a model is

    def find(self, id: str) -> Entry | None:
        """The model ``RUN`` (its best, else its last checkpoint) or ``RUN@STEP``; None where there
        is none."""
        name, at, step = id.partition("@")
        path = self.folders().get(name)
        if path is None or (
            at and not (step.isascii() and step.isdigit() and int(step) in checkpoints(path))
        ):
            return None
        with self._lock:
            if id not in self._entries:
                folder = path / _checkpoint_name(int(step)) if at else path
                with contextlib.suppress(UserError):
                    title = f"{path.resolve().name} at step {int(step):,}" if at else str(path)
                    self._entries[id] = Entry(
                        id, folder, title, self.models.dtype, self.models.device
                    )
            if id in self._entries:
                self._entries.move_to_end(id)
            loaded = [entry for entry in self._entries.values() if entry.loaded is not None]
            for entry in loaded[:-MAX_LOADED]:
                entry.loaded = None
            return self._entries.get(id)

    def entries(self) -> list[Entry]:
        """A model for each training that has a checkpoint."""
        names = [name for name, path in self.folders().items() if checkpoints(path)]
        return [entry for name in names if (entry := self.find(name)) is not None]

    # ------------------------------------------------------------------------------- what is new

    def series(self, name: str, since: int, max_rows: int) -> dict[str, Any]:
        """The numbers of a training from row ``since`` on."""
        return {"name": name, **self._tail(self._path(name)).series(since, max_rows)}

    def samples(self, name: str) -> list[dict[str, Any]]:
        """Samples generated during the training."""
        return records.samples(self._path(name))

    def routing(self, name: str) -> list[dict[str, Any]]:
        """Expert routing of the validations."""
        return records.routing(self._path(name))

    def stop(self, name: str) -> dict[str, Any]:
        """Asks a running training, by a file in its folder, to save and end after the current
        step."""
        path = self._path(name)
        need(
            self._card(name, path)["live"],
            f'The training "{name}" is not running, so there is nothing to stop.',
        )
        files.write(path / STOP, "The page asked this training to save and end.\n")
        return {"name": name, "asked": True}

    def pause(self, name: str, paused: Any) -> dict[str, Any]:
        """Asks a running training, by a file in its folder, to pause after the current step, or to
        resume."""
        path = self._path(name)
        need(isinstance(paused, bool), '"paused" is true or false.')
        if paused:
            need(
                self._card(name, path)["live"],
                f'The training "{name}" is not running, so there is nothing to pause.',
            )
            if not (path / PAUSE).is_file():  # what a training that waits has written there stays
                files.write(path / PAUSE, "The page asked this training to wait.\n")
        else:
            (path / PAUSE).unlink(missing_ok=True)
        return {"name": name, "asked": True}

    def probe(self, runs: Runs, name: str, text: str, check: CancelCheck) -> dict[str, Any]:
        """Runs one text through the latest checkpoints; returns a run id for each."""
        path, probes = self._path(name), []
        for step in checkpoints(path)[-12:]:
            check()
            # removed meanwhile, or of a model that reads no text alone
            with contextlib.suppress(UserError):
                answer = runs.make({"model": f"{name}@{step}", "text": text or PROBE_TEXT}, check)
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

    def updates(self, cursors: dict[str, int]) -> dict[str, Any]:
        """New log rows of each training, and the next cursor."""
        trainings, cursor = {}, dict(cursors)
        folders = self.folders()
        for name, since in cursors.items():
            if name in folders:
                series = self.series(name, since, 2000)
                if series["cursor"] != since:
                    trainings[name] = series
                    cursor[name] = series["cursor"]
        return {
            "cursor": ",".join(f"{name}:{rows}" for name, rows in cursor.items()),
            "trainings": trainings,
        }

    async def stream(self, cursors: dict[str, int]) -> AsyncIterator[bytes]:
        """Server-sent events: ``train`` when a log has grown; the event id is the cursor to resume
        from."""
        last_sent = time.monotonic()
        yield b"retry: 1000\n\n"
        while True:
            update = await to_thread.run_sync(self.updates, cursors)
            if update["trainings"]:
                cursors = self.cursors(list(cursors), update["cursor"])
                last_sent = time.monotonic()
                data = json.dumps(update, separators=(",", ":"), allow_nan=False)
                yield f"id: {update['cursor']}\nevent: train\ndata: {data}\n\n".encode()
            elif time.monotonic() - last_sent > HEARTBEAT_SECONDS:
                last_sent = time.monotonic()
                yield b": still here\n\n"
            await asyncio.sleep(POLL_SECONDS)


def _pause(path: Path) -> tuple[bool, float | None]:
    """(pause requested, seconds since the training last reported itself paused or None)."""
    try:
        stat = (path / PAUSE).stat()
        is_paused = (path / PAUSE).read_text(encoding="utf-8", errors="replace").startswith(PAUSED)
    except OSError:
        return False, None
    return True, max(0.0, time.time() - stat.st_mtime) if is_paused else None


def _checkpoint_name(step: int) -> str:
    return f"step-{step:06d}"


def checkpoints(path: Path) -> list[int]:
    """Steps of the complete checkpoints in a run folder, ascending."""
    steps = []
    with contextlib.suppress(OSError):
        for folder in path.iterdir():
            match = re.fullmatch(r"step-(\d{6,12})", folder.name)
            if match and (folder / "config.json").is_file():
                steps.append(int(match[1]))
    return sorted(steps)
