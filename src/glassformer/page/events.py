"""Training folders, read as they grow: a training appends lines to its log, and here they are taken
as they come.

So it does not matter who trains (a terminal, another machine's shared disk), or whether this server
began first, was started again, or comes when all is over.
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
from .models import Check, Entry, Missing, Models
from .tail import Tail

if TYPE_CHECKING:
    from .runs import Runs

LOG, RUN = "log.jsonl", "run.json"
QUIET = 60.0  # seconds without a line after which a training no longer counts as running
OFTEN = 0.5  # seconds between looks at the logs of a stream
BEAT = 15.0  # seconds after which a silent stream says that it lives
LOADED = 4  # checkpoints that stay in memory
PROBE = "The king said to the queen that"
# objectives whose loss is that of guessing a token
OVER_TOKENS = {"Causal", "Prefix", "Masked", "Span", "Seq2Seq"}


class Trainings:
    """The run folder ``folder``, or every run folder in it; it need not be there yet."""

    def __init__(self, folder: Path | None, models: Models) -> None:
        self.folder, self.models = folder, models
        self._tails: dict[Path, Tail] = {}
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._turn = threading.Lock()
        models.finders.append(self)

    def folders(self) -> dict[str, Path]:
        """Run folders by what a browser calls them."""
        if self.folder is None or not self.folder.is_dir():
            return {}
        found = (
            [self.folder] if (self.folder / RUN).is_file() or (self.folder / LOG).is_file() else []
        )
        if not found:
            with contextlib.suppress(OSError):
                found = sorted(
                    one
                    for one in self.folder.iterdir()
                    if (one / RUN).is_file() or (one / LOG).is_file()
                )
        named: dict[str, Path] = {}
        for path in found[:200]:
            base = re.sub(r"[^A-Za-z0-9._-]+", "-", path.resolve().name).strip("-.") or "run"
            taken = {*named, *self.models.entries}  # a training is a model too
            named[
                next(
                    one
                    for one in (base, *(f"{base}-{n}" for n in range(2, 1000)))
                    if one not in taken
                )
            ] = path
        return named

    def _path(self, name: str) -> Path:
        found = self.folders()
        if name not in found:
            raise Missing(
                f'There is no training "{name[:80]}" here; there are: {", ".join(found) or "none"}.'
            )
        return found[name]

    def _tail(self, path: Path) -> Tail:
        with self._turn:
            return self._tails.setdefault(path, Tail(path / LOG))

    def listing(self) -> list[dict[str, Any]]:
        """A card of each training: its settings, how far it is, its checkpoints as models."""
        return [self._card(name, path) for name, path in self.folders().items()]

    def _card(self, name: str, path: Path) -> dict[str, Any]:
        tail = self._tail(path)
        with tail.lock:
            tail.read()
            rows = tail.rows
            step = int(tail.columns["step"][-1]) if rows else 0
            spent = tail.columns["seconds"][-1] if "seconds" in tail.columns else 0.0
        settings: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            settings = json.loads((path / RUN).read_text(encoding="utf-8"))
        train = settings.get("train", {})
        age = None
        with contextlib.suppress(OSError):
            age = time.time() - (path / LOG).stat().st_mtime
        steps, objective = train.get("steps"), (train.get("objective") or {}).get("type")
        vocab = ((settings.get("model") or {}).get("embed") or {}).get("vocab")
        done, kept = isinstance(steps, int) and step >= steps, checkpoints(path)
        asked, waited = _pause(path)
        if age is not None and waited is not None:
            age = min(age, waited)
        late = age is not None and age > max(3.0, 3 * spent)
        ended = kept[-1:] == [step] and late and waited is None  # it was saved, and nothing came
        return {
            "name": name,
            "title": str(path),
            "step": step,
            "steps": steps,
            "rows": rows,
            "age_s": age,
            "live": age is not None and age < QUIET and not done and not ended,
            "done": done,
            "objective": objective,
            "chance": math.log(vocab)
            if objective in OVER_TOKENS and isinstance(vocab, int) and vocab > 1
            else None,
            "stopping": (path / STOP).is_file(),
            "pausing": asked and waited is None,
            "paused": waited is not None and waited < QUIET,
            "samples": records.size(path / records.SAMPLES),
            "routing": records.size(path / records.ROUTING),
            "checkpoints": [{"step": number, "model": f"{name}@{number}"} for number in kept],
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
        with self._turn:
            if id not in self._entries:
                where = path / _named(int(step)) if at else path
                with contextlib.suppress(UserError):
                    title = f"{path.resolve().name} at step {int(step):,}" if at else str(path)
                    self._entries[id] = Entry(
                        id, where, title, self.models.dtype, self.models.device
                    )
            if id in self._entries:
                self._entries.move_to_end(id)
            loaded = [one for one in self._entries.values() if one.loaded is not None]
            for one in loaded[:-LOADED]:
                one.loaded = None
            return self._entries.get(id)

    def found(self) -> list[Entry]:
        """A model for each training that has a checkpoint."""
        named = [name for name, path in self.folders().items() if checkpoints(path)]
        return [entry for name in named if (entry := self.find(name)) is not None]

    # ------------------------------------------------------------------------------- what is new

    def series(self, name: str, since: int, most: int) -> dict[str, Any]:
        """The numbers of a training from row ``since`` on."""
        return {"name": name, **self._tail(self._path(name)).series(since, most)}

    def samples(self, name: str) -> list[dict[str, Any]]:
        """What the model wrote on its way."""
        return records.samples(self._path(name))

    def routing(self, name: str) -> list[dict[str, Any]]:
        """Where its mixtures sent which tokens."""
        return records.routing(self._path(name))

    def stop(self, name: str) -> dict[str, Any]:
        """Ask a training that runs to save and end after its step, by a file in its folder; no
        process is touched."""
        path = self._path(name)
        need(
            self._card(name, path)["live"],
            f'The training "{name}" is not running, so there is nothing to stop.',
        )
        files.write(path / STOP, "The page asked this training to save and end.\n")
        return {"name": name, "asked": True}

    def pause(self, name: str, wanted: Any) -> dict[str, Any]:
        """Ask a training that runs to wait after its step, or no longer, by a file in its folder as
        well."""
        path = self._path(name)
        need(isinstance(wanted, bool), '"paused" is true or false.')
        if wanted:
            need(
                self._card(name, path)["live"],
                f'The training "{name}" is not running, so there is nothing to pause.',
            )
            if not (path / PAUSE).is_file():  # what a training that waits has written there stays
                files.write(path / PAUSE, "The page asked this training to wait.\n")
        else:
            (path / PAUSE).unlink(missing_ok=True)
        return {"name": name, "asked": True}

    def probe(self, runs: Runs, name: str, text: str, check: Check) -> dict[str, Any]:
        """One text read by each checkpoint that is there: a run of each, whose heads and answers
        are then asked for."""
        path, told = self._path(name), []
        for step in checkpoints(path)[-12:]:
            check()
            # removed meanwhile, or of a model that reads no text alone
            with contextlib.suppress(UserError):
                made = runs.make({"model": f"{name}@{step}", "text": text or PROBE}, check)
                told.append({"step": step, "model": f"{name}@{step}", "run": made["run"]})
        return {"name": name, "text": text or PROBE, "steps": told}

    def cursors(self, names: list[str], since: str) -> dict[str, int]:
        """Rows already known by training: of ``since`` as it was sent, ``NAME:ROWS,...``."""
        need(len(names) <= 20, "20 topics at most.")
        known: dict[str, int] = {}
        for part in since.split(","):
            name, colon, rows = part.rpartition(":")
            if colon and rows.isascii() and rows.isdigit() and len(rows) < 16:
                known[name] = int(rows)
        return {name: known.get(name, 0) for name in names}

    def news(self, cursors: dict[str, int]) -> dict[str, Any]:
        """What came since, by training, and the cursor to ask with next."""
        told, now = {}, dict(cursors)
        here = self.folders()
        for name, since in cursors.items():
            if name in here:
                one = self.series(name, since, 2000)
                if one["cursor"] != since:
                    told[name] = one
                    now[name] = one["cursor"]
        return {
            "cursor": ",".join(f"{name}:{rows}" for name, rows in now.items()),
            "trainings": told,
        }

    async def stream(self, cursors: dict[str, int]) -> AsyncIterator[bytes]:
        """Server-sent events: ``train`` whenever a log has grown; its id is the cursor to go on
        from."""
        said = time.monotonic()
        yield b"retry: 1000\n\n"
        while True:
            made = await to_thread.run_sync(self.news, cursors)
            if made["trainings"]:
                cursors = self.cursors(list(cursors), made["cursor"])
                said = time.monotonic()
                data = json.dumps(made, separators=(",", ":"), allow_nan=False)
                yield f"id: {made['cursor']}\nevent: train\ndata: {data}\n\n".encode()
            elif time.monotonic() - said > BEAT:
                said = time.monotonic()
                yield b": still here\n\n"
            await asyncio.sleep(OFTEN)


def _pause(path: Path) -> tuple[bool, float | None]:
    """Whether a training is asked to wait, and how many seconds ago it last said that it does;
    None: it never did."""
    try:
        told = (path / PAUSE).stat()
        waits = (path / PAUSE).read_text(encoding="utf-8", errors="replace").startswith(PAUSED)
    except OSError:
        return False, None
    return True, max(0.0, time.time() - told.st_mtime) if waits else None


def _named(step: int) -> str:
    return f"step-{step:06d}"


def checkpoints(path: Path) -> list[int]:
    """The steps of a run folder's whole checkpoints, in order."""
    found = []
    with contextlib.suppress(OSError):
        for one in path.iterdir():
            match = re.fullmatch(r"step-(\d{6,12})", one.name)
            if match and (one / "config.json").is_file():
                found.append(int(match[1]))
    return sorted(found)
