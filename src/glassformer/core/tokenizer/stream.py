"""Ids back to text: the bytes each token stands for, and a stream that never prints half a
character."""

from __future__ import annotations

import codecs
import functools
import itertools
import re
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import UserError
from .tokenizer_json import library_errors, steps

# (a token's name, is it the first of the text?) -> the bytes it stands for
ByteDecoder = Callable[[str, bool], bytes]

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
CLEANUP = [(f" {mark}", mark) for mark in (".", "?", "!", ",")] + [(" ' ", "'")]
CLEANUP += [(f" {ending}", ending) for ending in ("n't", "'m", "'s", "'ve", "'re")]


@functools.cache
def byte_alphabet() -> dict[int, str]:
    """Byte -> the printable character that stands for it in a byte-level vocabulary (GPT-2's
    table), from 0 to 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare_codes = itertools.count(256)
    return {byte: chr(byte if byte in printable else next(spare_codes)) for byte in range(256)}


@functools.cache
def bytes_by_letter() -> dict[str, int]:
    """The byte of each character of the byte alphabet."""
    return {letter: byte for byte, letter in byte_alphabet().items()}


def byte_decoder(decoder: dict[str, Any] | None) -> ByteDecoder:
    """The rule by which token names become bytes, from the "decoder" of a tokenizer.json.

    Every rule looks at one token and at whether it comes first, so a stream and a whole text agree.
    Raises UserError for a decoder of another kind.
    """
    if decoder is None:
        return lambda name, first: (name if first else " " + name).encode()
    chain = [_compiled(step) for step in steps(decoder)]
    kinds = {step["type"] for step in chain}
    if kinds == {"ByteLevel"}:
        return _byte_level
    unknown = kinds - {
        "Replace",
        "ByteFallback",
        "ByteLevel",
        "Fuse",
        "Strip",
        "Metaspace",
        "WordPiece",
    }
    if unknown:
        raise UserError(
            f'The tokenizer decodes by "{unknown.pop()}", which is not supported; '
            "use another tokenizer."
        )

    def decode(name: str, first: bool) -> bytes:
        text: str | bytes = name
        for step in chain:
            text = _step(step, text, first)
        return text if isinstance(text, bytes) else text.encode()

    return decode


def _compiled(step: dict[str, Any]) -> dict[str, Any]:
    """The step, with the library's own engine for a regular expression; UserError where that is
    none."""
    if step["type"] != "Replace" or "String" in step["pattern"]:
        return step
    import tokenizers

    pattern = step["pattern"]["Regex"]
    try:
        return {
            **step,
            "engine": tokenizers.decoders.Replace(tokenizers.Regex(pattern), step["content"]),
        }
    except Exception as error:
        raise UserError(
            f"The tokenizer decodes by a broken regular expression ({error}); restore its file."
        ) from None


def _replaced(step: dict[str, Any], text: str) -> str:
    cannot = f"The tokenizer cannot decode {ascii(text)[:50]}"
    with library_errors(lambda error: UserError(f"{cannot} ({error}); use another tokenizer.")):
        return str(step["engine"].decode([text]))


def _byte_level(name: str, first: bool) -> bytes:
    table = bytes_by_letter()
    try:
        return bytes([table[letter] for letter in name])
    except KeyError:  # not written in the byte alphabet: it stands for itself
        return name.encode()


def _step(step: dict[str, Any], text: str | bytes, first: bool) -> str | bytes:
    kind = step["type"]
    if kind == "Strip":  # stands behind Fuse: of the whole text, so of its first token
        mark = step["content"] if isinstance(text, str) else step["content"].encode()
        for _ in range(step["start"] if first else 0):
            if not mark or not text.startswith(mark):
                break
            text = text[len(mark) :]
        return text
    if kind == "Replace" and "engine" not in step:
        old, new = step["pattern"]["String"], step["content"]
        return (
            text.replace(old, new)
            if isinstance(text, str)
            else text.replace(old.encode(), new.encode())
        )
    if isinstance(text, bytes):
        return text
    if kind == "ByteLevel":
        return _byte_level(text, first)
    if kind == "Replace":
        return _replaced(step, text)
    if kind == "ByteFallback":
        byte = BYTE_TOKEN.fullmatch(text)
        return bytes([int(byte[1], 16)]) if byte else text
    if kind == "Metaspace":
        prepends = (
            step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
            != "never"
        )
        mark = step["replacement"]
        return text.replace(mark, "" if first and prepends else " ")
    if kind == "WordPiece":
        if not first:
            text = (
                text.removeprefix(step["prefix"]) if text.startswith(step["prefix"]) else " " + text
            )
        for old, new in CLEANUP if step["cleanup"] else ():
            text = text.replace(old, new)
    return text


class Decodes(Protocol):
    """Methods of a tokenizer that a stream calls."""

    def hides(self, id: int) -> bool: ...

    def bytes_of(self, id: int, first: bool = False) -> bytes: ...


class Stream:
    """Text from ids, one at a time: what ``push`` and then ``flush`` return joins to what
    ``decode`` gives."""

    def __init__(self, tokenizer: Decodes, special: bool = False) -> None:
        self.tokenizer, self.special = tokenizer, special
        self.first = True
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """The text that is certain now: empty for a hidden special token or while a character is
        unfinished."""
        if not self.special and self.tokenizer.hides(id):
            return ""
        piece = self.tokenizer.bytes_of(id, self.first)
        self.first = False
        return self.decoder.decode(piece)

    def flush(self) -> str:
        """Releases held-back bytes (U+FFFD for an unfinished character); the stream then starts
        afresh."""
        tail = self.decoder.decode(b"", final=True)
        self.decoder.reset()
        self.first = True
        return tail
