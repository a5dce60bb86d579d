"""Many prompts into a file of JSON lines, in their order; one that was stopped goes on where it was.

answers.jsonl.part      what the job is, then a line for each continuation that is whole
answers.jsonl           the lines alone, once all are there
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError, need
from ..files import explaining, make_folder, sync
from .engine import Engine
from .request import Handle, Request


def answer_into(
    out: Path,
    engine: Engine,
    requests: Sequence[Request],
    job: dict[str, Any],
    line: Callable[[int, Any], dict[str, Any]],
    progress: Callable[[int], None] = lambda done: None,
) -> int:
    """Write ``line(number, completion)`` for each continuation of each request to ``out``; how many were there before.

    ``job`` (JSON) says what decides the answers: a part of another job is not gone on with. ``progress`` counts
    requests. Raises UserError where ``out`` is there already, or cannot be written.
    """
    need(not out.exists(), f"{out} is there already; name another file, or remove it.")
    make_folder(out.parent)
    part = out.with_name(f"{out.name}.part")
    with explaining(part):
        begun = _whole_lines(part, job)
        done = begun
        with part.open("r+b" if part.exists() else "w+b") as file:
            file.seek(0, 2)
            if file.tell() == 0:
                _add(file, job)
            for number, result in _answers(engine, requests, done):
                for completion in result.completions:
                    _add(file, line(number, completion))
                done += 1
                progress(done)
            file.flush()
        _finish(part, out)
    return begun


def _add(file: Any, value: dict[str, Any]) -> None:
    file.write(json.dumps(value, ensure_ascii=False).encode() + b"\n")
    file.flush()


def _whole_lines(part: Path, job: dict[str, Any]) -> int:
    """How many requests of this job are answered in ``part``; what is torn or of a request half done is cut off."""
    if not part.exists():
        return 0
    with part.open("r+b") as file:
        first = file.readline()
        if not first.endswith(b"\n"):
            file.truncate(0)
            return 0
        if first != json.dumps(job, ensure_ascii=False).encode() + b"\n":
            raise UserError(f"{part} is of another job; remove it, or name another file.")
        ends = [file.tell()]
        while file.readline().endswith(b"\n"):
            ends.append(file.tell())
        whole: int = (len(ends) - 1) // job["samples"]
        file.truncate(ends[whole * job["samples"]])
    return whole


def _answers(engine: Engine, requests: Sequence[Request], first: int) -> Iterator[tuple[int, Any]]:
    """Results in the order of the requests, from the ``first`` on; as many are asked at once as may wait."""
    handles = deque[tuple[int, Handle]]()
    for number in range(first, len(requests)):
        if len(handles) == engine.max_queue:
            place, handle = handles.popleft()
            yield place, handle.result()
        handles.append((number, engine.submit(requests[number])))
    for place, handle in handles:
        yield place, handle.result()


def _finish(part: Path, out: Path) -> None:
    """The lines behind the first one, at ``out``: the file appears when it is whole."""
    beside = out.with_name(f".{out.name}.whole")
    with part.open("rb") as held, beside.open("wb") as file:
        held.readline()
        while block := held.read(1 << 20):
            file.write(block)
    sync(beside)
    beside.replace(out)
    part.unlink()
