"""Many prompts into a file of JSON lines, in their order; one that was stopped goes on where it
was.

answers.jsonl.part      what the job is, then a checksum and a line for each finished continuation
answers.jsonl           the lines alone, once all are there
"""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ...core.errors import UserError, need
from ...core.files import explain_errors, make_folder, sync, try_lock
from .engine import Engine
from .sequence import Request, RequestHandle

CHECK = 9  # bytes of a checksum and the space behind it


def answer_into(
    out: Path,
    engine: Engine,
    requests: Sequence[Request],
    job: dict[str, Any],
    line: Callable[[int, Any], dict[str, Any]],
    progress: Callable[[int], None] = lambda done: None,
) -> int:
    """Writes ``line(number, completion)`` for each continuation of each request to ``out``; returns
    the number of requests that were answered before.

    ``job`` (JSON) holds the settings that decide the answers: a file of another job is not
    continued. ``progress`` counts requests. Raises UserError where ``out`` exists already, or
    cannot be written, or another process writes it.
    """
    need(not out.exists(), f"{out} is there already; name another file, or remove it.")
    make_folder(out.parent)
    partial = out.with_name(f"{out.name}.part")
    with explain_errors(partial), partial.open("a+b") as file:
        need(
            try_lock(file, partial),
            f"Another process is writing {partial}; wait for it to end, or name another file.",
        )
        if out.exists():  # another process has just ended
            partial.unlink()
            raise UserError(f"{out} is there already; name another file, or remove it.")
        resumed = _resume(file, partial, job)
        done = resumed
        lines = resumed * job["samples"]
        if file.tell() == 0:
            file.write(_job_line(job))
        for number, result in _answers(engine, requests, done):
            for completion in result.completions:
                lines += 1
                content = json.dumps(line(number, completion), ensure_ascii=False).encode()
                file.write(_check(content, lines) + content + b"\n")
                file.flush()
            done += 1
            progress(done)
        _finish(file, out)
        partial.unlink()
    return resumed


def _job_line(job: dict[str, Any]) -> bytes:
    return json.dumps(job, ensure_ascii=False).encode() + b"\n"


def _check(content: bytes, number: int) -> bytes:
    """Prefix of line ``number``: a checksum of line and number, so that no line is changed, lost or
    moved unnoticed."""
    return b"%08x " % zlib.crc32(content, number)


def _resume(file: BinaryIO, partial: Path, job: dict[str, Any]) -> int:
    """Counts the requests of this job that are answered in ``partial``, and cuts off a torn line
    and a request half done.

    Raises UserError for a file of another job and for a damaged line.
    """
    file.seek(0)
    first = file.readline()
    if not first.endswith(b"\n"):
        file.truncate(0)
        return 0
    if first != _job_line(job):
        raise UserError(
            f"{partial} is of another job{_difference(first, job)}; remove it, or name another file."
        )
    line_ends = [file.tell()]
    while (written := file.readline()).endswith(b"\n"):
        sound = written[:CHECK] == _check(written[CHECK:-1], len(line_ends))
        need(
            sound,
            f"{partial} is damaged in line {len(line_ends) + 1}; remove it, and the job begins anew.",
        )
        line_ends.append(file.tell())
    count: int = (len(line_ends) - 1) // job["samples"]
    file.truncate(line_ends[count * job["samples"]])
    file.seek(0, 2)
    return count


def _difference(first: bytes, job: dict[str, Any]) -> str:
    """Which of the settings differ, in brackets; nothing where the line does not tell."""
    try:
        saved_job = json.loads(first)
        names = [name for name in {**saved_job, **job} if saved_job.get(name) != job.get(name)]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ""
    return f" (other {', '.join(names)})" if names else ""


def _answers(engine: Engine, requests: Sequence[Request], first: int) -> Iterator[tuple[int, Any]]:
    """Results in the order of the requests, from the ``first`` on; as many are asked at once as may
    wait."""
    handles = deque[tuple[int, RequestHandle]]()
    waiting = 0
    for number in range(first, len(requests)):
        waiting += requests[number].n
        while handles and waiting > engine.max_queue:
            place, handle = handles.popleft()
            yield place, handle.result()
            waiting -= requests[place].n
        handles.append((number, engine.submit(requests[number])))
    for place, handle in handles:
        yield place, handle.result()


def _finish(file: BinaryIO, out: Path) -> None:
    """The answers alone, at ``out``: the file appears when it is whole."""
    beside = out.with_name(f".{out.name}.whole")
    file.seek(0)
    file.readline()
    with beside.open("wb") as output:
        for written in file:
            output.write(written[CHECK:])
    sync(beside)
    beside.replace(out)
