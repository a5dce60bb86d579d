"""The tensors of safetensors files as they lie there, in memory that the disk fills when it is read; a model looks
at such weights when it first reads them, for NaN has no place in an answer."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from ..core.checkpoints.headers import SMALL as SMALL
from ..core.checkpoints.headers import Headers, damaged
from ..core.checkpoints.tensors import DTYPES, Files
from ..core.errors import need
from ..core.nn.finite import check_weights
from ..core.nn.model import Block

REMOTE = frozenset(
    [
        "9p",
        "afs",
        "ceph",
        "cifs",
        "fuse",
        "glusterfs",
        "lustre",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
        "virtiofs",
    ]
)


class MappedFiles(Files):
    """Files whose ``take`` gives a view of the mapped file where it can."""

    def __init__(self, headers: Headers) -> None:
        super().__init__(headers)
        self._maps: dict[Path, mmap.mmap | None] = {}

    def take(self, name: str) -> Tensor:
        """The tensor ``name`` as it lies in its file where that may be mapped, otherwise read.

        It may be written to: a page that changes becomes the process's own and the file stays as it
        is.
        """
        # Mapped beside read, to the first token (docs/performance.md): GPT-2 124M 560 -> 200 ms; a
        # 1.1 B in bf16 23.2 -> 4.6 s on a busy machine. safe_open maps too, but cannot let go of
        # pages (see release).
        if not self.can_map(name):
            return self.load(name)
        entry = self.entries[name]
        dtype = DTYPES[self.entries[name].dtype]
        buffer = self._maps[entry.path]
        assert buffer is not None
        need(entry.end <= len(buffer), damaged(entry.path, "it ended while it was read"))
        count = (entry.end - entry.start) // dtype.itemsize
        return torch.frombuffer(buffer, dtype=dtype, offset=entry.start, count=count).view(
            entry.shape
        )

    def can_map(self, name: str) -> bool:
        entry = self.entries[name]
        if entry.path not in self._maps:
            self._maps[entry.path] = _map(entry.path)
        is_aligned = entry.start % DTYPES[entry.dtype].itemsize == 0
        return self._maps[entry.path] is not None and is_aligned and entry.start < entry.end

    def lies_mapped(self, name: str) -> bool:
        return self._maps.get(self.entries[name].path) is not None

    def release(self, names: Iterable[str]) -> None:
        # GPT-2 124M (475 MiB, its matrices transposed): 501 MiB more at the peak of loading instead
        # of 822.
        for entry in map(self.entries.__getitem__, names):
            buffer = self._maps.get(entry.path)
            if buffer is not None:
                page_start = entry.start - entry.start % mmap.PAGESIZE
                buffer.madvise(mmap.MADV_DONTNEED, page_start, entry.end - page_start)


def _map(path: Path) -> mmap.mmap | None:
    """The file as memory; None where reading it is the better way."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size >= SMALL and _is_mappable(status.st_dev):
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError:  # reading says why, or succeeds where only mapping was refused
        pass
    return None


def _is_mappable(device: int) -> bool:
    """True where files on this device stay readable while mapped: not on a network share.

    A page that cannot be fetched kills the process, so what a network or another program serves is
    read.
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:  # only Linux tells
        return True
    kinds = {mount.partition(" - ")[2].split()[0] for mount in mounts if mount.split()[2] == number}
    return not any(kind.partition(".")[0] in REMOTE for kind in kinds)


def check_when_used(model: nn.Module, names: Iterable[str]) -> None:
    """Look at the weights of these names when their block is first called, before it reads them
    from the disk anyway.

    What comes out is not enough: PyTorch's attention on a CPU makes zeros of NaN scores.
    """
    waiting = {name: model.get_parameter(name) for name in names}
    blocks = {path: module for path, module in model.named_modules() if isinstance(module, Block)}
    for path, module in {**blocks, "": model.get_submodule("embed")}.items():
        block_names = (
            [name for name in waiting if name.startswith(f"{path}.")] if path else list(waiting)
        )
        if block_names:
            _FirstUse(module, {name: waiting.pop(name) for name in block_names})


def check_now(model: nn.Module) -> None:
    """Look at once at the weights that still wait for their first use. Raises UserError as that
    would."""
    for module in model.modules():
        for hook in [*module._forward_pre_hooks.values()]:
            if isinstance(hook, _FirstUse):
                hook()


class _FirstUse:
    """A hook that looks at weights once, and is gone."""

    def __init__(self, module: nn.Module, weights: dict[str, Tensor]) -> None:
        self.weights = weights
        self.handle = module.register_forward_pre_hook(self)

    def __call__(self, *_: object) -> None:
        if not torch.compiler.is_compiling():
            with torch._C.DisableTorchFunction():  # no step of a pass that is recorded
                check_weights(self.weights.items())
            self.weights.clear()
            self.handle.remove()
