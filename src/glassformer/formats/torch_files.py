"""Files of ``torch.save``, read by ``torch.load(weights_only=True)`` once they are known to ask for
little.

archive/data.pkl    a program for a stack machine, which may call the few functions that make tensors, and no others
archive/data/0 ...  the tensors' bytes
"""

from __future__ import annotations

import pickletools
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import families as recipes
from ..core.checkpoints.headers import Headers, TensorEntry
from ..core.checkpoints.loading import load_model
from ..core.checkpoints.recipe import ConfigReader
from ..core.checkpoints.tensors import NAMES, Files, open_file
from ..core.errors import UserError, need
from ..core.files import read_json
from ..core.nn import Model
from . import other_libraries

PROGRAM = 1 << 20, 64  # bytes that a data.pkl may have, and one more for so many of the file
# bytes that tensors may have, and times those of the file: several may share their numbers
SHARED = 64 << 20, 4
CALLS = {"collections.OrderedDict", "torch.Size"}
CALLS |= {f"torch._utils._rebuild_{name}" for name in ("tensor", "tensor_v2", "parameter")}
DATA = re.compile(r"torch\.(\w+Storage|b?float\w+|u?int\d+|bool)")  # named and not called
DEEP = 50  # tuples inside of one another; a tensor's arguments have three


def read_archive(path: Path) -> Any:
    """Contents of a file of ``torch.save``: dicts, lists, values, and tensors that lie in the file
    as it is mapped.

    Raises UserError for a file that is no such archive, is damaged, or holds anything else.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            programs = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
            _need(len(programs) == 1, path, "it is not an archive of torch.save")
            _need(
                len({entry.filename for entry in entries}) == len(entries),
                path,
                "it holds two entries of one name",
            )
            stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
            _need(stored, path, "its tensors are compressed")
            order = programs[0].filename.removesuffix("data.pkl") + "byteorder"
            little = order not in archive.namelist() or archive.read(order) == b"little"
            _need(little, path, "its numbers are big-endian")
            least, share = PROGRAM
            _need(
                programs[0].file_size <= least + path.stat().st_size // share,
                path,
                "its table is too long",
            )
            _check_program(archive.read(programs[0]), path)
            _need(archive.testzip() is None, path, "a checksum is wrong")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except zipfile.BadZipFile:
        raise UserError(
            f"{path} is not a file of torch.save, or one of before version 1.6, or cut short; "
            "save it again with "
            "torch.save, or copy it again."
        ) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); check the path and its rights."
        ) from None
    except UserError:
        raise
    except Exception:  # torch.load raises whatever its operations do
        raise _damaged(path, "its table makes no sense") from None


def _damaged(path: Path, problem: str) -> UserError:
    return UserError(
        f"{path} cannot be read ({problem}); copy it again, or save it again with torch.save."
    )


def _need(fact: bool, path: Path, problem: str) -> None:
    if not fact:
        raise _damaged(path, problem)


@dataclass(frozen=True)
class StackValue:
    """An entry of the pickle program's stack: the name of a function, or tuples with ``size``
    values in all, ``depth`` deep."""

    name: str = ""
    size: int = 1
    depth: int = 0


MARK, PLAIN = StackValue("MARK"), StackValue()


def _check_program(program: bytes, path: Path) -> None:
    """Refuse a program that calls another function, or nests tuples which would take for ever to
    hash.

    A tuple of the same tuple twice, forty times over, is written in 200 bytes and has 2^40 values;
    one of a million inside of one another overflows the stack. Only tuples: lists and dicts are no
    keys, so nobody walks through them.
    """
    stack: list[StackValue] = []
    memo: dict[Any, StackValue] = {}
    for code, argument, _ in pickletools.genops(program):
        if code.name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[argument] = stack[-1]
        elif code.name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[argument])
        elif code.name == "MARK":
            stack.append(MARK)
        else:
            items = _pop(stack, code.stack_before)
            if code.name == "GLOBAL":
                name = str(argument).replace(" ", ".")
                sentence = (
                    f"{path} names {name[:200]}, which is code and not data, so it is not read"
                )
                allowed = name in CALLS or DATA.fullmatch(name) is not None
                need(
                    allowed,
                    f"{sentence}; save the weights alone: torch.save(model.state_dict(), FILE).",
                )
                stack.append(StackValue(name))
            elif code.name.startswith("TUPLE") or code.name == "REDUCE":
                callable = code.name != "REDUCE" or items[0].name in CALLS
                result = StackValue(
                    "",
                    1 + sum(item.size for item in items),
                    1 + max((item.depth for item in items), default=0),
                )
                _need(
                    callable and result.size <= len(program) and result.depth <= DEEP,
                    path,
                    "its table makes no sense",
                )
                stack.append(result)
            else:
                _need(code.name != "NEWOBJ", path, "its table makes objects")
                stack += [PLAIN] * len(code.stack_after)


def _pop(stack: list[StackValue], before: list[Any]) -> list[StackValue]:
    """Take off the stack what an operation does: so many values, and all above the last mark where
    it says so."""
    items: list[StackValue] = []
    count = len(before)
    if pickletools.markobject in before:
        count = before.index(pickletools.markobject)
        while (item := stack.pop()) is not MARK:
            items.append(item)
    for _ in range(count):
        items.append(stack.pop())
    return items[::-1]


# ------------------------------------------------------------------------------ models of others


@dataclass(frozen=True)
class AtHand(TensorEntry):
    """A tensor that is in memory already."""

    tensor: Tensor


class Tensors(Files):
    """Tensors in memory, where files are expected."""

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        entries = {
            name: AtHand(path, NAMES[t.dtype], tuple(t.shape), 0, t.nbytes, t)
            for name, t in tensors.items()
        }
        super().__init__(Headers(path, entries))

    def load(self, name: str) -> Tensor:
        """The tensor ``name``."""
        entry = self.entries[name]
        assert isinstance(entry, AtHand)
        return entry.tensor

    take = load

    def equal(self, name: str, copy: str) -> bool:
        return torch.equal(self.load(name), self.load(copy))


def load(kind: str, path: Path, settings: Path | None = None) -> Model:
    """The model in another library's file, its weights in the dtype that most of them have.

    ``kind`` is one of ``other_libraries.PEERS``, or "hf" for a pytorch_model.bin. ``settings`` is a
    JSON file with what the weights do not say (None: as that library lays it beside them). Raises
    UserError for what is missing and for parts that no module here has.
    """
    peer = other_libraries.PEERS.get(kind)
    need(path.is_file(), f"{path} is not a file; give the one that {kind} saved.")
    contents: Any = read_archive(path) if path.suffix != ".safetensors" else _safetensors(path)
    tensors = _state(contents, path)
    if isinstance(contents, dict) and kind in ("nanogpt", "mingpt"):
        _refuse_other_kind(kind, contents, tensors, path)
    page = settings or (path.with_name("config.json") if peer is None else peer.beside(path))
    stated = (
        read_json(page, "fix it") if settings is not None or peer is None or page.is_file() else {}
    )
    if peer is None:
        files = Tensors(path, tensors)
        recipe, model = recipes.read_config(stated, str(page), files)
        return load_model(model, recipe, files, files.dtype, "cpu").eval()
    for table in (contents, stated):
        stated = {
            **stated,
            **{
                k: v
                for key in other_libraries.SETTINGS
                if _holds(table, key)
                for k, v in table[key].items()
            },
        }
    raw = ConfigReader(
        peer.describe({name: tuple(t.shape) for name, t in tensors.items()}, stated), str(page)
    )
    model = peer.parse(raw)
    files = Tensors(path, peer.prepare(tensors, raw))
    return load_model(model, peer.weights(model), files, files.dtype, "cpu").eval()


def _refuse_other_kind(
    kind: str, contents: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path
) -> None:
    """Refuse a nanoGPT for a minGPT and the other way round: their names are the same, their
    activations are not."""
    nano = "model_args" in contents  # minGPT leaves weights alone, and only nanoGPT ties its head
    table, head = (tensors.get(name) for name in ("transformer.wte.weight", "lm_head.weight"))
    tied = table is None or head is None or torch.equal(table, head)
    need(
        not (kind == "mingpt" and nano),
        f"{path}: this looks like a nanoGPT file; use --from nanogpt.",
    )
    need(
        kind == "mingpt" or nano or tied,
        f"{path}: this looks like a minGPT file; use --from mingpt.",
    )


def _holds(table: Any, key: str) -> bool:
    return isinstance(table, dict) and isinstance(table.get(key), dict)


def _state(contents: Any, path: Path) -> dict[str, Tensor]:
    """The tensors by name, wherever the file keeps them."""
    table: Any = next(
        (contents[key] for key in other_libraries.STATES if _holds(contents, key)), contents
    )
    pairs = table.items() if isinstance(table, dict) else ()
    tensors = {
        name: value for name, value in pairs if isinstance(value, Tensor) and value.dtype in NAMES
    }
    need(
        len(tensors) > 0, f"{path} holds no tensors by name; give a file with a model's state_dict."
    )
    least, times = SHARED
    sizes = {name: tensor.numel() * tensor.itemsize for name, tensor in tensors.items()}
    inside = all(size <= tensors[name].untyped_storage().nbytes() for name, size in sizes.items())
    little = sum(sizes.values()) <= least + times * path.stat().st_size
    _need(inside and little, path, "its tensors are larger than the file")
    return {
        str(name).removeprefix("module.").removeprefix("_orig_mod."): tensor
        for name, tensor in tensors.items()
    }


def _safetensors(path: Path) -> dict[str, Tensor]:
    files = open_file(path)
    return {name: files.load(name) for name in files.entries}
