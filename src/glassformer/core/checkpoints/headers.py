"""The places of tensors in a model's safetensors files, read without them; no torch here.

8 bytes: length of the header | header: JSON, name -> dtype, shape, begin and end | the tensors'
bytes, end to end
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from safetensors import SafetensorError, safe_open

from .. import files
from ..errors import UserError, need

Shape: TypeAlias = tuple[int, ...]

BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1}
BYTES |= {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
CHUNK = 16 << 20  # bytes compared at a time
SMALL = 64 << 20  # bytes of a file that is read in no time
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class TensorEntry:
    """Location of one tensor: its file, dtype (as safetensors names it), shape and bytes; ``load``
    gives one that is not read from such a file."""

    path: Path
    dtype: str
    shape: Shape
    start: int
    end: int
    load: Callable[[], Any] | None = None


class Headers:
    """The tensors of one or several safetensors files by name."""

    def __init__(self, folder: Path, entries: Mapping[str, TensorEntry]) -> None:
        self.folder, self.entries = folder, dict(entries)

    def equal(self, name: str, copy: str) -> bool:
        """True where two tensors hold the same numbers bit for bit, compared a piece at a time."""
        a, b = self.entries[name], self.entries[copy]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        if a.load is not None and b.load is not None:
            return bool(a.load().equal(b.load()))
        with a.path.open("rb") as first, b.path.open("rb") as second:
            first.seek(a.start)
            second.seek(b.start)
            sizes = (min(CHUNK, a.end - at) for at in range(a.start, a.end, CHUNK))
            return all(first.read(size) == second.read(size) for size in sizes)


def read_headers(folder: Path) -> Headers:
    """The tensors of the folder's ``model.safetensors``, or of the shards that its index names.

    Raises UserError for missing, damaged or misleading files, and for pickled weights with the
    command that reads them.
    """
    if (folder / SINGLE).exists():
        return Headers(folder, read_header(folder / SINGLE))
    if not (folder / INDEX).exists():
        raise UserError(_no_weights(folder))
    entries: dict[str, TensorEntry] = {}
    placed = read_index(folder)
    for shard in sorted(set(placed.values())):
        for name, entry in read_header(_shard_path(folder, shard)).items():
            if name in entries:
                raise UserError(
                    f"{folder}: {name} is in {entries[name].path.name} and in "
                    f"{shard}; keep one of them."
                )
            entries[name] = entry
    for name, shard in placed.items():
        if name not in entries or entries[name].path.name != shard:
            raise UserError(
                f"{folder}: the index places {name} in {shard}, which lacks it; download both again."
            )
    return Headers(folder, entries)


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors that a safetensors file holds, its claims compared with the file by the library.

    Raises UserError where the file is cut short, lies about itself or cannot be read.
    """
    try:
        with files.open_regular(path) as file:
            head = file.read(8)
        if head == b"version ":
            raise UserError(
                f"{path} is a Git LFS pointer, not the weights; run `git lfs pull` in its folder."
            )
        # the hub's cache calls a large file by its sha256; only a small one is soon read
        blob = path.resolve()
        if (
            path.stat().st_size < SMALL
            and blob.parent.name == "blobs"
            and re.fullmatch("[0-9a-f]{64}", blob.name)
        ):
            need(
                files.sha256(blob) == blob.name,
                damaged(path, "its sha256 is not what the hub says"),
            )
        with safe_open(path, framework="np") as header:
            slices = [(name, header.get_slice(name)) for name in header.offset_keys()]
            stated = [(name, x.get_dtype(), tuple(x.get_shape())) for name, x in slices]
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); check the path and its rights."
        ) from None
    except SafetensorError as error:
        raise UserError(
            damaged(path, ascii(str(error).partition("header: ")[2] or str(error))[1:-1][:160])
        ) from None
    entries = {}
    at = 8 + int.from_bytes(head, "little")
    for name, dtype, shape in stated:  # end to end, as the library has checked
        need(
            dtype in BYTES,
            f"{path}: {name[:100]!a} has the dtype {dtype}; convert it to F32, F16 or BF16.",
        )
        entries[name] = TensorEntry(path, dtype, shape, at, at + BYTES[dtype] * math.prod(shape))
        at = entries[name].end
    return entries


def read_index(folder: Path) -> dict[str, str]:
    """Which shard holds each tensor, as the folder's index says."""
    path = folder / INDEX
    placed = files.read_json(path, fix="download it again").get("weight_map")
    texts = isinstance(placed, dict) and all(isinstance(shard, str) for shard in placed.values())
    if not texts or not placed:
        raise UserError(
            f'{path} is not an index of weights (it needs a "weight_map" of file names); '
            "download it again."
        )
    return dict(placed)


def damaged(path: Path, problem: str) -> str:
    """The sentence about a file that is not what it claims to be."""
    return f"{path} is damaged ({problem}); download or copy it again."


def short(names: Sequence[str], most: int = 4) -> str:
    """The first few names and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _shard_path(folder: Path, shard: str) -> Path:
    """The shard's path; UserError when it leads out of the folder or is not there."""
    path = files.inside(folder, shard)
    if path is None:
        shard_text = json.dumps(shard)[:80]
        raise UserError(
            f"{folder}: the index names {shard_text}, outside this folder; use weights "
            "from a source you trust."
        )
    if not path.is_file():
        raise UserError(
            f"{folder}: the shard {shard} that the index names is missing; download it."
        )
    return path


def _no_weights(folder: Path) -> str:
    kinds = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
    pickled = sorted(path.name for kind in kinds for path in folder.glob(kind))
    if not pickled:
        return (
            f"{folder} has no {SINGLE} (nor {INDEX}); give a folder that holds a model's weights."
        )
    kind = (
        "hf"
        if (folder / "config.json").is_file()
        else ("nanogpt, mingpt, nanochat or transformerlens")
    )
    return (
        f"{folder} has only pickled weights ({short(pickled)}), which could run any code if they "
        f"were unpickled; read them as data: glassformer convert --from {kind} "
        f"{shlex.quote(str(folder / pickled[0]))} --out NEW_FOLDER."
    )
