"""The bytes that a token's name stands for, by the "decoder" of a tokenizer.json."""

from __future__ import annotations

import re
from typing import Any

from ..errors import UserError
from .tokenizer_json import library_errors, steps
from .vocabulary import ByteDecoder, byte_level

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
CLEANUP = [(f" {mark}", mark) for mark in (".", "?", "!", ",")] + [(" ' ", "'")]
CLEANUP += [(f" {ending}", ending) for ending in ("n't", "'m", "'s", "'ve", "'re")]


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
        return byte_level
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
        return byte_level(text, first)
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
