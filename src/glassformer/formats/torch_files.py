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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import families as recipes
from ..core.checkpoints.headers import Headers, TensorEntry
from ..core.checkpoints.tensors import NAMES, Files, open_file
from ..core.errors import UserError, need
from ..core.files import read_json
from ..core.nn import Model
from . import other_libraries
from .weights import load_model

PROGRAM = 1 << 20, 64  # bytes that a data.pkl may have, and one more for so many of the file
# bytes that tensors may have, and times those of the file: several may share their numbers
SHARED = 64 << 20, 4
CALLS = {"collections.OrderedDict", "torch.Size"}
CALLS |= {f"torch._utils._rebuild_{name}" for name in ("tensor", "tensor_v2", "parameter")}
DATA = re.compile(r"torch\.(\w+Storage|b?float\w+|u?int\d+|bool)")  # named and not called
MOST = 10_000  # values of a tuple in all; a tensor's arguments have some twenty
MARK = "("
STATES = ("model", "state_dict", "model_state_dict")  # where a file may keep its weights
# and where it, or a page beside it, says the rest; the first of them that names a word counts
SETTINGS = ("model_args", "model_config", "model", "cfg", "config")


def read_archive(path: Path) -> Any:
    """Contents of a file of ``torch.save``: dicts, lists, values, and tensors that lie in the file
    as it is mapped.

    Raises UserError for a file that is no such archive, is damaged, or holds anything else.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries, (least, share) = archive.infolist(), PROGRAM
            programs = [entry for entry in entries if entry.filename.lower().endswith("/data.pkl")]
            stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
            _need(len(programs) == 1, path, "it is not an archive of torch.save")
            _need(stored, path, "its tensors are compressed")
            size = least + path.stat().st_size // share
            _need(programs[0].file_size <= size, path, "its table is too long")
            _check_program(archive.read(programs[0]), path)
            _need(archive.testzip() is None, path, "a checksum is wrong")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except zipfile.BadZipFile:
        raise UserError(
            f"{path} is not a file of torch.save, or one of before version 1.6, or cut short; "
            "save it again with torch.save, or copy it again."
        ) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); check the path and its rights."
        ) from None
    except UserError:
        raise
    except Exception:  # torch.load raises whatever its operations do
        _need(False, path, "its table makes no sense")


def _need(fact: bool, path: Path, problem: str) -> None:
    need(
        fact,
        f"{path} cannot be read ({problem}); copy it again, or save it again with torch.save.",
    )


def _check_program(program: bytes, path: Path) -> None:
    """Refuse a program that calls another function, or nests tuples which would take for ever to
    hash.

    A tuple of the same tuple twice, forty times over, is written in 200 bytes and has 2^40 values;
    one of a million inside of one another overflows the stack. Only tuples: lists and dicts are no
    keys, so nobody walks through them.
    """
    stack: list[str | int] = []  # names of functions, and how many values a value has in all
    memo: dict[Any, str | int] = {}
    for code, argument, _ in pickletools.genops(program):
        if code.name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[argument] = stack[-1]
        elif code.name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[argument])
        elif code.name == "MARK":
            stack.append(MARK)
        elif code.name == "GLOBAL":
            name = str(argument).replace(" ", ".")
            need(
                name in CALLS or DATA.fullmatch(name) is not None,
                f"{path} names {name[:200]}, which is code and not data, so it is not read; save "
                "the weights alone: torch.save(model.state_dict(), FILE).",
            )
            stack.append(name)
        else:
            items = _pop(stack, code.stack_before)
            if code.name.startswith("TUPLE") or code.name == "REDUCE":
                size = 1 + sum(item if isinstance(item, int) else 1 for item in items)
                callable = code.name != "REDUCE" or items[0] in CALLS
                _need(callable and size <= MOST, path, "its table makes no sense")
                stack.append(size)
            else:
                _need(code.name != "NEWOBJ", path, "its table makes objects")
                stack += [1] * len(code.stack_after)


def _pop(stack: list[str | int], before: list[Any]) -> list[str | int]:
    """Take off the stack what an operation does: so many values, and all above the last mark where
    it says so."""
    items: list[str | int] = []
    count = len(before)
    if pickletools.markobject in before:
        count = before.index(pickletools.markobject)
        while (item := stack.pop()) != MARK:
            items.append(item)
    for _ in range(count):
        items.append(stack.pop())
    return items[::-1]


# ------------------------------------------------------------------------------ models of others


def load(kind: str, path: Path, settings: Path | None = None) -> Model:
    """The model in another library's file, its weights in the dtype that most of them have.

    ``kind`` is one of ``other_libraries.PEERS``, or "hf" for a pytorch_model.bin. ``settings`` is a
    JSON file with what the weights do not say (None: as that library lays it beside them). Raises
    UserError for what is missing and for parts that no module here has.
    """
    peer = other_libraries.PEERS.get(kind)
    need(path.is_file(), f"{path} is not a file; give the one that {kind} saved.")
    if path.suffix == ".safetensors":
        opened = open_file(path)
        contents: Any = {name: opened.load(name) for name in opened.entries}
    else:
        contents = read_archive(path)
    tensors = _state(contents, path)
    page = settings or other_libraries.page_beside(kind, path)
    must_exist = settings is not None or peer is None
    stated = read_json(page, "fix it") if must_exist or page.is_file() else {}
    if peer is None:
        files = in_memory(path, tensors)
        recipe, model = recipes.read_config(stated, str(page), files)
        return load_model(model, *recipe.names(model), files, files.dtype, "cpu").eval()
    if isinstance(contents, dict) and kind in ("nanogpt", "mingpt"):
        _refuse_other_kind(kind, contents, tensors, path)
    for table in (contents, stated):
        for key in reversed(SETTINGS):
            stated = {**stated, **(_table(table, key) or {})}
    model, names, tensors = peer(tensors, stated, str(page))
    files = in_memory(path, tensors)
    return load_model(model, names, model, files, files.dtype, "cpu").eval()


def in_memory(path: Path, tensors: Mapping[str, Tensor]) -> Files:
    """Tensors in memory, where files are expected."""
    entries = {
        name: TensorEntry(path, NAMES[t.dtype], tuple(t.shape), 0, t.nbytes, t.detach)
        for name, t in tensors.items()
    }
    return Files(Headers(path, entries))


def _refuse_other_kind(
    kind: str, contents: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path
) -> None:
    """Refuse a nanoGPT for a minGPT and the other way round: their names are the same, their
    activations are not."""
    nano = "model_args" in contents  # minGPT leaves weights alone, and only nanoGPT ties its head
    table, head = (tensors.get(name) for name in ("transformer.wte.weight", "lm_head.weight"))
    tied = table is None or head is None or torch.equal(table, head)
    other = "nanogpt" if nano else "mingpt"
    need(
        kind == other or (kind == "nanogpt" and tied),
        f"{path}: this looks like a {other[:-3]}GPT file; use --from {other}.",
    )


def _table(contents: Any, key: str) -> dict[str, Any] | None:
    """The table under a key, None where there is none."""
    value = contents.get(key) if isinstance(contents, dict) else None
    return value if isinstance(value, dict) else None


def _state(contents: Any, path: Path) -> dict[str, Tensor]:
    """The tensors by name, wherever the file keeps them."""
    table = next((table for key in STATES if (table := _table(contents, key))), contents)
    tensors = {
        str(name).removeprefix("module.").removeprefix("_orig_mod."): value
        for name, value in (table.items() if isinstance(table, dict) else ())
        if isinstance(value, Tensor) and value.dtype in NAMES
    }
    need(bool(tensors), f"{path} holds no tensors by name; give a file with a model's state_dict.")
    least, times = SHARED
    sizes = [(t.numel() * t.itemsize, t.untyped_storage().nbytes()) for t in tensors.values()]
    fits = sum(size for size, _ in sizes) <= least + times * path.stat().st_size
    fits = fits and all(size <= stored for size, stored in sizes)
    _need(fits, path, "its tensors are larger than the file")
    return tensors
