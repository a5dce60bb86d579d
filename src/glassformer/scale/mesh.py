"""The processes of a training: this one's rank, the axes it stands on, and what processes
tell each other.

    rank = ((((pipeline * R + replicate) * D + data) * E + expert) * C + context) * T + tensor

Alone (``ALONE``) every question has the answer of one process and torch.distributed is not
imported. Only tensors and JSON travel; nothing is pickled.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import math
import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import UserError, mute, need
from ..fast import device as devices
from .parallel import AXES, ROWS, Parallel, processes

ERROR = "error"
"""The key under which a process that ends by a mistake leaves its sentence for the others."""
START = 300.0  # seconds that processes wait for each other at the start at least
PATIENCE = 5.0  # seconds that a process which lost another waits for that sentence


class Lost(RuntimeError):
    """Another process of the training is gone or does not answer; what is not saved yet must not be
    saved now."""


def peer_loss(error: Exception) -> str | None:
    """Returns what an error says if another process is gone, else None: FSDP's collectives
    raise their backend's errors."""
    import torch.distributed as dist

    words, text = ("/gloo/", "NCCL", "c10d"), str(error)
    if not isinstance(error, Lost | dist.DistError) and not any(word in text for word in words):
        return None
    # without the place in the library's source, and its advice
    return re.sub(r"^\[\S+\] |\. .*", "", text.splitlines()[0])


class Mesh:
    """``size`` processes of which this is ``rank``, in the order of ``layout``'s axes; it computes
    on ``device``."""

    def __init__(
        self, layout: Parallel, rank: int = 0, device: torch.device | None = None, store: Any = None
    ) -> None:
        self.layout, self.rank, self.store = layout, rank, store
        self.size = layout.size(*AXES)
        self.device = device or torch.device("cpu")
        self._groups: dict[tuple[str, ...], Any] = {}
        self._turns = 0
        self._ranks = np.arange(self.size).reshape([layout.size(axis) for axis in AXES])

    @property
    def alone(self) -> bool:
        return self.size == 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_first_here(self) -> bool:
        return self._local == 0

    @property
    def _local(self) -> int:
        return 0 if self.alone else int(os.environ.get("LOCAL_RANK", self.rank))

    @property
    def limit(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self.layout.timeout)

    # ------------------------------------------------------------------------------------ axes

    def coordinate(self, rank: int | None = None) -> dict[str, int]:
        """Coordinate of a rank (None: this one) along each axis."""
        place = np.argwhere(self._ranks == (self.rank if rank is None else rank))[0]
        return dict(zip(AXES, place.tolist(), strict=True))

    def extent(self, *axes: str) -> int:
        return self.layout.size(*axes)

    def index(self, *axes: str, rank: int | None = None) -> int:
        """This process's (or a ``rank``'s) place among those, the last axis moving fastest."""
        at, place = self.coordinate(rank), 0
        for axis in axes:
            place = place * self.layout.size(axis) + at[axis]
        return place

    def neighbours(self, *axes: str, of: int | None = None) -> list[int]:
        """The ranks that differ from this one (or ``of``) along these axes alone, in the order of
        ``index``."""
        at = self.coordinate(of)
        box = tuple(slice(None) if axis in axes else at[axis] for axis in AXES)
        order = np.argsort([AXES.index(axis) for axis in axes]).argsort()
        ranks: list[int] = self._ranks[box].transpose(order).flatten().tolist()
        return ranks

    def group(self, *axes: str, again: bool = False) -> Any:
        """The ProcessGroup of ``neighbours(*axes)``; None where there is no other process along
        them.

        Every process asks for the same groups in the same order. ``again``: another one of the same
        processes.
        """
        if self.extent(*axes) == 1:
            return None
        import torch.distributed as dist

        key = (*axes, "again") if again else axes
        if key not in self._groups:
            for start in range(self.size):
                ranks = self.neighbours(*axes, of=start)
                if ranks[0] == start:  # each once
                    # its own default is half an hour
                    group = dist.new_group(ranks, timeout=self.limit)
                    if self.rank in ranks:
                        self._groups[key] = group
        return self._groups[key]

    @property
    def neighbours_here(self) -> int:
        """Number of processes that share this machine's memory, or this process's GPU."""
        return (
            1
            if self.device.type == "cuda" or self.alone
            else int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
        )

    def own_group(self) -> Any:
        """The ProcessGroup of this process alone; every process asks for it at the same time."""
        import torch.distributed as dist

        if () not in self._groups:
            for rank in range(self.size):
                group = dist.new_group([rank], timeout=self.limit)
                if rank == self.rank:
                    self._groups[()] = group
        return self._groups[()]

    @property
    def data_parallel_size(self) -> int:
        return self.layout.rows

    @property
    def row(self) -> int:
        """Data-parallel index of this process: of micro-batches 0, 1, 2, .. it takes every
        ``data_parallel_size``th from ``row`` on."""
        return self.index(*ROWS)

    # ------------------------------------------------------------------- what is said and heard

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every process's tensor (of one shape and dtype) in the order of ranks, on this tensor's
        device."""
        if self.alone:
            return [tensor]
        import torch.distributed as dist

        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        with self.watched():
            dist.all_gather(tensors, tensor.contiguous())
        return tensors

    def gather_bytes(self, content: bytes) -> list[bytes]:
        """Every process's bytes, of any length, in the order of ranks."""
        if self.alone:
            return [content]
        sizes = [int(size) for size in self.gather(torch.tensor([len(content)]))]
        padded = torch.zeros(max(*sizes, 1), dtype=torch.uint8)
        padded[: len(content)] = (
            torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else 0
        )
        padded_contents = zip(self.gather(padded), sizes, strict=True)
        return [padded_content[:size].numpy().tobytes() for padded_content, size in padded_contents]

    def gather_along(self, axes: Sequence[str], content: bytes) -> list[bytes]:
        """The bytes of ``neighbours(*axes)``; every process calls it."""
        contents = self.gather_bytes(content)
        return [contents[rank] for rank in self.neighbours(*axes)]

    def gather_json(self, value: Any) -> list[Any]:
        """Every process's value, as JSON gives it back, in the order of ranks."""
        if self.alone:
            return [value]
        return [json.loads(content) for content in self.gather_bytes(json.dumps(value).encode())]

    def first(self, value: Any = None) -> Any:
        """The first process's value, as JSON gives it back; what the others give counts for
        nothing."""
        return self.gather_json(value if self.is_first else None)[0]

    def total(self, values: Sequence[float]) -> list[float]:
        """The sums of everybody's numbers, each added up in the order of ranks in fp64."""
        columns = torch.stack(self.gather(torch.tensor(values, dtype=torch.float64))).T
        return [sum(column) for column in columns.tolist()]

    def maximum(self, value: float) -> float:
        """The largest of everybody's numbers."""
        return max(self.gather(torch.tensor(value, dtype=torch.float64))).item()

    def agree(self, mistake: UserError | None = None) -> None:
        """UserError on every process where any has one: that of the lowest rank."""
        messages = self.gather_json(None if mistake is None else str(mistake))
        message = next((sentence for sentence in messages if sentence is not None), None)
        if message is not None:
            raise mistake or UserError(message)

    @contextlib.contextmanager
    def agreeing(self) -> Iterator[None]:
        """A mistake that a process meets inside is everybody's afterwards; no collective may stand
        inside."""
        mistake = None
        try:
            yield
        except UserError as error:
            mistake = error
        self.agree(mistake)

    @contextlib.contextmanager
    def rank0_first(self, machines: bool = True) -> Iterator[None]:
        """The first process of each machine goes before its others, however long it takes: it fills
        the caches.

        Without ``machines`` the first process of all goes before all others. No collective may
        stand inside.
        """
        if self.alone:
            yield
            return
        self._turns += 1
        local = self._local if machines else self.rank
        key = f"turn{self._turns}-{self.rank - local}"
        if local:
            self._wait(key)
        yield  # a mistake of the first one is not told by the key: who waits finds it under ERROR
        if not local:
            self.store.set(key, "1")

    def publish(self, key: str, text: str) -> None:
        """Keep a text for the others, from within ``rank0_first``."""
        if self.store is not None:
            self.store.set(key, text)

    def fetch(self, key: str) -> str:
        """The text that the first process kept under this key before its turn was over."""
        return str(self.store.get(key).decode())

    def _wait(self, key: str) -> None:
        """Until somebody sets the key, without the group's timeout: a corpus may take hours."""
        while not self.store.check([key]):
            if self.store.check([ERROR]):
                raise Lost("another process ended")
            time.sleep(0.05)

    # ------------------------------------------------------------------------------- accidents

    def post_error(self, sentence: str) -> None:
        """Tell the others why this process ends."""
        if self.store is not None:
            with contextlib.suppress(RuntimeError):  # the store may be gone with its host
                self.store.set(ERROR, sentence)

    def peer_error(self) -> str | None:
        """Why another process ended, where it said so."""
        until = time.monotonic() + PATIENCE
        with contextlib.suppress(RuntimeError):
            while self.store is not None and time.monotonic() < until:
                if self.store.check([ERROR]):
                    return str(self.store.get(ERROR).decode())
                time.sleep(0.1)
        return None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Turns an error of a collective into Lost: a process is gone, or took too long."""
        try:
            yield
        except RuntimeError as error:
            raise Lost(str(error).splitlines()[0]) from None


ALONE = Mesh(Parallel(data=1))
"""One process."""


def restarts() -> int:
    """Number of times ``torchrun`` restarted this training after it lost a process."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def has_agent() -> bool:
    """True if torchrun's agent started this process: it hosts the store and ends the others."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _wait_for_host(seconds: float) -> None:
    """Until the first process listens; torch's own wait ends in frames of C++ on standard error."""
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(
                (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), seconds
            ).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                raise RuntimeError(f"process 0 does not listen: {error}") from None
            time.sleep(0.2)


@contextlib.contextmanager
def started(settings: Parallel, device: str | None = None) -> Iterator[Mesh]:
    """This process's place among those that torchrun started; ``device`` as ``fast.device.find``
    takes it.

    Raises UserError where the axes do not multiply to the processes that there are.
    """
    try:
        layout = settings.of(processes())
    except UserError:
        if has_agent() and os.environ.get("RANK", "0") != "0":
            mute()  # all find the same mistake, the first one says it
        raise
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if processes() == 1:
        yield Mesh(layout, device=devices.find(device))
        return
    compute_device = devices.find(device)
    if compute_device.type == "cuda":
        need(
            device in (None, "cuda"),
            f"train.device is {device}, but each process takes a GPU of its own; give cuda.",
        )
        need(
            local < torch.cuda.device_count(),
            f"There are {torch.cuda.device_count()} GPUs here and more processes; start one "
            "process for each GPU.",
        )
        compute_device = torch.device("cuda", local)
        torch.cuda.set_device(compute_device)
    dist: Any = importlib.import_module("torch.distributed")
    if dist.is_initialized():  # by whoever called; each run's words to each other are apart
        global _runs
        _runs += 1
        store = dist.PrefixStore(f"run{_runs}", dist.distributed_c10d._get_default_store())
        yield Mesh(layout, dist.get_rank(), compute_device, store)
        return
    backend = "cpu:gloo,cuda:nccl" if compute_device.type == "cuda" else "gloo"
    limit = datetime.timedelta(seconds=settings.timeout)
    start = max(limit, datetime.timedelta(seconds=START))
    try:
        if (
            not has_agent()
            and {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
            and os.environ["RANK"] != "0"
        ):
            _wait_for_host(start.total_seconds())
        store, rank, size = next(dist.rendezvous("env://", timeout=start))
        # addresses of processes that are gone stay behind
        store = dist.PrefixStore(f"attempt{restarts()}", store)
        store.set(f"here{rank}", "1")
        # some machines are slower to import
        store.wait([f"here{peer}" for peer in range(size)], start)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"The {processes()} processes did not find each other ({reason}); if one ended, its "
            "own message says why; "
            "restart all processes."
        ) from None
    try:
        yield Mesh(layout, rank, compute_device, store)
    finally:
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()
        # the store ends with the first process: the others read there first why it ended
        if not has_agent():
            with contextlib.suppress(RuntimeError):
                store.set(f"ended{rank}", "1")
                if rank == 0:
                    store.wait(
                        [f"ended{peer}" for peer in range(size)],
                        datetime.timedelta(seconds=PATIENCE),
                    )


_runs = 0  # in a process group that somebody else began


def share(rows: int, shards: int, index: int) -> tuple[int, int]:
    """The rows [low, high) of ``rows`` that lie with this part, as FSDP2 and torch.chunk cut them;
    perhaps none."""
    size = math.ceil(rows / shards)
    return min(rows, index * size), min(rows, (index + 1) * size)
