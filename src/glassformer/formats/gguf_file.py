"""GGUF files (llama.cpp's format) as bytes: their fields, and where their tensors lie. Nothing in
them is believed.

"GGUF"  version  tensors  fields | key, type, value .. | name, shape, kind, offset .. | padding | the tensors' bytes
"""

from __future__ import annotations

import itertools
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..core.errors import UserError, need

MAGIC = b"GGUF"
SIZED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9
MOST = 1 << 16  # tensors, and fields: the largest models have some thousand
# in a list: the largest vocabularies have a quarter of a million tokens, and twice as many merges
MOST_TEXTS = 1 << 21
MOST_TEXT = 1 << 24  # bytes of one text; templates of chats are the longest
ALIGNMENT = 32  # of a tensor's first byte, where the file does not say another
KINDS = (
    "F32 F16 Q4_0 Q4_1 - - Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS "
    "IQ3_XXS IQ1_S IQ4_NL"
)
KINDS += " IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 - - - TQ1_0 TQ2_0 - - - MXFP4"
NAMES = dict(enumerate(KINDS.split()))
"""What the format calls its kinds of numbers."""
BLOCKS = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q8_0": (32, 34), "Q4_0": (32, 18)}
BLOCKS |= {"Q4_K": (256, 144), "Q6_K": (256, 210)}
"""Numbers in a block of each kind that is read here, and its bytes."""


@dataclass(frozen=True)
class GGUFTensor:
    """A tensor: the name of its kind, its shape (rows first) and its bytes in the file."""

    kind: str
    shape: tuple[int, ...]
    start: int
    end: int


class _File:
    """A file read in order; ValueError where less is left than is said."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.left = file, os.fstat(file.fileno()).st_size
        self.at = "its first bytes"  # what is being read, for who has to say what is broken

    def bytes(self, size: int) -> bytes:
        """The next bytes."""
        self.left -= size
        if self.left < 0:
            raise ValueError("something is longer than what is left of the file")
        return self.file.read(size)

    def numbers(self, letters: str) -> tuple[Any, ...]:
        """The next numbers, by `struct`'s letters."""
        return struct.unpack("<" + letters, self.bytes(struct.calcsize("<" + letters)))

    def text(self) -> str:
        """The next text."""
        (size,) = self.numbers("Q")
        if size > MOST_TEXT:
            raise ValueError(f"a text of {size} bytes is too long")
        try:
            return self.bytes(size).decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"a text is not UTF-8 at its byte {error.start}") from None

    def value(self, kind: int) -> Any:
        """The next value of this type."""
        if kind == TEXT:
            return self.text()
        if kind in SIZED:
            return self.numbers(SIZED[kind])[0]
        if kind != LIST:
            raise ValueError(f"a field has the unknown type {kind}")
        inner, count = self.numbers("IQ")
        if count > (MOST_TEXTS if inner == TEXT else self.left) or inner not in (TEXT, *SIZED):
            raise ValueError("a list is too long, or holds lists")
        return (
            [self.text() for _ in range(count)]
            if inner == TEXT
            else list(self.numbers(f"{count}{SIZED[inner]}"))
        )


def fields(path: Path) -> dict[str, Any]:
    """The fields before the weights; raises ValueError (struct.error) where they are broken."""
    with path.open("rb") as opened:
        return _fields(_File(opened))[0]


def _fields(file: _File) -> tuple[dict[str, Any], int]:
    """The fields, and how many tensors follow."""
    if file.bytes(len(MAGIC)) != MAGIC:
        raise ValueError("it does not begin as one")
    version, tensors, count = file.numbers("IQQ")
    if version not in (2, 3):
        raise ValueError(f"version {version} is not known")
    if max(tensors, count) > MOST:
        raise ValueError(f"{tensors} tensors and {count} fields are more than any model has")
    fields = {}
    for number in range(count):
        file.at = f"the name of field {number + 1} of {count}"
        name = file.text()
        file.at = f"the field {name[:100]!a}"
        fields[name] = file.value(file.numbers("I")[0])
    return fields, tensors


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
    """The fields and the tensors of a file; UserError for one that is damaged or of a kind that is
    not read here."""
    file: _File | None = None
    try:
        with path.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            file = _File(opened)
            fields, count = _fields(file)
            file.at = "its header"
            stated = [_stated(file, f"tensor {number + 1} of {count}") for number in range(count)]
            file.at = "the tensors' places"
        places = _placed(
            stated, size - file.left, size, fields.get("general.alignment", ALIGNMENT), path
        )
    except (ValueError, struct.error) as error:
        if isinstance(error, UserError):
            raise
        at = "" if file is None else f"{file.at}: "
        raise UserError(f"{path} is not a whole GGUF file ({at}{error}); copy it again.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path.") from None
    return fields, places


def _stated(file: _File, which: str) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape (rows first), kind and offset of the next tensor."""
    file.at = f"the name of {which}"
    name = file.text()
    file.at = f"{which}, {name[:100]!a}"
    (axes,) = file.numbers("I")
    if not 1 <= axes <= 4:
        raise ValueError(f"a tensor has {axes} axes")
    shape = file.numbers("Q" * axes)
    return (name, shape[::-1], *file.numbers("IQ"))


def _placed(
    stated: list[tuple[str, tuple[int, ...], int, int]],
    head: int,
    size: int,
    alignment: Any,
    path: Path,
) -> dict[str, GGUFTensor]:
    """Location of each tensor; one that reaches over the end or into another is refused."""
    if (
        not isinstance(alignment, int)
        or isinstance(alignment, bool)
        or not 1 <= alignment <= 1 << 20
    ):
        raise ValueError(f"an alignment of {str(alignment)[:20]} cannot be")
    start, places = -(-head // alignment) * alignment, dict[str, GGUFTensor]()
    for name, shape, number, offset in stated:
        kind = NAMES.get(number, "-")
        subject = (
            f"{path}: {name[:100]!a} holds numbers of the kind {kind if kind != '-' else number}"
        )
        fix = f"load the model it was made of, or quantize that anew as one of {', '.join(BLOCKS)}."
        need(kind in BLOCKS, f"{subject}, which is not read here; {fix}")
        numbers, width = BLOCKS[kind]
        if math.prod(shape) > 1 << 48 or shape[-1] % numbers or name in places:
            raise ValueError(
                f"the tensor {name[:100]!a} cannot be of the shape {list(shape)}, or comes twice"
            )
        at = start + offset
        end = at + math.prod(shape) // numbers * width
        if offset % alignment or end > size:
            raise ValueError(
                f"the tensor {name[:100]!a} reaches over the end, or begins within a number"
            )
        places[name] = GGUFTensor(kind, shape, at, end)
    spans = sorted((place.start, place.end) for place in places.values())
    if any(end > after for (_, end), (after, _) in itertools.pairwise(spans)):
        raise ValueError("two tensors share bytes")
    return places
