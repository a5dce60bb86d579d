"""The bytes that a token's name stands for, by the "decoder" of a tokenizer.json."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..errors import UserError
from .library import library_errors
from .tokenizer_json import Spec, steps
from .vocabulary import ByteDecoder, byte_level

if TYPE_CHECKING:
    import tokenizers

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
KINDS = {"Replace", "ByteFallback", "ByteLevel", "Fuse", "Strip", "Metaspace", "WordPiece"}
AHEAD = "\0"  # stands before a token that is not the first of a text


def byte_decoder(spec: Spec, library: Callable[[], tokenizers.decoders.Decoder]) -> ByteDecoder:
    """The rule by which token names become bytes.

    The library decodes each token alone, so that a stream and a whole text agree; what is no
    character by itself is read here. ``library`` opens its decoder, which a byte-level vocabulary
    does not need. Raises UserError for a decoder of another kind.
    """
    chain = list(steps(spec.get("decoder")))
    kinds = {step["type"] for step in chain}
    for kind in kinds - KINDS:
        raise UserError(
            f'The tokenizer decodes by "{kind}", which is not supported; use another tokenizer.'
        )
    # found whole in a text, and written so, where nothing puts spaces between tokens
    added = set[str]()
    if chain and kinds != {"WordPiece"}:
        added = {token["content"] for token in spec["added_tokens"]}
    if kinds == {"ByteLevel"}:
        return partial(byte_level, added=frozenset(added))
    if not chain:
        return lambda name, first: (name if first else " " + name).encode()
    decoder = library()
    replaced = [
        (step["pattern"]["String"].encode(), step["content"].encode())
        for step in chain
        if "String" in step.get("pattern", ())
    ]

    def decode_texts(*names: str) -> str:
        cannot = f"The tokenizer cannot decode {ascii(names[-1])[:50]}"
        with library_errors(lambda error: UserError(f"{cannot} ({error}); use another tokenizer.")):
            return decoder.decode([*names])

    def decode(name: str, first: bool) -> bytes:
        if name in added:
            return name.encode()
        text = (
            decode_texts(name) if first else decode_texts(AHEAD, name)[len(decode_texts(AHEAD)) :]
        )
        byte = BYTE_TOKEN.fullmatch(name)
        if "\ufffd" in text and "ByteFallback" in kinds and byte:
            return bytes([int(byte[1], 16)])
        if "\ufffd" in text and "ByteLevel" in kinds:
            raw = byte_level(name, first)
            for old, new in replaced:
                raw = raw.replace(old, new)
            return raw
        return text.encode()

    return decode
