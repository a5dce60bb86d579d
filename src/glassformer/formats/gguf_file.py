"""GGUF files (llama.cpp's format) as bytes: their fields, and where their tensors lie. Nothing in
them is believed.

"GGUF"  version  tensors  fields | key, type, value .. | name, shape, kind, offset .. | padding | the tensors' bytes

The package gguf knows the kinds of numbers, decodes them and writes files. Its reader takes 7.7 s
for a vocabulary of 128,000 tokens (here 0.2 s) and believes what a list says of its length.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

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
    "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS "
    "IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4"
)
"""The kinds of numbers that are read, by the format's names."""


class GGUFTensor(NamedTuple):
    """A tensor: the name of its kind, its shape (rows first), its first byte and its bytes."""

    kind: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class Header:
    """The bytes before the tensors, read in order; UserError where less is left than they say."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file = path, file
        self.size = self.left = os.fstat(file.fileno()).st_size
        self.at = "its first bytes"  # what is being read, for the sentence about it

    def damaged(self, problem: str) -> UserError:
        return UserError(
            f"{self.path} is not a whole GGUF file ({self.at}: {problem}); copy it again."
        )

    def bytes(self, size: int) -> bytes:
        """The next bytes."""
        self.left -= size
        data = self.file.read(size) if self.left >= 0 else b""
        if len(data) < size:
            raise self.damaged("something is longer than what is left of the file")
        return data

    def numbers(self, letters: str) -> tuple[Any, ...]:
        """The next numbers, by `struct`'s letters."""
        return struct.unpack("<" + letters, self.bytes(struct.calcsize("<" + letters)))

    def text(self) -> str:
        """The next text."""
        (size,) = self.numbers("Q")
        if size > MOST_TEXT:
            raise self.damaged(f"a text of {size} bytes is too long")
        try:
            return self.bytes(size).decode()
        except UnicodeDecodeError as error:
            raise self.damaged(f"a text is not UTF-8 at its byte {error.start}") from None

    def value(self, kind: int) -> Any:
        """The next value of this type."""
        if kind == TEXT:
            return self.text()
        if kind in SIZED:
            return self.numbers(SIZED[kind])[0]
        if kind != LIST:
            raise self.damaged(f"a field has the unknown type {kind}")
        inner, count = self.numbers("IQ")
        if count > (MOST_TEXTS if inner == TEXT else self.left) or inner not in (TEXT, *SIZED):
            raise self.damaged("a list is too long, or holds lists")
        if inner == TEXT:
            return [self.text() for _ in range(count)]
        return list(self.numbers(f"{count}{SIZED[inner]}"))

    def fields(self) -> tuple[dict[str, Any], int]:
        """The fields, and how many tensors follow."""
        if self.bytes(len(MAGIC)) != MAGIC:
            raise self.damaged("it does not begin as one")
        version, tensors, count = self.numbers("IQQ")
        if version not in (2, 3):
            raise self.damaged(f"version {version} is not known")
        if max(tensors, count) > MOST:
            raise self.damaged(f"{tensors} tensors and {count} fields are more than any model has")
        fields = {}
        for number in range(count):
            self.at = f"the name of field {number + 1} of {count}"
            name = self.text()
            self.at = f"the field {name[:100]!a}"
            if name in fields:
                raise self.damaged("it comes twice")
            fields[name] = self.value(self.numbers("I")[0])
        return fields, tensors

    def tensors(self, count: int, alignment: Any) -> dict[str, GGUFTensor]:
        """The tensors by name; one that reaches over the end is refused."""
        from gguf import GGML_QUANT_SIZES

        if type(alignment) is not int or not 1 <= alignment <= 1 << 20:
            raise self.damaged(f"an alignment of {str(alignment)[:20]} cannot be")
        kinds = {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
        tensors: dict[str, GGUFTensor] = {}
        for number in range(count):
            self.at = f"the name of tensor {number + 1} of {count}"
            name = self.text()
            self.at = f"tensor {number + 1} of {count}, {name[:100]!a}"
            (axes,) = self.numbers("I")
            if not 1 <= axes <= 4:
                raise self.damaged(f"a tensor has {axes} axes")
            shape = self.numbers("Q" * axes)[::-1]
            kind_number, start = self.numbers("IQ")
            kind, block, width = kinds.get(kind_number, (str(kind_number), 1, 1))
            need(
                kind in KINDS.split(),
                f"{self.path}: {name[:100]!a} holds numbers of the kind {kind}, which is not read "
                "here; load the model it was made of, or quantize that anew, as Q8_0 or Q4_K.",
            )
            if math.prod(shape) > 1 << 48 or shape[-1] % block or name in tensors:
                raise self.damaged(f"it cannot be of the shape {list(shape)}, or comes twice")
            tensors[name] = GGUFTensor(kind, shape, start, math.prod(shape) // block * width)
        # each begins where the one before ends, as llama.cpp demands
        head = end = -(-(self.size - self.left) // alignment) * alignment
        for name, (kind, shape, start, size) in tensors.items():
            self.at = f"the tensor {name[:100]!a}"
            if head + start != end or end + size > self.size:
                raise self.damaged("it overlaps another, leaves a gap or reaches over the end")
            tensors[name] = GGUFTensor(kind, shape, end, size)
            end += -(-size // alignment) * alignment
        self.at = "its end"
        if end < self.size:
            raise self.damaged(f"{self.size - end} bytes follow the tensors")
        return tensors


def read_gguf(path: Path, tensors: bool = True) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
    """The fields of a file, and its ``tensors`` if they are wanted; UserError for one that is
    damaged or of a kind that is not read here."""
    try:
        with path.open("rb") as file:
            head = Header(path, file)
            fields, count = head.fields()
            alignment = fields.get("general.alignment", ALIGNMENT)
            return fields, head.tensors(count, alignment) if tensors else {}
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path.") from None
