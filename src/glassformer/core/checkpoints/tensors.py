"""The tensors of safetensors files, read, mapped and written one at a time."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError, need
from .headers import INDEX, SINGLE, Headers, Shape, damaged, read_header, read_headers

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
SHARD = 5_000_000_000  # bytes; a checkpoint above this is written as several files
# bytes of a line of the processor's cache: where the first tensor begins, for those who map the
# file
ALIGNED = 64


class Files(Headers):
    """The tensors of safetensors files by name."""

    def __init__(self, headers: Headers) -> None:
        super().__init__(headers.folder, headers.entries)

    @property
    def dtype(self) -> torch.dtype:
        """The floating dtype that most of the numbers have."""
        share: Counter[torch.dtype] = Counter()
        for entry in self.entries.values():
            if DTYPES[entry.dtype].is_floating_point:
                share[DTYPES[entry.dtype]] += entry.end - entry.start
        return share.most_common(1)[0][0] if share else torch.float32

    def load(self, name: str) -> Tensor:
        """The tensor ``name``, in memory of its own."""
        entry = self.entries[name]
        if entry.load is not None:
            tensor: Tensor = entry.load()
            return tensor
        return self.numbers(name, 0, math.prod(entry.shape)).view(entry.shape)

    def take(self, name: str) -> Tensor:
        """The tensor ``name``; as it lies in its file where that is mapped (formats/mapped.py)."""
        return self.load(name)

    def can_map(self, name: str) -> bool:
        """True where ``take`` will give a view of the mapped file."""
        return False

    def lies_mapped(self, name: str) -> bool:
        """True where ``take`` gave a view of the mapped file, whose pages nobody has read yet."""
        return False

    def release(self, names: Iterable[str]) -> None:
        """Let go of the tensors' mapped pages until they are looked at again, and of changes."""

    def numbers(self, name: str, low: int, high: int) -> Tensor:
        """Its numbers ``low`` to before ``high`` in the order of the file, flat."""
        entry = self.entries[name]
        tensor = torch.empty(high - low, dtype=DTYPES[entry.dtype], device="cpu")
        into, at = memoryview(flat_bytes(tensor)), 0
        try:
            with entry.path.open("rb", buffering=0) as file:
                file.seek(entry.start + low * tensor.element_size())
                while at < len(into):  # one call reads at most 2 GiB
                    count = file.readinto(into[at:])
                    need(bool(count), damaged(entry.path, "it ended while it was read"))
                    at += count or 0
        except OSError as error:
            raise UserError(
                f"{entry.path} cannot be read ({error.strerror}); check the disk it is on."
            ) from None
        return tensor


def open_files(folder: Path) -> Files:
    """The folder's weights; UserError as ``read_headers`` says."""
    return Files(read_headers(folder))


def open_file(path: Path) -> Files:
    return Files(Headers(path.parent, read_header(path)))


def flat_bytes(tensor: Tensor) -> Any:
    """The tensor's memory as a flat array of bytes."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


# --------------------------------------------------------------------------------- writing files


@dataclass(frozen=True)
class PendingTensor:
    """A tensor to be written: its name, dtype and shape now, its numbers when their turn comes."""

    name: str
    dtype: torch.dtype
    shape: Shape
    make: Callable[[], Tensor]

    @property
    def size(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def plain(params: Mapping[str, Tensor]) -> Iterator[PendingTensor]:
    """Pieces that save ``params`` by our own names."""
    for name, tensor in params.items():
        yield PendingTensor(name, tensor.dtype, tuple(tensor.shape), tensor.detach)


def contents(
    pieces: Iterable[PendingTensor],
    limit: int | None = None,
    metadata: Mapping[str, str] | None = None,
) -> dict[str, str | Callable[[Path], None]]:
    """The files that hold the pieces, by name: one, or shards up to ``limit`` bytes and an index.

    ``metadata`` stands in the header of each.
    """
    shards: list[list[PendingTensor]] = [[]]
    shard_size = total = 0
    for piece in pieces:
        if shards[-1] and shard_size + piece.size > (limit or SHARD):
            shards.append([])
            shard_size = 0
        shards[-1].append(piece)
        shard_size, total = shard_size + piece.size, total + piece.size
    files = [TensorFile(shard, {"format": "pt", **(metadata or {})}) for shard in shards]
    if len(files) == 1:
        return {SINGLE: files[0]}
    count = len(files)
    named = {f"model-{i:05}-of-{count:05}.safetensors": file for i, file in enumerate(files, 1)}
    placed = {piece.name: name for name, file in named.items() for piece in file.pieces}
    index = json.dumps({"metadata": {"total_size": total}, "weight_map": placed}, indent=1)
    return {**named, INDEX: f"{index}\n"}


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file to be written: a call writes it at a path, one tensor at a time."""

    pieces: Sequence[PendingTensor]
    metadata: Mapping[str, str]

    # Saving a GPT-2 124M takes 16 MiB more memory; safetensors' save_file, which needs all tensors
    # at once, 603.
    def __call__(self, path: Path) -> None:
        with path.open("wb") as file:
            file.write(self.header)
            for piece in self.pieces:
                file.write(flat_bytes(piece.make().cpu().contiguous()))

    @cached_property
    def header(self) -> bytes:
        """All that comes before the tensors."""
        entries: dict[str, Any] = {"__metadata__": self.metadata}
        at = 0
        for piece in self.pieces:
            entries[piece.name] = {
                "dtype": NAMES[piece.dtype],
                "shape": piece.shape,
                "data_offsets": [at, at + piece.size],
            }
            at += piece.size
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % ALIGNED)
        return len(text).to_bytes(8, "little") + text

    @property
    def places(self) -> Iterator[tuple[PendingTensor, int]]:
        """Each tensor, and the byte of the file at which it begins."""
        at = len(self.header)
        for piece in self.pieces:
            yield piece, at
            at += piece.size

    @property
    def size(self) -> int:
        return len(self.header) + sum(piece.size for piece in self.pieces)
