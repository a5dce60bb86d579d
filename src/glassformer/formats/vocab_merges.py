"""A vocabulary and its merges in two files, as GPT-2, RoBERTa, Qwen and CLIP publish them."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..core.tokenizer import byte_bpe
from ..core.tokenizer.tokenizer_json import (
    MOST_IDS,
    Roles,
    Spec,
    added_token,
    between,
    flag,
    framed_by,
    split,
)
from ..core.tokenizer.vocabulary import byte_alphabet

FILES = {"vocab.json": "merges.txt", "encoder.json": "vocab.bpe"}
CLIP = "clip"
END = "</w>"  # CLIP's mark of a word's end
WORDS_OF_CLIP = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
SPECIAL = re.compile(r"<.+>|\[.+\]|madeupword\d+")  # how special tokens look


def read_tokenizer(
    ids: dict[str, Any],
    text: str,
    kind: str | None,
    named: Collection[str],
    config: dict[str, Any],
    source: Path,
) -> tuple[Spec, Roles]:
    """The tokenizer of a vocabulary (of the file ``source``) and the text of its merges.

    What neither is a byte nor made by a merge is a special token, if it is among those ``named`` or
    looks like one.
    """
    if not all(type(id) is int and 0 <= id < MOST_IDS for id in ids.values()) or len(
        {*ids.values()}
    ) != len(ids):
        raise UserError(f"{source} must give each token an id of its own; restore the file.")
    merges = source.with_name(FILES[source.name])
    pairs: list[list[str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not {*pair, "".join(pair)} <= ids.keys():
            raise UserError(
                f"Line {number} of {merges} is not a merge of two tokens in "
                f"{source}; restore both files."
            )
        pairs.append(pair)
    letters = set(byte_alphabet().values())
    letters |= {letter + END for letter in letters} if kind == CLIP else set()
    if not letters <= ids.keys():
        raise UserError(
            f"{source} lacks some of the 256 single bytes; only byte-level "
            "vocabularies have this format."
        )
    merged = letters | {left + right for left, right in pairs}
    specials = {name: id for name, id in ids.items() if name not in merged}
    strange = [name for name in specials if name not in named and not SPECIAL.fullmatch(name)]
    if strange:
        raise UserError(
            f"{merges} makes {len(strange)} of the entries in {source} by no merge, such as "
            f"{strange[0]!a}; "
            f"restore both files."
        )
    plain = {name: id for name, id in ids.items() if name in merged}
    if kind == CLIP:
        return _clip(ids, pairs, specials)
    chosen = byte_bpe.kind_of(kind or "gpt2")
    if kind is not None:
        specials = chosen.specials | specials
    spec = byte_bpe.byte_level(
        plain, pairs, byte_bpe.RankEncoding(chosen.pattern, specials, compose=chosen.compose)
    )
    if chosen.pattern is None:
        spec["pre_tokenizer"]["add_prefix_space"] = flag(config, "add_prefix_space", False)
    return spec, {}


def _clip(
    ids: dict[str, int], pairs: list[list[str]], specials: dict[str, int]
) -> tuple[Spec, Roles]:
    """CLIP's: small letters, words without the space before them, a mark at their end."""
    first, last = "<|startoftext|>", "<|endoftext|>"
    if not {first, last} <= specials.keys():
        raise UserError(
            f"This vocabulary lacks {first} or {last} and so is not CLIP's; restore it."
        )
    spec = byte_bpe.byte_level(ids, pairs, byte_bpe.RankEncoding(None, {}))
    words = split(WORDS_OF_CLIP, "Removed", invert=True)
    replaced = {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}
    spec["added_tokens"] = [added_token(id, name) for name, id in specials.items()]
    spec["normalizer"] = {
        "type": "Sequence",
        "normalizers": [{"type": "NFC"}, replaced, {"type": "Lowercase"}],
    }
    spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [words, spec["pre_tokenizer"]]}
    spec["model"] |= {"end_of_word_suffix": END, "unk_token": last}
    ended = {"type": "Replace", "pattern": {"String": END}, "content": " "}
    spec["decoder"] = {"type": "Sequence", "decoders": [spec["decoder"], ended]}
    names = {id: name for name, id in ids.items()}
    spec["post_processor"] = framed_by(*between(ids[first], ids[last], doubled=True), names)
    return spec, {"bos": first, "eos": last, "unk": last, "pad": last}
