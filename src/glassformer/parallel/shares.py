"""One checkpoint written by many: each process puts its numbers at their own bytes of one safetensors file.

    first process     header, then what is whole         model.safetensors   | header | 0 0 0 | 1 1 1 | 2 2 2 | ...
    every process     its rows of each tensor            SHA256SUMS          a file each, by turns

The folder is the same, byte for byte, as when one process writes it, and appears at once or not at all. Nothing is
pickled, so torch.distributed.checkpoint, whose metadata is, is not used. Every process sees the same file system.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import files
from ..checkpoints.tensors import Files, TensorFile, flat_bytes
from .mesh import Mesh, share
from .shard import COPIES, Share, Window


@contextlib.contextmanager
def write_folder(path: Path, mesh: Mesh) -> Iterator[Path]:
    """``files.write_folder`` for everybody: the first process makes the folder and renames it when all have left it."""
    with contextlib.ExitStack() as made:
        beside = None
        with mesh.agreeing():
            if mesh.is_first:
                beside = made.enter_context(files.write_folder(path))
        yield Path(mesh.first(str(beside)))
        with mesh.agreeing():
            made.close()


def write(folder: Path, contents: Mapping[str, str | Callable[[Path], None]], mesh: Mesh) -> None:
    """Write files into a folder that is there: safetensors by everybody, the rest by the first process."""
    for name, content in contents.items():
        path = folder / name
        with mesh.agreeing(), files.explaining(path):
            if mesh.is_first:
                _begin(path, content)
        if isinstance(content, TensorFile):
            with mesh.agreeing(), files.explaining(path):
                _add(path, content, mesh)


def _begin(path: Path, content: Any) -> None:
    """The file as far as one process writes it; room for the whole of it is taken on the disk now."""
    if not isinstance(content, TensorFile):
        files.write(path, content)
        return
    with path.open("wb") as file:
        file.write(content.header)
        file.flush()
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, content.size)  # a full disk is told before anybody writes
        else:
            file.truncate(content.size)


def _add(path: Path, content: TensorFile, mesh: Mesh) -> None:
    """This process's numbers of every tensor, and those of tensors that are whole where it is the first."""
    if mesh.index(*COPIES):
        return
    with path.open("r+b", buffering=0) as file:
        for piece, at in content.places:
            made: Any = piece.make()
            part = made if isinstance(made, Share) else share_of(made, mesh)
            if part is None and not mesh.is_first:
                continue
            low, numbers = (0, made) if part is None else (part.low, part.numbers)
            file.seek(at + low * numbers.element_size())
            left = memoryview(flat_bytes(numbers.cpu().contiguous()))
            while len(left):
                left = left[file.write(left) :]
        os.fsync(file.fileno())


def share_of(tensor: Any, mesh: Mesh) -> Share | None:
    """This process's numbers of a DTensor; None of a plain tensor."""
    if not hasattr(tensor, "placements"):
        return None
    low, _ = numbers_of(tuple(tensor.shape), mesh)
    return Share(tuple(tensor.shape), low, Window.local(tensor))


def numbers_of(shape: tuple[int, ...], mesh: Mesh) -> tuple[int, int]:
    """Which numbers of a sharded tensor of this shape are this process's: [low, high) in its flat order."""
    inside = torch.Size(shape[1:]).numel()
    low, high = share(shape[0], mesh.extent("data"), mesh.index("data"))
    return low * inside, high * inside


def sums(folder: Path, mesh: Mesh) -> dict[str, str]:
    """The SHA-256 of each file of a folder that all have written, each by one process."""
    names = mesh.first(sorted(file.name for file in folder.iterdir()) if mesh.is_first else None)
    mine: dict[str, str] = {}
    with mesh.agreeing(), files.explaining(folder):
        mine = {name: files.sha256(folder / name) for name in names[mesh.rank :: mesh.size]}
    found = {name: one for part in mesh.gather_json(mine) for name, one in part.items()}
    return {name: found[name] for name in names}


def read(saved: Files, name: str, mesh: Mesh, sharded: bool) -> Tensor | Share:
    """A tensor of a file: whole, or this process's numbers of it."""
    if not sharded:
        return saved.read(name)
    shape = saved.entries[name].shape
    low, high = numbers_of(shape, mesh)
    return Share(shape, low, saved.numbers(name, low, high))


@contextlib.contextmanager
def whole(model: nn.Module, names: Iterable[str]) -> Iterator[None]:
    """While entered, these weights are whole on every process: for what is small and joined before it is written."""
    held = []
    for name in names:
        home, _, leaf = name.rpartition(".")
        module = model.get_submodule(home)
        weight: Any = module._parameters[leaf]
        if hasattr(weight, "full_tensor"):
            held.append((module, leaf, weight))
            module._parameters[leaf] = nn.Parameter(weight.detach().full_tensor(), weight.requires_grad)
    try:
        yield
    finally:
        for module, leaf, weight in held:
            module._parameters[leaf] = weight
