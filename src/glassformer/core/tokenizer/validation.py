"""What a tokenizer's file may not do: panic inside the library, blow a text up, or lose characters
unseen."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from .tokenizer_json import Spec, reason, steps
from .vocabulary import byte_alphabet

if TYPE_CHECKING:
    import tokenizers

MOST_GROWTH = 256  # characters made of one; the longest published replacement has 18
LOST = "\0 lost"  # stands where a BPE without an unknown token would leave a character out
LEAF, VALUE = 1 << 8, (1 << 31) - 1  # of a unit of the table: an entry ends here; what it is
SMALL_LABEL, LARGE_OFFSET = (1 << 31) | 0xFF, 1 << 9


def check(spec: Spec) -> None:
    """ValueError for a damaged table of character replacements, or replacements that blow a text
    up."""
    for component in ("normalizer", "decoder"):
        growth = 1.0
        for step in steps(spec.get(component)):
            growth *= _growth(step)
        if growth > MOST_GROWTH:
            raise ValueError(
                f"the replacements of its {component} make over {MOST_GROWTH} characters of one"
            )


def _growth(step: dict[str, Any]) -> float:
    """Number of characters that a step can make of one."""
    if step.get("type") == "Precompiled":
        return charsmap(base64.b64decode(step["precompiled_charsmap"], validate=True))
    if step.get("type") != "Replace":
        return 1.0
    pattern, content = step["pattern"], step["content"]
    if "String" in pattern:
        return max(1.0, len(content) / max(1, len(pattern["String"])))
    return 1.0 + len(content)  # a pattern may match between any two characters


def charsmap(table: bytes) -> int:
    """The most characters that SentencePiece's table makes of one; ValueError where it is damaged.

    A size, a trie in a double array (darts-clone: a unit of 4 bytes has label, offset and leaf),
    then texts that end in a zero byte. The library follows it without looking where it leads.
    """
    size = int.from_bytes(table[:4], "little")
    if len(table) < 4 or size % 4 or not 0 < size <= len(table) - 4:
        raise ValueError("its table of character replacements is cut short")
    units, texts = np.frombuffer(table, "<u4", size // 4, 4).astype(np.int64), table[4 + size :]
    texts.decode()
    offsets = (units >> 10) << ((units & LARGE_OFFSET) >> 6)
    visited = np.zeros(len(units), bool)
    front, starts = np.zeros(1, np.int64), [0]
    while len(front):
        visited[front] = True
        base = front ^ offsets[front]
        if (base | 0xFF).max() >= len(units):
            raise ValueError("its table of character replacements leads out of itself")
        starts += (units[base[(units[front] & LEAF) != 0]] & VALUE).tolist()
        children = base[:, None] ^ np.arange(1, 256)
        reached = np.unique(children[(units[children] & SMALL_LABEL) == np.arange(1, 256)])
        front = reached[~visited[reached]]
    longest = 0
    for start in set(starts):
        if start >= len(texts) + (start == 0) or (start and texts[start] & 0xC0 == 0x80):
            raise ValueError("its table of character replacements leads out of itself")
        end = texts.find(b"\0", start)
        longest = max(longest, len(texts[start : end if end >= 0 else len(texts)].decode()))
    return max(1, longest)


def marking_lost(spec: Spec) -> Spec:
    """The specification with a token, ``LOST``, that stands for each character the model would
    leave out.

    Only a BPE with no unknown token leaves any out, where not every byte is an entry; others come
    back as they are.
    """
    model = spec["model"]
    if model["type"] != "BPE" or model.get("unk_token") is not None:
        return spec
    vocabulary: dict[str, int] = model["vocab"]
    if model.get("byte_fallback") and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        return spec
    unaffixed = not (model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"))
    kinds = {
        step.get("type")
        for component in ("normalizer", "pre_tokenizer")
        for step in steps(spec.get(component))
    }
    if unaffixed and "ByteLevel" in kinds and vocabulary.keys() >= {*byte_alphabet().values()}:
        return spec
    ids = {
        **vocabulary,
        **{token["content"]: token["id"] for token in spec["added_tokens"] if token["content"]},
    }
    vocabulary = {**ids, LOST: max(ids.values(), default=-1) + 1}
    return {**spec, "model": {**model, "vocab": vocabulary, "unk_token": LOST, "fuse_unk": False}}


def refusal(texts: Sequence[Any], library: tokenizers.Tokenizer, error: BaseException) -> UserError:
    """Why the library could not encode these texts: the first thing that is not a text or that it
    does not know."""
    for text in texts:
        if not isinstance(text, str):
            return UserError(
                f"A tokenizer encodes texts, and this is a {type(text).__name__}; give a str."
            )
        for letter in dict.fromkeys(text):
            at = text.index(letter)
            if 0xD800 <= ord(letter) < 0xE000:
                return UserError(
                    f"Character {at} of the text is half of a surrogate pair; remove it."
                )
            if not _knows(letter, library):
                return UserError(
                    "The tokenizer does not know the character "
                    f"{json.dumps(letter, ensure_ascii=False)} (number {at} "
                    f"of the text); remove it or train a tokenizer on text that has it."
                )
    return UserError(
        f"The tokenizer cannot encode this text ({reason(error)}); use another tokenizer."
    )


def _knows(letter: str, library: tokenizers.Tokenizer) -> bool:
    try:
        return library.token_to_id(LOST) not in library.encode(letter, add_special_tokens=False).ids
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return not isinstance(error, Exception)  # a panic is the library's fault, not the letter's
