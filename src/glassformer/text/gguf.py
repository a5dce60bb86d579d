"""The vocabulary in a GGUF file (llama.cpp's format): its fields, and a byte-level BPE as a tokenizer.json holds it."""

from __future__ import annotations

import struct
from typing import Any

from ..errors import UserError
from .ranks import Kind, byte_level
from .specification import Roles, Spec

MAGIC = b"GGUF"
CONTROL = 3  # the type of a special token
NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
TEXT, LIST = 8, 9
SPLITS = {"gpt-2": False, "starcoder": True, "refact": True, "command-r": True}
"""How a text is split, by the file's name for it: GPT-2's words, with each digit on its own or not."""


def fields(data: bytes) -> dict[str, Any]:
    """The fields before the weights; raises ValueError (struct.error, UnicodeDecodeError) where they are broken."""
    version, _, count = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise ValueError(f"version {version} is not known")
    found, at = {}, 24
    for _ in range(count):
        name, at = _text(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        found[name], at = _value(data, at + 4, kind)
    return found


def _text(data: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<Q", data, at)
    if at + 8 + size > len(data):
        raise ValueError("a text is longer than what is left")
    return data[at + 8 : at + 8 + size].decode(), at + 8 + size


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind == TEXT:
        return _text(data, at)
    if kind != LIST:
        if kind not in NUMBERS:
            raise ValueError(f"a field has the unknown type {kind}")
        return struct.unpack_from(NUMBERS[kind], data, at)[0], at + struct.calcsize(NUMBERS[kind])
    inner, count = struct.unpack_from("<IQ", data, at)
    if inner == LIST or count > len(data):
        raise ValueError("a list is too long, or holds lists")
    values, at = [], at + 12
    for _ in range(count):
        value, at = _value(data, at, inner)
        values.append(value)
    return values, at


def read(data: bytes, source: str) -> tuple[Spec, Roles]:
    """The tokenizer of a GGUF file, and who plays bos and eos; UserError where it is broken or of another kind."""
    try:
        found = fields(data)
        kind, split = found["tokenizer.ggml.model"], found.get("tokenizer.ggml.pre")
        names, kinds = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
        merges = [line.split(" ") for line in found.get("tokenizer.ggml.merges", [])]
        parts = {part: found.get(f"tokenizer.ggml.{part}_token_id") for part in ("bos", "eos")}
        roles: Roles = {part: None if id is None else names[id] for part, id in parts.items()}
        special = {name: id for id, name in enumerate(names) if kinds[id] == CONTROL}
    except (ValueError, struct.error, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{source} is no whole GGUF file with a vocabulary ({error}); restore the file.") from None
    if kind != "gpt2" or split not in SPLITS:
        raise UserError(f'{source} has a vocabulary of the kind "{kind}" ({split}); give its tokenizer.json instead.')
    vocabulary = {name: id for id, name in enumerate(names) if name not in special}
    known = vocabulary.keys() | special.keys()
    if len(known) != len(names) or not all(len(m) == 2 and {*m, "".join(m)} <= known for m in merges):
        raise UserError(f"{source} repeats a token or has a merge of tokens that are not there; restore the file.")
    spec = byte_level({name: id for id, name in enumerate(names)}, merges, Kind(None, {}))
    spec["added_tokens"] = byte_level({}, [], Kind(None, special))["added_tokens"] if special else []
    if SPLITS[split]:
        digits = {"type": "Digits", "individual_digits": True}
        spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, spec["pre_tokenizer"]]}
    return spec, roles
