"""Files of ``torch.save`` without unpickling: nothing in them is imported, called or run.

archive/data.pkl    a program for a stack machine; ours makes dicts, lists, values and tensors, the rest are names
archive/data/0 ...  the tensors' bytes
"""

from __future__ import annotations

import math
import pickletools
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import recipes
from ..errors import UserError, need
from ..files import read_json
from ..nn import Model
from ..recipes import other_libraries
from ..recipes.recipe import ConfigReader
from .headers import Entry, Headers
from .loading import load_model
from .tensors import NAMES, Files, open_file

NONSENSE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError)  # of a wrong table
PROGRAM = 100 << 20  # bytes of a data.pkl; a model's has some hundred thousand
STORAGES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


@dataclass(frozen=True)
class Name:
    """A class, a function or a call that a file names: kept as its name, never imported or run."""

    name: str


@dataclass(frozen=True)
class Stored:
    """A tensor in the archive: where its numbers lie, in numbers."""

    dtype: torch.dtype
    key: str
    numbers: int  # in the storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def read(path: Path) -> Any:
    """What a file of ``torch.save`` holds: dicts, lists and values, with tensors; anything else is a Name.

    Raises UserError for a file that is no such archive or is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            programs = [name for name in names if name.endswith("/data.pkl")]
            _sound(len(programs) == 1, path, "it is not an archive of torch.save")
            root = programs[0].removesuffix("data.pkl")
            if f"{root}byteorder" in names:
                _sound(archive.read(f"{root}byteorder") == b"little", path, "its numbers are big-endian")
            _sound(archive.getinfo(programs[0]).file_size <= PROGRAM, path, "its table is too long")
            found = _run(archive.read(programs[0]), path)
            return _filled(found, archive, root, path, {})
    except zipfile.BadZipFile:
        raise UserError(
            f"{path} is not a file of torch.save, or one of before version 1.6, or cut short; save it again with "
            "torch.save, or copy it again."
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path and its rights.") from None
    except UserError:
        raise
    except (*NONSENSE, RecursionError, StopIteration):
        raise _damaged(path, "its table makes no sense") from None
    except (RuntimeError, NotImplementedError):  # an encrypted archive, an unknown compression
        raise _damaged(path, "its parts cannot be read") from None


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path} cannot be read ({what}); copy it again, or save it again with torch.save.")


def _sound(fact: bool, path: Path, what: str) -> None:
    if not fact:
        raise _damaged(path, what)


# ------------------------------------------------------------------------------ the stack machine

PLAIN: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
PLAIN |= {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": list}
VALUES = "BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT INT LONG FLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 UNICODE"
VALUES += " BINBYTES SHORT_BINBYTES BINBYTES8 BINSTRING SHORT_BINSTRING STRING"
MARK = object()


def _run(program: bytes, path: Path) -> Any:
    """The value that the program leaves on its stack."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        at = len(stack) - 1 - next(i for i, value in enumerate(reversed(stack)) if value is MARK)
        items = stack[at + 1 :]
        del stack[at:]
        return items

    for code, argument, _ in pickletools.genops(program):
        name, place = code.name, argument if isinstance(argument, int) else 0
        if name in VALUES.split():
            stack.append(argument)
        elif name in PLAIN:
            value = PLAIN[name]
            stack.append(value() if callable(value) else value)
        elif name == "MARK":
            stack.append(MARK)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[place] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[place])
        elif name in ("TUPLE", "LIST", "DICT"):
            items = since_mark()
            pairs = zip(items[::2], items[1::2], strict=True) if name == "DICT" else ()
            stack.append(tuple(items) if name == "TUPLE" else items if name == "LIST" else dict(pairs))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif name in ("SETITEM", "SETITEMS", "APPEND", "APPENDS", "ADDITEMS"):
            items = since_mark() if name.endswith("S") else [stack.pop() for _ in range(1 + (name == "SETITEM"))][::-1]
            if isinstance(stack[-1], dict):
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            elif isinstance(stack[-1], list):
                stack[-1].extend(items)
        elif name == "GLOBAL":
            stack.append(Name(str(argument).replace(" ", ".")))
        elif name == "STACK_GLOBAL":
            last = stack.pop()
            stack.append(Name(f"{stack.pop()}.{last}"))
        elif name == "BINPERSID":
            stack.append(("storage", stack.pop()))
        elif name in ("REDUCE", "NEWOBJ"):
            given = stack.pop()
            stack.append(_made(stack.pop(), given))
        elif name == "NEWOBJ_EX":
            del stack[-2:]
        elif name == "BUILD" or name == "POP":  # the state of an object that is not made here
            stack.pop()
        elif name == "STOP":
            return stack.pop()
        elif name not in ("PROTO", "FRAME"):
            raise _damaged(path, f"its table uses {name}")
    raise _damaged(path, "its table does not end")


def _made(what: Any, given: Any) -> Any:
    """What calling ``what`` would give, where that is a table or a tensor; otherwise the name of it."""
    name = what.name if isinstance(what, Name) else ""
    if name == "collections.OrderedDict":
        return dict(given[0]) if given else {}
    if name == "torch._utils._rebuild_parameter":
        return given[0]
    if name in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor"):
        (_, (kind, storage, key, _, numbers)), offset, shape, stride = given[:4]
        dtype = STORAGES.get(storage.name.removeprefix("torch."))
        if kind != "storage" or dtype is None:
            return Name(storage.name)
        return Stored(dtype, str(key), int(numbers), int(offset), tuple(map(int, shape)), tuple(map(int, stride)))
    return Name(name)


def _filled(value: Any, archive: zipfile.ZipFile, root: str, path: Path, seen: dict[str, Tensor]) -> Any:
    """``value`` with its tensors read; only what stands in dicts is, since optimizers keep theirs elsewhere too."""
    if isinstance(value, Stored):
        return _tensor(value, archive, root, path, seen)
    if isinstance(value, dict):
        kept = {key: part for key, part in value.items() if key not in ("optimizer", "optimizer_state_dict")}
        return {key: _filled(part, archive, root, path, seen) for key, part in kept.items()}
    return value


def _tensor(stored: Stored, archive: zipfile.ZipFile, root: str, path: Path, seen: dict[str, Tensor]) -> Tensor:
    if stored.key not in seen:
        info = archive.getinfo(f"{root}data/{stored.key}")
        _sound(info.compress_type == zipfile.ZIP_STORED, path, "its tensors are compressed")
        _sound(info.file_size >= stored.numbers * stored.dtype.itemsize, path, "a tensor is cut short")
        data = bytearray(archive.read(info))
        seen[stored.key] = torch.frombuffer(data, dtype=stored.dtype) if data else torch.empty(0, dtype=stored.dtype)
    whole = seen[stored.key]
    least = min((stored.offset, *stored.shape, *stored.stride))
    last = stored.offset + sum((size - 1) * step for size, step in zip(stored.shape, stored.stride, strict=True))
    inside = least >= 0 and (math.prod(stored.shape) == 0 or last < len(whole)) and whole.dtype == stored.dtype
    _sound(inside, path, "a tensor reaches past its numbers")
    return whole.as_strided(stored.shape, stored.stride, stored.offset)


# ------------------------------------------------------------------------------ models of others


@dataclass(frozen=True)
class AtHand(Entry):
    """A tensor that is in memory already."""

    tensor: Tensor


class Tensors(Files):
    """Tensors in memory, where files are expected."""

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        entries = {name: AtHand(path, NAMES[t.dtype], tuple(t.shape), 0, t.nbytes, t) for name, t in tensors.items()}
        super().__init__(Headers(path, entries))

    def read(self, name: str) -> Tensor:
        """The tensor ``name``."""
        entry = self.entries[name]
        assert isinstance(entry, AtHand)
        return entry.tensor

    take = read

    def same(self, name: str, other: str) -> bool:
        """Whether two tensors hold the same numbers."""
        return torch.equal(self.read(name), self.read(other))


def load(kind: str, path: Path, settings: Path | None = None) -> Model:
    """The model in another library's file, its weights in the dtype that most of them have.

    ``kind`` is one of ``other_libraries.PEERS``, or "hf" for a pytorch_model.bin. ``settings`` is a JSON file with what
    the weights do not say (None: as that library lays it beside them). Raises UserError for what is missing and for
    parts that no module here has.
    """
    peer = other_libraries.PEERS.get(kind)
    need(path.is_file(), f"{path} is not a file; give the one that {kind} saved.")
    held: Any = read(path) if path.suffix != ".safetensors" else _safetensors(path)
    tensors = _state(held, path)
    if isinstance(held, dict) and kind in ("nanogpt", "mingpt"):
        _refuse_other_kind(kind, held, tensors, path)
    page = settings or (path.with_name("config.json") if peer is None else peer.beside(path))
    stated = read_json(page, "fix it") if settings is not None or peer is None or page.is_file() else {}
    if peer is None:
        files = Tensors(path, tensors)
        recipe, model = recipes.read_config(stated, str(page), files)
        return load_model(model, recipe, files, files.dtype, "cpu").eval()
    for table in (held, stated):
        stated = {
            **stated,
            **{k: v for key in other_libraries.SETTINGS if _holds(table, key) for k, v in table[key].items()},
        }
    raw = ConfigReader(peer.describe({name: tuple(t.shape) for name, t in tensors.items()}, stated), str(page))
    model = peer.read(raw)
    files = Tensors(path, peer.prepare(tensors, raw))
    return load_model(model, peer.weights(model), files, files.dtype, "cpu").eval()


def _refuse_other_kind(kind: str, held: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse a nanoGPT for a minGPT and the other way round: their names are the same, their activations are not."""
    nano = "model_args" in held  # minGPT leaves weights alone, and only nanoGPT ties its head
    table, head = (tensors.get(name) for name in ("transformer.wte.weight", "lm_head.weight"))
    tied = table is None or head is None or torch.equal(table, head)
    need(not (kind == "mingpt" and nano), f"{path}: this looks like a nanoGPT file; use --from nanogpt.")
    need(kind == "mingpt" or nano or tied, f"{path}: this looks like a minGPT file; use --from mingpt.")


def _holds(table: Any, key: str) -> bool:
    return isinstance(table, dict) and isinstance(table.get(key), dict)


def _state(held: Any, path: Path) -> dict[str, Tensor]:
    """The tensors by name, wherever the file keeps them."""
    inside: Any = next((held[key] for key in other_libraries.STATES if _holds(held, key)), held)
    pairs = inside.items() if isinstance(inside, dict) else ()
    tensors = {name: value for name, value in pairs if isinstance(value, Tensor)}
    need(len(tensors) > 0, f"{path} holds no tensors by name; give a file with a model's state_dict.")
    return {str(name).removeprefix("module.").removeprefix("_orig_mod."): tensor for name, tensor in tensors.items()}


def _safetensors(path: Path) -> dict[str, Tensor]:
    files = open_file(path)
    return {name: files.read(name) for name in files.entries}
