"""SentencePiece `.model` files, as a tokenizer.json holds them."""

from __future__ import annotations

import base64
import math
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import UserError, need
from ..core.tokenizer.tokenizer_json import (
    Roles,
    Spec,
    ids_of,
    make_spec,
    merges_by_rank,
)
from .byte_level import LONGEST, bpe, split
from .tokenizer_forms import added_token, around
from .wordpiece import flag

MARK = "▁"  # how SentencePiece writes a space
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
CERTAIN = 1000.0  # a score that no other way to write a user-defined piece reaches
SPECIAL = (UNKNOWN, CONTROL)
DEEPEST = 256  # bytes of what a character replacement stands for; the longest published one has some twenty


class VocabularyEntry(NamedTuple):
    """An entry of the vocabulary."""

    text: str
    score: float
    kind: int = NORMAL


@dataclass(frozen=True)
class SentencePieceModel:
    """Fields of a SentencePiece model that decide ids."""

    pieces: list[VocabularyEntry]
    algorithm: int = UNIGRAM
    charsmap: bytes = b""  # the compiled table of character replacements; empty: none
    dummy_prefix: bool = True  # a space before the text
    fewer_spaces: bool = True  # no spaces at the ends, no runs of them
    role_ids: dict[str, int] = field(default_factory=dict)  # bos, eos, pad, unk; negative: none


def parse(data: bytes, source: str) -> SentencePieceModel:
    """The model in the bytes of a SentencePiece file; UserError where they hold none."""
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    try:
        model.ParseFromString(data)
        pieces = [VocabularyEntry(piece.piece, piece.score, piece.type) for piece in model.pieces]
        problem = _problem(pieces, model)
    except DecodeError as error:
        problem = str(error)
    if problem is not None:
        raise UserError(
            f"{source} is not a whole SentencePiece model ({problem}); restore the file."
        )
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    suffixed = trainer.treat_whitespace_as_suffix or not normalizer.escape_whitespaces
    need(
        trainer.model_type in (UNIGRAM, BPE) and not suffixed,
        f"{source} is a SentencePiece model of a rare kind; only Unigram and BPE can be read.",
    )
    role_ids = {role: getattr(trainer, f"{role}_id") for role in ("unk", "bos", "eos", "pad")}
    return SentencePieceModel(
        pieces,
        trainer.model_type,
        normalizer.precompiled_charsmap,
        normalizer.add_dummy_prefix,
        normalizer.remove_extra_whitespaces,
        role_ids,
    )


def _problem(pieces: list[VocabularyEntry], model: Any) -> str | None:
    """Returns the fault of a file that can be read, None where it has none."""
    texts = {piece.text for piece in pieces}
    if not pieces:
        return "it has no vocabulary"
    # they stand behind the pieces
    if not (model.HasField("trainer_spec") and model.HasField("normalizer_spec")):
        return "it ends before it says how it splits a text"
    if len(texts) != len(pieces):
        return "two entries have the same text"
    readable = all(type(text) is str and 0 < len(text) <= LONGEST for text in texts)
    if not readable or not all(math.isfinite(piece.score) for piece in pieces):
        return "an entry has no text, an endless text or no score"
    if [piece.kind for piece in pieces].count(UNKNOWN) != 1:
        return "it must have one entry for unknown characters"
    if not is_charsmap(model.normalizer_spec.precompiled_charsmap):
        return "its table of character replacements is damaged or cut short"
    return None


def is_charsmap(table: bytes) -> bool:
    """True for a table of character replacements that never leads outside itself, where the library
    would panic.

    It is a trie as a double array, its size in bytes first, and behind it texts that end in a zero
    byte.
    """
    size = int.from_bytes(table[:4], "little")
    if not table or not 4 + size < len(table) or table[-1] or size % 1024:
        return not table
    units = np.frombuffer(table, "<u4", size // 4, 4)
    texts = b"\0" + table[4 + size :]
    labels = np.arange(1, 256)
    nodes = np.zeros(1, np.int64)
    for _ in range(DEEPEST):
        bases = nodes ^ (units[nodes] >> 10 << (units[nodes] >> 6 & 8))
        if bases.max(initial=0) >= len(units):
            return False
        values = units[bases[units[nodes] >> 8 & 1 == 1]] & 0x7FFFFFFF
        if any(value >= len(texts) - 1 or texts[value] for value in values.tolist()):
            return False
        inside = bases[:, None] ^ labels
        nodes = np.unique(inside[units[inside] & 0x800000FF == labels])
    return not len(nodes)


# ------------------------------------------------------------------------- as a tokenizer.json


def read_tokenizer(data: bytes, source: str, sentinels: int = 0) -> tuple[Spec, Roles]:
    """The tokenizer of a SentencePiece file, and who plays bos, eos, pad and unk.

    ``sentinels``: how many ``<extra_id_N>`` T5 adds behind the vocabulary. Raises UserError for a
    broken file.
    """
    model = parse(data, source)
    pieces = model.pieces
    spec = to_tokenizer_json(model)
    spec["added_tokens"] += [
        added_token(len(pieces) + i, f"<extra_id_{sentinels - 1 - i}>") for i in range(sentinels)
    ]
    special = {id: pieces[id].text for id, piece in enumerate(pieces) if piece.kind in SPECIAL}
    return spec, {role: special.get(id) for role, id in model.role_ids.items()}


def read_deberta(data: bytes, source: str, config: dict[str, Any]) -> tuple[Spec, Roles]:
    """The tokenizer of DeBERTa's versions 2 and 3: [CLS] text [SEP], and [MASK] behind the
    vocabulary where it is not in it."""
    spec, roles = read_tokenizer(data, source)
    for word in ("do_lower_case", "split_by_punct"):
        need(
            not flag(config, word, False),
            f'"{word}" of the tokenizer_config.json beside {source} is not read here; give its '
            "tokenizer.json.",
        )
    ids = ids_of(spec)
    need(
        {"[CLS]", "[SEP]"} <= ids.keys(),
        f"{source} lacks [CLS] or [SEP], between which a text of DeBERTa stands; choose another file.",
    )
    if "[MASK]" not in ids:
        spec["added_tokens"].append(added_token(len(ids), "[MASK]"))
    names = {id: name for name, id in ids.items()}
    spec["post_processor"] = around(ids["[CLS]"], ids["[SEP]"], names.__getitem__)
    return spec, roles | {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def to_tokenizer_json(model: SentencePieceModel) -> Spec:
    """The model as a tokenizer.json holds it."""
    pieces = model.pieces
    unknown = [piece.kind for piece in pieces].index(UNKNOWN)
    bytes_of_rest = sum(piece.kind == BYTE for piece in pieces) == 256
    user = [piece.text for piece in pieces if piece.kind == USER]
    if model.algorithm == UNIGRAM:
        scores = [[piece.text, CERTAIN if piece.kind == USER else piece.score] for piece in pieces]
        algorithm = {"type": "Unigram", "unk_id": unknown, "vocab": scores}
        algorithm["byte_fallback"] = bytes_of_rest
    else:
        algorithm = bpe(
            {piece.text: id for id, piece in enumerate(pieces)},
            _merges(pieces),
            unk_token=pieces[unknown].text,
            fuse_unk=True,
            byte_fallback=bytes_of_rest,
            ignore_merges=bool(user),  # these are whole words, with no merges
        )
    # cuts that the model alone would not make: around user-defined pieces, and inside what only
    # looks like a byte
    cuts = []
    if user:
        pattern = "|".join(map(re.escape, sorted(user, key=len, reverse=True)))
        cuts.append(split(pattern))
    if model.algorithm == UNIGRAM and bytes_of_rest:
        cuts.append(split("<(?=0x[0-9A-F]{2}>)", "MergedWithPrevious"))
    # and between words, where no piece spans two: the library remembers words and so is faster
    if not any(MARK in piece.text[1:] for piece in pieces if piece.kind in (NORMAL, USER)):
        cuts.append({**split("", "MergedWithNext"), "pattern": {"String": MARK}})
    trimmed = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    decoders = [_replace({"String": MARK}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    return make_spec(
        algorithm,
        added_tokens=[
            added_token(id, piece.text) for id, piece in enumerate(pieces) if piece.kind in SPECIAL
        ],
        normalizer={"type": "Sequence", "normalizers": _normalizers(model)},
        pre_tokenizer={"type": "Sequence", "pretokenizers": cuts} if cuts else None,
        decoder={"type": "Sequence", "decoders": decoders + trimmed * model.dummy_prefix},
    )


def _merges(pieces: list[VocabularyEntry]) -> list[list[str]]:
    """Every cut of each piece, the pieces of the highest scores first."""
    mergeable = [piece for piece in pieces if piece.kind == NORMAL]
    mergeable.sort(key=lambda piece: -piece.score)
    ranks = {piece.text: rank for rank, piece in enumerate(mergeable)}
    return [list(pair) for pair in merges_by_rank(ranks)]


def _normalizers(model: SentencePieceModel) -> list[Spec]:
    """Replacements, then spaces, then the mark before the text and in place of spaces."""
    steps: list[Spec] = []
    if model.charsmap:
        table = base64.b64encode(model.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": table})
    if model.fewer_spaces:
        steps.append(_replace({"Regex": r"\A +| +\z| +(?= )"}, ""))
    if model.dummy_prefix:
        steps.append({"type": "Prepend", "prepend": MARK})
    return [*steps, _replace({"String": " "}, MARK)]


def _replace(pattern: dict[str, str], content: str) -> Spec:
    return {"type": "Replace", "pattern": pattern, "content": content}
