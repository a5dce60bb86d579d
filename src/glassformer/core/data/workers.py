"""Processes that tokenise: texts go in and ids come out over their standard streams, as JSON and
plain numbers.

A worker that loses its parent reads the end of its input and ends too. On two busy cores no gain
over threads was seen (``benchmarks/streams.py``): what a worker gets and gives costs the parent 0.7
s for 26 MB.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from ..errors import UserError
from ..tokenizer.tokenizer import Tokenizer

Array = np.ndarray[Any, Any]
Encode = Callable[[Sequence[str], Sequence[bool]], Sequence[Sequence[int] | Array]]
"""The ids of pieces of text, each with whether it opens a document."""

_START = "from glassformer.core.data.workers import serve; serve()"


class WorkerLost(UserError):
    """A process that tokenised was ended from outside; what is done stays done."""


def encoder_of(tokenizer: Tokenizer, characters: int) -> Encode:
    """An encoder in this process: a continued document gets no prefix space."""
    encode = tokenizer.encoder(characters)

    def ids(texts: Sequence[str], opens: Sequence[bool]) -> Sequence[Sequence[int] | Array]:
        if not tokenizer.adds_prefix or all(opens):
            return encode(list(texts))
        first = iter(encode([text for text, opened in zip(texts, opens, strict=True) if opened]))
        return [
            next(first) if opened else tokenizer.encode_continuation(text)[0]
            for text, opened in zip(texts, opens, strict=True)
        ]

    return ids


@contextlib.contextmanager
def encoder_by_processes(tokenizer: Tokenizer, characters: int, count: int) -> Iterator[Encode]:
    """``encoder_of`` in ``count`` processes; whoever calls it waits for one that is free."""
    free: queue.Queue[_Worker] = queue.Queue()
    workers = [_Worker(tokenizer, characters) for _ in range(count)]
    for worker in workers:
        free.put(worker)

    def ids(texts: Sequence[str], opens: Sequence[bool]) -> Sequence[Sequence[int] | Array]:
        worker = free.get()
        try:
            return worker.encode(texts, opens)
        finally:
            free.put(worker)

    try:
        yield ids
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """One process, seen from here."""

    def __init__(self, tokenizer: Tokenizer, characters: int) -> None:
        one_thread = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
        path = os.pathsep.join(folder or os.curdir for folder in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **one_thread, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is the parent's to hear
        )
        with contextlib.suppress(OSError):
            _send(self._input, {"tokenizer": tokenizer.to_json(), "characters": characters})

    @property
    def _input(self) -> BinaryIO:
        assert self.process.stdin is not None
        return self.process.stdin  # type: ignore[return-value]

    def encode(self, texts: Sequence[str], opens: Sequence[bool]) -> list[Array]:
        """The ids of each text; UserError as the tokenizer raises it there."""
        assert self.process.stdout is not None
        try:
            _send(self._input, {"texts": list(texts), "opens": list(opens)})
            message = _receive(self.process.stdout)  # type: ignore[arg-type]
        except OSError:
            message = None
        if message is None:
            ended = self.process.wait()
            raise WorkerLost(
                f"A process that tokenised was ended ({ended}), perhaps for its memory; start "
                "again with fewer."
            )
        answer, numbers = message
        if "error" in answer:
            raise UserError(answer["error"])
        return np.split(np.frombuffer(numbers, np.uint32), np.cumsum(answer["counts"])[:-1])

    def end(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def serve() -> None:
    """The loop of a worker process, until its input ends."""
    source, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed is no answer
    first = _receive(source)
    if first is None:
        return
    encode = encoder_of(Tokenizer.from_json(first[0]["tokenizer"]), first[0]["characters"])
    while (request := _receive(source)) is not None:
        try:
            encoded = [
                np.asarray(ids, np.uint32)
                for ids in encode(request[0]["texts"], request[0]["opens"])
            ]
        except UserError as error:
            _send(answers, {"error": str(error)})
            continue
        _send(answers, {"counts": [len(ids) for ids in encoded]}, np.concatenate(encoded).tobytes())


def _send(stream: BinaryIO, head: dict[str, Any], numbers: bytes = b"") -> None:
    text = json.dumps(head, ensure_ascii=False).encode()
    stream.write(len(text).to_bytes(8) + len(numbers).to_bytes(8) + text + numbers)
    stream.flush()


def _receive(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    sizes = stream.read(16)
    size, numbers_size = int.from_bytes(sizes[:8]), int.from_bytes(sizes[8:])
    body = stream.read(size + numbers_size) if len(sizes) == 16 else b""
    return (
        (json.loads(body[:size]), body[size:])
        if len(sizes) == 16 and len(body) == size + numbers_size
        else None
    )
