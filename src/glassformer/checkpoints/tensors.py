"""Safetensors files, read and written one tensor at a time; nothing they claim is believed unchecked.

8 bytes: length of the header | header: JSON, name -> dtype, shape, begin and end | the tensors' bytes, end to end
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from .. import files
from ..errors import UserError

Shape: TypeAlias = tuple[int, ...]

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LONGEST_HEADER = 100_000_000  # bytes; the limit of the safetensors format
SHARD = 5_000_000_000  # bytes; a checkpoint above this is written as several files
CHUNK = 16 << 20  # bytes compared at a time
SMALL = 64 << 20  # bytes of a file that is read in no time, so that nothing hangs on it afterwards
LARGE = 1 << 20  # bytes of a tensor that is worth memory of its own
REMOTE = {"9p", "afs", "ceph", "cifs", "fuse", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "smbfs", "virtiofs"}
ALIGNED = 64  # bytes of a line of the processor's cache: where the first tensor begins, for those who map the file
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies: its file, dtype, shape and bytes."""

    path: Path
    dtype: torch.dtype
    shape: Shape
    begin: int
    end: int


class Files:
    """The tensors of one or several safetensors files, found by name; ``mapped`` says that ``take`` may map them."""

    def __init__(self, folder: Path, entries: Mapping[str, Entry]) -> None:
        self.folder = folder
        self.entries = dict(entries)
        self.mapped = False
        self._maps: dict[Path, mmap.mmap | None] = {}

    @property
    def dtype(self) -> torch.dtype:
        """The floating dtype that most of the numbers have."""
        share: Counter[torch.dtype] = Counter()
        for entry in self.entries.values():
            if entry.dtype.is_floating_point:
                share[entry.dtype] += entry.end - entry.begin
        return share.most_common(1)[0][0] if share else torch.float32

    def read(self, name: str) -> Tensor:
        """The tensor ``name``, in memory of its own."""
        entry = self.entries[name]
        tensor = room(entry.shape, entry.dtype)
        try:
            with entry.path.open("rb", buffering=0) as file:
                _read_exactly(file, entry.begin, memoryview(_bytes(tensor)), entry.path)
        except OSError as error:
            raise UserError(f"{entry.path} cannot be read ({error.strerror}); check the disk it is on.") from None
        return tensor

    def take(self, name: str) -> Tensor:
        """The tensor ``name`` as it lies in its file where that may be mapped, otherwise read.

        It may be written to: a page that changes becomes the process's own and the file stays as it is.
        """
        entry = self.entries[name]
        if self.mapped and entry.path not in self._maps:
            self._maps[entry.path] = _map(entry.path)
        whole = self._maps.get(entry.path)
        if whole is None or entry.begin == entry.end or entry.begin % entry.dtype.itemsize:
            return self.read(name)
        _sound(entry.end <= len(whole), entry.path, "it ended while it was read")
        count = (entry.end - entry.begin) // entry.dtype.itemsize
        return torch.frombuffer(whole, dtype=entry.dtype, offset=entry.begin, count=count).view(entry.shape)

    def lies_mapped(self, name: str) -> bool:
        """Whether ``take`` gave the tensor's place in its file, which nobody has read yet."""
        return self._maps.get(self.entries[name].path) is not None

    def release(self, names: Iterable[str]) -> None:
        """Let go of the tensors' mapped pages until they are looked at again; what was written to them is lost."""
        for entry in map(self.entries.__getitem__, names):
            whole = self._maps.get(entry.path)
            if whole is not None:
                begin = entry.begin - entry.begin % mmap.PAGESIZE
                whole.madvise(mmap.MADV_DONTNEED, begin, entry.end - begin)

    def same(self, name: str, other: str) -> bool:
        """Whether two tensors hold the same numbers bit for bit, compared a piece at a time."""
        a, b = self.entries[name], self.entries[other]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        with a.path.open("rb") as first, b.path.open("rb") as second:
            first.seek(a.begin)
            second.seek(b.begin)
            sizes = (min(CHUNK, a.end - at) for at in range(a.begin, a.end, CHUNK))
            return all(first.read(size) == second.read(size) for size in sizes)


def short(names: Sequence[str], most: int = 4) -> str:
    """The first few names and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# --------------------------------------------------------------------------------- reading files


def open_files(folder: Path) -> Files:
    """The folder's ``model.safetensors``, or the shards that its index names.

    Raises UserError for missing, damaged or misleading files, and for pickled weights with the way out.
    """
    if (folder / SINGLE).exists():
        return Files(folder, read_header(folder / SINGLE))
    if not (folder / INDEX).exists():
        raise UserError(_no_weights(folder))
    entries: dict[str, Entry] = {}
    placed = read_index(folder)
    for shard in sorted(set(placed.values())):
        for name, entry in read_header(_inside(folder, shard)).items():
            if name in entries:
                raise UserError(f"{folder}: {name} is in {entries[name].path.name} and in {shard}; keep one of them.")
            entries[name] = entry
    for name, shard in placed.items():
        if name not in entries or entries[name].path.name != shard:
            raise UserError(f"{folder}: the index places {name} in {shard}, which lacks it; download both again.")
    return Files(folder, entries)


def _no_weights(folder: Path) -> str:
    kinds = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
    pickled = sorted(path.name for kind in kinds for path in folder.glob(kind))
    if not pickled:
        return f"{folder} has no {SINGLE} (nor {INDEX}); give a folder that holds a model's weights."
    kind = "hf" if (folder / "config.json").is_file() else "nanogpt, mingpt, nanochat or transformerlens"
    return (
        f"{folder} has only pickled weights ({short(pickled)}), which could run any code if they were unpickled; read "
        f"them as data: glassformer convert --from {kind} {shlex.quote(str(folder / pickled[0]))} --out NEW_FOLDER."
    )


def read_index(folder: Path) -> dict[str, str]:
    """Which shard holds each tensor, as the folder's index says."""
    path = folder / INDEX
    try:
        placed = json.loads(path.read_bytes()).get("weight_map")
    except (ValueError, AttributeError, RecursionError):
        placed = None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check its rights.") from None
    texts = isinstance(placed, dict) and all(isinstance(shard, str) for shard in placed.values())
    if not texts or not placed:
        raise UserError(
            f'{path} is not an index of weights (it needs a "weight_map" of file names); download it again.'
        )
    return dict(placed)


def _inside(folder: Path, shard: str) -> Path:
    """The shard's path; UserError when it leads out of the folder or is not there."""
    path = files.inside(folder, shard)
    if path is None:
        shown = json.dumps(shard)[:80]
        raise UserError(f"{folder}: the index names {shown}, outside this folder; use weights from a source you trust.")
    if not path.is_file():
        raise UserError(f"{folder}: the shard {shard} that the index names is missing; download it.")
    return path


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors that a safetensors file holds, everything it claims compared with the file itself.

    Raises UserError where the file is cut short, lies about itself or cannot be read.
    """
    try:
        with path.open("rb", buffering=0) as file:
            size = file.seek(0, 2)
            head = bytearray(min(size, 8))
            _read_exactly(file, 0, memoryview(head), path)
            if head == b"version ":
                raise UserError(f"{path} is a Git LFS pointer, not the weights; run `git lfs pull` in its folder.")
            length = int.from_bytes(head, "little")
            _sound(size >= 8, path, f"it is only {size} bytes long")
            _sound(length <= LONGEST_HEADER, path, f"it announces a header of {length} bytes")
            _sound(length <= size - 8, path, f"its header should have {length} bytes and the file ends before")
            blob = path.resolve()  # the hub's cache calls a large file by its sha256; only a small one is soon read
            if size < SMALL and blob.parent.name == "blobs" and re.fullmatch("[0-9a-f]{64}", blob.name):
                _sound(files.sha256(blob) == blob.name, path, "its sha256 is not what the hub says")
            text = bytearray(length)
            _read_exactly(file, 8, memoryview(text), path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path and its rights.") from None
    try:
        header = json.loads(text.decode(), object_pairs_hook=partial(_unique, path))
    except UserError:
        raise
    except (ValueError, RecursionError):
        header = None
    _sound(isinstance(header, dict), path, "its header is not JSON")
    header.pop("__metadata__", None)
    start = 8 + length
    entries = {name: _entry(path, name, raw, start) for name, raw in header.items()}
    at = start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        _sound(entry.begin == at, path, f"{name} does not begin where the tensor before it ends")
        at = entry.end
    _sound(at == size, path, f"its header describes {at} bytes and it has {size}")
    return entries


def _entry(path: Path, name: str, raw: Any, start: int) -> Entry:
    fields = raw if isinstance(raw, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    name = name[:100] if name.isprintable() else ascii(name)[:100]
    if not _wholes(shape) or len(shape) > 16:
        raise _damaged(path, f"the shape of {name} is not a list of sizes")
    if not _wholes(offsets) or len(offsets) != 2:
        raise _damaged(path, f"the place of {name} is not two offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UserError(
            f"{path}: {name} has the unknown dtype {json.dumps(dtype)[:40]}; convert it to F32, F16 or BF16."
        )
    size = DTYPES[dtype].itemsize
    for side in shape:
        size *= side
    _sound(offsets[1] - offsets[0] == size, path, f"{name} needs {size} bytes and has {offsets[1] - offsets[0]}")
    return Entry(path, DTYPES[dtype], tuple(shape), start + offsets[0], start + offsets[1])


def _wholes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 62 for item in value)


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    _sound(len(table) == len(pairs), path, "its header names something twice")
    return table


def _sound(fact: bool, path: Path, what: str) -> None:
    if not fact:
        raise _damaged(path, what)


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path} is damaged ({what}); download or copy it again.")


def _read_exactly(file: Any, begin: int, into: memoryview, path: Path) -> None:
    file.seek(begin)
    at = 0
    while at < len(into):  # one call reads at most 2 GiB
        count = file.readinto(into[at:])
        _sound(bool(count), path, "it ended while it was read")
        at += count


def room(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Memory for one tensor; a large one has large pages, and what malloc would keep goes back once it is dropped."""
    size = dtype.itemsize * torch.Size(shape).numel()
    if size < LARGE or os.name != "posix":
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):  # not on every system
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))


def _map(path: Path) -> mmap.mmap | None:
    """The file as memory; None where reading it is the better way."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size >= SMALL and _stays(status.st_dev):
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError:  # reading says why, or succeeds where only mapping was refused
        pass
    return None


def _stays(device: int) -> bool:
    """Whether files on this device can be counted on while they are mapped.

    A page that cannot be fetched kills the process, so what a network or another program serves is read. Windows lets
    nobody replace a mapped file.
    """
    if os.name != "posix":
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:  # only Linux tells
        return True
    kinds = {mount.partition(" - ")[2].split()[0] for mount in mounts if mount.split()[2] == number}
    return not any(kind.partition(".")[0] in REMOTE for kind in kinds)


def _bytes(tensor: Tensor) -> Any:
    """The tensor's memory as a flat array of bytes."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


# --------------------------------------------------------------------------------- writing files


@dataclass(frozen=True)
class Piece:
    """A tensor to be written: its name, dtype and shape now, its numbers when their turn comes."""

    name: str
    dtype: torch.dtype
    shape: Shape
    make: Callable[[], Tensor]

    @property
    def size(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def plain(ours: Mapping[str, Tensor]) -> Iterator[Piece]:
    """What saving ``ours`` by our own names writes."""
    for name, tensor in ours.items():
        yield Piece(name, tensor.dtype, tuple(tensor.shape), tensor.detach)


def contents(parts: Iterable[Piece], limit: int | None = None) -> dict[str, str | Callable[[Path], None]]:
    """The files that hold the pieces, by name: one, or shards of at most ``limit`` bytes (``SHARD``) and an index."""
    limit = limit or SHARD
    shards: list[list[Piece]] = [[]]
    held = 0
    for piece in parts:
        if shards[-1] and held + piece.size > limit:
            shards.append([])
            held = 0
        shards[-1].append(piece)
        held += piece.size
    if len(shards) == 1:
        return {SINGLE: partial(_write, shards[0])}
    names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    placed = {piece.name: name for name, shard in zip(names, shards, strict=True) for piece in shard}
    total = sum(piece.size for shard in shards for piece in shard)
    index = json.dumps({"metadata": {"total_size": total}, "weight_map": placed}, indent=1) + "\n"
    return {**{name: partial(_write, shard) for name, shard in zip(names, shards, strict=True)}, INDEX: index}


def _write(parts: Sequence[Piece], path: Path) -> None:
    """A safetensors file at ``path``, written one tensor at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for piece in parts:
        header[piece.name] = {"dtype": NAMES[piece.dtype], "shape": piece.shape, "data_offsets": [at, at + piece.size]}
        at += piece.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNED)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for piece in parts:
            file.write(_bytes(piece.make().cpu().contiguous()))
