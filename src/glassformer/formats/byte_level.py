"""Byte-level BPE as it is published: tiktoken's rank files, and vocab.json with merges.txt (GPT-2,
RoBERTa, Qwen)."""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UserError, nearest, need
from ..core.tokenizer.detokenizer import byte_alphabet
from ..core.tokenizer.tokenizer_json import (
    MOST_IDS,
    ByRank,
    Spec,
    make_spec,
)
from .tiktoken_backend import WORDS
from .tokenizer_forms import added_token
from .wordpiece import flag

LONGEST = 1024  # bytes of one token; the longest published ones have a few hundred

UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
CASED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDING}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


FILES = {"vocab.json": "merges.txt", "encoder.json": "vocab.bpe"}
SPECIAL = re.compile(r"<.+>|\[.+\]|madeupword\d+")  # how special tokens look


@dataclass(frozen=True)
class RankEncoding:
    """A published byte-level tokenizer: how it splits text, its special tokens, and its rank file's
    hash."""

    pattern: str | None  # None: GPT-2's own, which the library knows by heart
    specials: dict[str, int]
    sha256: str | None = None
    compose: bool = False  # Unicode NFC first


def _llama3() -> dict[str, int]:
    """Llama 3's 256 special tokens by Llama 3.1's names; Llama 3.0 calls some of these reserved."""
    named = {0: "begin_of_text", 1: "end_of_text", 4: "finetune_right_pad_id", 6: "start_header_id"}
    named |= {7: "end_header_id", 8: "eom_id", 9: "eot_id", 10: "python_tag"}
    free = iter(range(256))
    return {
        f"<|{named[i]}|>" if i in named else f"<|reserved_special_token_{next(free)}|>": 128000 + i
        for i in range(256)
    }


KINDS = {
    "gpt2": RankEncoding(
        None,
        {"<|endoftext|>": 50256},
        "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
    ),
    "cl100k": RankEncoding(
        WORDS.format(digits="{1,3}"),
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
        }
        | {"<|endofprompt|>": 100276},
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k": RankEncoding(
        CASED_WORDS,
        {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
    "llama3": RankEncoding(
        WORDS.format(digits="{1,3}"),
        _llama3(),
        "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
    ),
    "qwen": RankEncoding(
        WORDS.format(digits=""),
        {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645},
        "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186",
        compose=True,
    ),
}


def kind_of(name: str) -> RankEncoding:
    """The published kind of that name; UserError when there is none."""
    if name not in KINDS:
        raise UserError(f'There is no byte-level kind "{name}".{nearest(name, KINDS)}')
    return KINDS[name]


def bpe(vocabulary: dict[str, int], merges: Any, **settings: Any) -> Spec:
    """A BPE model, with the settings that are not the usual ones."""
    none = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    false = dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False)
    usual = {"type": "BPE", **dict.fromkeys(none), **false}
    return {**usual, **settings, "vocab": vocabulary, "merges": merges}


def split(pattern: str, behavior: str = "Isolated", invert: bool = False) -> Spec:
    """The step of a pre-tokenizer that cuts a text by a regular expression."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def letters_as_bytes(words: bool = False) -> Spec:
    """The step that writes bytes as GPT-2's letters; ``words``: and splits into words as GPT-2."""
    usual = {"add_prefix_space": False, "trim_offsets": False}
    return {"type": "ByteLevel", **usual, "use_regex": words}


def byte_level(
    vocabulary: dict[str, int], pairs: Any, kind: RankEncoding, whole_words: bool = False
) -> Spec:
    """A byte-level BPE as a tokenizer.json holds it; ``whole_words``: a word that is a token needs
    no merges."""
    ids = {**vocabulary, **kind.specials}
    for name, id in vocabulary.items():
        if ids[name] != id:
            raise UserError(
                f"The special token {name!a} is a piece of the vocabulary already; give "
                "it another name."
            )
    need(
        len({*ids.values()}) == len(ids),
        "This vocabulary uses ids that its kind keeps for special tokens; choose another kind=.",
    )
    cuts = letters_as_bytes(kind.pattern is None)
    if kind.pattern is not None:
        cuts = {"type": "Sequence", "pretokenizers": [split(kind.pattern), cuts]}
    return make_spec(
        bpe(vocabulary, pairs, ignore_merges=whole_words),
        added_tokens=[added_token(id, name) for name, id in kind.specials.items()],
        normalizer={"type": "NFC"} if kind.compose else None,
        pre_tokenizer=cuts,
        decoder=letters_as_bytes(),
    )


# -------------------------------------------------------------------------------- tiktoken's ranks


def read_ranks(data: bytes, name: str | None, source: str) -> Spec:
    """The tokenizer of a tiktoken file (a line per token: base64 and rank), by the kind named or by
    its hash."""
    data = data.replace(b"\r", b"")
    if name is None:
        digest = hashlib.sha256(data).hexdigest()
        name = next((label for label, kind in KINDS.items() if kind.sha256 == digest), None)
    if name is None:
        raise UserError(
            f"{source} has ranks of no known kind, or is damaged; say which with kind= "
            f"({', '.join(KINDS)})."
        )
    kind = kind_of(name)
    ranks = _parse(data, source)
    if not 0 <= min(kind.specials.values()) - len(ranks) <= 1:
        raise UserError(
            f'{source} has {len(ranks)} ranks, which is not what "{name}" has; restore it or '
            "choose a kind."
        )
    letters = byte_alphabet()
    vocabulary = {token.decode("latin-1").translate(letters): rank for token, rank in ranks.items()}
    return byte_level(vocabulary, ByRank(vocabulary), kind, whole_words=True)


def _parse(data: bytes, source: str) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line:
            continue
        try:
            text, digits = line.split(b" ")
            token, rank = binascii.a2b_base64(text, strict_mode=True), int(digits)
        except ValueError:
            raise UserError(
                f"Line {number} of {source} is not a token and its rank; restore the file."
            ) from None
        if not 0 < len(token) <= LONGEST or not 0 <= rank < 1 << 24 or token in ranks:
            raise UserError(
                f"Line {number} of {source} has an impossible or repeated token; restore the file."
            )
        ranks[token] = rank
    need(
        len(set(ranks.values())) == len(ranks),
        f"{source} gives one rank to two tokens; restore the file.",
    )
    missing = sum(bytes([byte]) not in ranks for byte in range(256))
    need(not missing, f"{source} lacks {missing} of the 256 single bytes; restore the file.")
    return dict(sorted(ranks.items(), key=lambda item: item[1]))


# -------------------------------------------------------------------------- vocabulary and merges


def read_vocabulary(
    ids: dict[str, Any],
    text: str,
    kind: str | None,
    named: Collection[str],
    config: dict[str, Any],
    source: Path,
) -> Spec:
    """The tokenizer of a vocabulary (of the file ``source``) and the text of its merges.

    What neither is a byte nor made by a merge is a special token, if it is among those ``named`` or
    looks like one.
    """
    valid = all(type(id) is int and 0 <= id < MOST_IDS for id in ids.values())
    if not valid or len({*ids.values()}) != len(ids):
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
    letters = {*byte_alphabet().values()}
    if not letters <= ids.keys():
        raise UserError(
            f"{source} lacks some of the 256 single bytes; only byte-level "
            "vocabularies have this format."
        )
    merged = letters | {first + second for first, second in pairs}
    specials = {name: id for name, id in ids.items() if name not in merged}
    strange = [name for name in specials if name not in named and not SPECIAL.fullmatch(name)]
    if strange:
        raise UserError(
            f"{merges} makes {len(strange)} of the entries in {source} by no merge, such as "
            f"{strange[0]!a}; "
            f"restore both files."
        )
    plain = {name: id for name, id in ids.items() if name in merged}
    chosen = kind_of(kind or "gpt2")
    if kind is not None:
        specials = chosen.specials | specials
    spec = byte_level(plain, pairs, RankEncoding(chosen.pattern, specials, compose=chosen.compose))
    if chosen.pattern is None:
        spec["pre_tokenizer"]["add_prefix_space"] = flag(config, "add_prefix_space", False)
    return spec
