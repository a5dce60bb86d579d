"""One checkpoint written by many: each process puts its numbers at their own bytes of one
safetensors file.

    first process     header, then what is whole         model.safetensors   | header | 0 0 0 | 1 1 1 | 2 2 2 | ...
    every process     its rows of each tensor            SHA256SUMS          a file each, by turns

The folder is the same, byte for byte, as when one process writes it, and appears at once or not at
all. Nothing is pickled, so torch.distributed.checkpoint, whose metadata is, is not used. Every
process sees the same file system.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor, nn

from ..core import files
from ..core.checkpoints.tensors import Files, TensorFile, flat_bytes
from .mesh import Mesh
from .place import BoxShare, TensorBox, share_of
from .shard import cuts_of, place_in

Contents: TypeAlias = Mapping[str, str | Callable[[Path], None]]


@contextlib.contextmanager
def write_folder(path: Path, mesh: Mesh) -> Iterator[Path]:
    """``files.write_folder`` for everybody: the first process makes the folder and renames it when
    all have left it."""
    with contextlib.ExitStack() as stack:
        beside = None
        with mesh.agreeing():
            if mesh.is_first:
                beside = stack.enter_context(files.write_folder(path))
        yield Path(mesh.first(str(beside)))
        with mesh.agreeing():
            stack.close()


def write(folder: Path, contents: Contents, mesh: Mesh) -> None:
    """Write files into a folder that is there: safetensors by everybody, the rest by the first
    process."""
    for name, content in contents.items():
        path = folder / name
        with mesh.agreeing(), files.explain_errors(path):
            if mesh.is_first:
                _begin(path, content)
        if isinstance(content, TensorFile):
            with mesh.agreeing(), files.explain_errors(path):
                _add(path, content, mesh)


def _begin(path: Path, content: Any) -> None:
    """The file as far as one process writes it; room for the whole of it is taken on the disk
    now."""
    if not isinstance(content, TensorFile):
        files.write(path, content)
        return
    with path.open("wb") as file:
        file.write(content.header)
        file.flush()
        if hasattr(os, "posix_fallocate"):
            # a full disk is told before anybody writes
            os.posix_fallocate(file.fileno(), 0, content.size)
        else:
            file.truncate(content.size)


def _add(path: Path, content: TensorFile, mesh: Mesh) -> None:
    """This process's numbers of every tensor, and those of tensors that are whole where it is the
    first."""
    with path.open("r+b", buffering=0) as file:
        for piece, offset in content.places:
            value: Any = piece.make()
            share = value if isinstance(value, BoxShare) else share_of(value, mesh)
            if not (mesh.is_first if share is None else share.place.is_written_by(mesh)):
                continue
            tensor = value if share is None else share.numbers
            runs = [(0, tensor.numel())] if share is None else share.place.runs()
            flat, width, at = (
                memoryview(flat_bytes(tensor.cpu().contiguous())),
                tensor.element_size(),
                0,
            )
            for first, count in runs:
                file.seek(offset + first * width)
                pending = flat[at * width : (at + count) * width]
                while len(pending):
                    pending = pending[file.write(pending) :]
                at += count
        os.fsync(file.fileno())


def sums(folder: Path, mesh: Mesh) -> dict[str, str]:
    """The SHA-256 of each file of a folder that all have written, each by one process."""
    names = mesh.first(sorted(file.name for file in folder.iterdir()) if mesh.is_first else None)
    digests: dict[str, str] = {}
    with mesh.agreeing(), files.explain_errors(folder):
        digests = {name: files.sha256(folder / name) for name in names[mesh.rank :: mesh.size]}
    all_digests = {
        name: digest
        for rank_digests in mesh.gather_json(digests)
        for name, digest in rank_digests.items()
    }
    return {name: all_digests[name] for name in names}


def read_share(saved: Files, name: str, place: TensorBox | None) -> Tensor | BoxShare:
    """A tensor of a file: whole, or this process's numbers of it."""
    if place is None:
        return saved.load(name)
    low = place.start[0]
    high = place.start[0] + place.size[0]
    inside = math.prod(place.shape[1:])
    rows = saved.numbers(name, low * inside, high * inside).view(-1, *place.shape[1:])
    box = tuple(
        slice(low, low + size) for low, size in zip(place.start[1:], place.size[1:], strict=True)
    )
    return BoxShare(place, rows[(slice(None), *box)])


@contextlib.contextmanager
def gathered_weights(model: nn.Module, names: Iterable[str], mesh: Mesh) -> Iterator[None]:
    """While entered, these weights are whole on every process: for what is small and joined before
    it is written."""
    full_weights = {}
    for name in names:
        weight: Any = model.get_parameter(name)
        if hasattr(weight, "full_tensor"):
            full = weight.detach().full_tensor()
            cut = cuts_of(model).get(name)
            full_weights[name] = full if cut is None else cut.gather(full, mesh.group(cut.axis))
    with _instead(model, full_weights):
        yield


@contextlib.contextmanager
def uncut(model: nn.Module, mesh: Mesh) -> Iterator[Callable[[Contents], Contents]]:
    """While entered, weights that an axis cuts have their whole shapes and no numbers, so that
    files can be laid out.

    What is given puts this process's numbers of them into such files.
    """
    cut = {
        name: place for name in cuts_of(model) if (place := place_in(model, name, mesh)) is not None
    }
    shares = {
        name: BoxShare(place, model.get_parameter(name).detach().to_local())  # type: ignore[attr-defined]
        for name, place in cut.items()
    }
    shaped = {
        name: share.numbers.new_empty(1).expand(share.shape) for name, share in shares.items()
    }

    def filled(contents: Contents) -> Contents:
        completed = dict(contents)
        make: Any = lambda name: lambda: shares[name]  # noqa: E731
        for name, file in contents.items():
            if isinstance(file, TensorFile):
                pieces = [
                    replace(p, make=make(p.name)) if p.name in shares else p for p in file.pieces
                ]
                completed[name] = replace(file, pieces=pieces)
        return completed

    with _instead(model, shaped):
        yield filled


@contextlib.contextmanager
def _instead(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """While entered, these tensors stand for the weights of their names."""
    replaced: list[Any] = []
    for name, tensor in tensors.items():
        home, _, leaf = name.rpartition(".")
        weights = model.get_submodule(home)._parameters
        replaced.append((weights, leaf, weights[leaf]))
        weights[leaf] = nn.Parameter(tensor, replaced[-1][2].requires_grad)
    try:
        yield
    finally:
        for weights, leaf, weight in replaced:
            weights[leaf] = weight
