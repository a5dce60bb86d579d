"""SentencePiece `.model` files: a small protobuf reader, and the model as a tokenizer.json holds
it."""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..core.errors import UserError
from ..core.tokenizer.byte_bpe import LONGEST
from ..core.tokenizer.tokenizer_json import (
    Roles,
    Spec,
    added_token,
    between,
    bpe,
    framed_by,
    make_spec,
    merges_by_rank,
)

MARK = "▁"  # how SentencePiece writes a space
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
CERTAIN = 1000.0  # a score that no other way to write a user-defined piece reaches
# whose ids are fairseq's: four special tokens, then the pieces behind the first three
FAIRSEQ = "xlm-roberta"
VARINT, EIGHT_BYTES, COUNTED, FOUR_BYTES = 0, 1, 2, 5
TRAINER, NORMALIZER = 2, 3


class Broken(ValueError):
    """The bytes are not a protobuf message of the kind expected."""


@dataclass(frozen=True)
class VocabularyEntry:
    """An entry of the vocabulary."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """Fields of a SentencePiece model that decide ids."""

    pieces: list[VocabularyEntry]
    algorithm: int
    charsmap: bytes  # the compiled table of character replacements; empty: none
    dummy_prefix: bool  # a space before the text
    fewer_spaces: bool  # no spaces at the ends, no runs of them
    escape: bool  # spaces are written as the mark
    suffix: bool  # the mark ends words instead of starting them
    role_ids: dict[str, int]  # bos, eos, pad, unk -> id, negative where there is none


# ------------------------------------------------------------------------------- the wire format


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise Broken("it ends in the middle of a number")
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise Broken("a number is too long")


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Each field of a protobuf message: its number and its value; numbers with a fixed size come as
    bytes.

    Raises Broken for anything else.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == COUNTED:
            size, at = _varint(data, at)
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            size = 8 if kind == EIGHT_BYTES else 4
        else:
            raise Broken(f"a field has the unknown kind {kind}")
        if at + size > len(data):
            raise Broken("a field is longer than what is left")
        yield key >> 3, data[at : at + size]
        at += size


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise Broken("a number stands where text must be")
    return value


def _int(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise Broken("text stands where a number must be")
    return value - (1 << 64) if value >> 63 else value


def _message(value: int | bytes) -> dict[int, int | bytes]:
    return dict(fields(_bytes(value)))


def _piece(raw: dict[int, int | bytes]) -> VocabularyEntry:
    score = _bytes(raw.get(2, bytes(4)))
    if len(score) != 4:
        raise Broken("a score is not a number of four bytes")
    return VocabularyEntry(
        _bytes(raw.get(1, b"")).decode(), struct.unpack("<f", score)[0], _int(raw.get(3, NORMAL))
    )


def parse(data: bytes) -> SentencePieceModel:
    """The model in the bytes of a SentencePiece file; raises Broken or UnicodeDecodeError when they
    hold none."""
    pieces: list[VocabularyEntry] = []
    settings: dict[int, dict[int, int | bytes]] = {}
    for number, value in fields(data):
        if number == 1:
            pieces.append(_piece(_message(value)))
        elif number in (TRAINER, NORMALIZER):
            settings[number] = _message(value)
    if not pieces:
        raise Broken("it has no vocabulary")
    if len(settings) < 2:  # which stand behind the pieces
        raise Broken("it ends before it says how it splits a text")
    trainer, normalizer = settings[TRAINER], settings[NORMALIZER]
    if len({piece.text for piece in pieces}) != len(pieces):
        raise Broken("two entries have the same text")
    if any(
        not piece.text or len(piece.text) > LONGEST or not math.isfinite(piece.score)
        for piece in pieces
    ):
        raise Broken("an entry has no text, an endless text or no score")
    if [piece.kind for piece in pieces].count(UNKNOWN) != 1:
        raise Broken("it must have one entry for unknown characters")
    places = {"unk": (40, 0), "bos": (41, 1), "eos": (42, 2), "pad": (43, -1)}
    return SentencePieceModel(
        pieces=pieces,
        algorithm=_int(trainer.get(3, UNIGRAM)),
        charsmap=_bytes(normalizer.get(2, b"")),
        dummy_prefix=bool(_int(normalizer.get(3, 1))),
        fewer_spaces=bool(_int(normalizer.get(4, 1))),
        escape=bool(_int(normalizer.get(5, 1))),
        suffix=bool(_int(trainer.get(24, 0))),
        role_ids={
            role: _int(trainer.get(number, usual)) for role, (number, usual) in places.items()
        },
    )


# ------------------------------------------------------------------------- as a tokenizer.json


def read_tokenizer(
    data: bytes, source: str, sentinels: int = 0, fairseq: bool = False
) -> tuple[Spec, Roles]:
    """The tokenizer of a SentencePiece file, and who plays bos, eos, pad and unk.

    ``sentinels``: how many ``<extra_id_N>`` T5 adds behind the vocabulary; ``fairseq``: XLM-R's
    ids. Raises UserError for a broken file.
    """
    try:
        model = parse(data)
    except (Broken, UnicodeDecodeError) as error:
        raise UserError(
            f"{source} is not a whole SentencePiece model ({error}); restore the file."
        ) from None
    if model.algorithm not in (UNIGRAM, BPE) or model.suffix or not model.escape:
        raise UserError(
            f"{source} is a SentencePiece model of a rare kind; only Unigram and BPE can be read."
        )
    if fairseq:
        return _fairseq(model, source)
    pieces = model.pieces
    spec = to_tokenizer_json(model)
    spec["added_tokens"] += [
        added_token(len(pieces) + i, f"<extra_id_{sentinels - 1 - i}>") for i in range(sentinels)
    ]
    roles: Roles = {}
    for role, id in model.role_ids.items():
        fits = 0 <= id < len(pieces) and pieces[id].kind in (UNKNOWN, CONTROL)
        roles[role] = pieces[id].text if fits else None
    return spec, roles


def _fairseq(model: SentencePieceModel, source: str) -> tuple[Spec, Roles]:
    """XLM-R's: the special tokens of fairseq's dictionary first, ``<mask>`` last, each text between
    <s> and </s>."""
    if [piece.text for piece in model.pieces[:3]] != ["<unk>", "<s>", "</s>"]:
        raise UserError(
            f"{source} does not begin with <unk>, <s> and </s> as XLM-R's do; choose "
            "another file or kind."
        )
    special = [
        VocabularyEntry(name, 0.0, UNKNOWN if name == "<unk>" else CONTROL)
        for name in ("<s>", "<pad>", "</s>", "<unk>")
    ]
    pieces = [*special, *model.pieces[3:], VocabularyEntry("<mask>", 0.0, CONTROL)]
    if len({piece.text for piece in pieces}) != len(pieces):
        raise UserError(
            f"{source} has <pad> or <mask> among its pieces, as XLM-R's do not; choose another "
            "file or kind."
        )
    spec = to_tokenizer_json(replace(model, pieces=pieces))
    spec["added_tokens"][-1]["lstrip"] = True  # the space before a mask is the mask's
    spec["post_processor"] = framed_by(
        *between(0, 2, doubled=True), [piece.text for piece in pieces]
    )
    roles = {
        "bos": "<s>",
        "eos": "</s>",
        "cls": "<s>",
        "sep": "</s>",
        "pad": "<pad>",
        "unk": "<unk>",
        "mask": "<mask>",
    }
    return spec, dict(roles)


def to_tokenizer_json(model: SentencePieceModel) -> Spec:
    """The model as a tokenizer.json holds it."""
    special = [
        (id, piece.text)
        for id, piece in enumerate(model.pieces)
        if piece.kind in (UNKNOWN, CONTROL)
    ]
    trimmed = (
        [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if model.dummy_prefix else []
    )
    spaced = {"type": "Replace", "pattern": {"String": MARK}, "content": " "}
    return make_spec(
        _unigram(model) if model.algorithm == UNIGRAM else _bpe(model),
        added_tokens=[added_token(id, text) for id, text in special],
        normalizer=_normalizer(model),
        pre_tokenizer=_split(model),
        decoder={
            "type": "Sequence",
            "decoders": [spaced, {"type": "ByteFallback"}, {"type": "Fuse"}, *trimmed],
        },
    )


def _bpe(model: SentencePieceModel) -> dict[str, Any]:
    ids = {piece.text: id for id, piece in enumerate(model.pieces)}
    mergeable = [piece for piece in model.pieces if piece.kind == NORMAL]
    mergeable.sort(key=lambda piece: (-piece.score, ids[piece.text]))
    merges = merges_by_rank({piece.text: rank for rank, piece in enumerate(mergeable)})
    return bpe(
        ids,
        [list(pair) for pair in merges],
        unk_token=next(piece.text for piece in model.pieces if piece.kind == UNKNOWN),
        fuse_unk=True,
        byte_fallback=_falls_back(model),
        # these are whole words, with no merges
        ignore_merges=any(piece.kind == USER for piece in model.pieces),
    )


def _unigram(model: SentencePieceModel) -> dict[str, Any]:
    unknown = next(id for id, piece in enumerate(model.pieces) if piece.kind == UNKNOWN)
    vocabulary = [
        [piece.text, CERTAIN if piece.kind == USER else piece.score] for piece in model.pieces
    ]
    return {
        "type": "Unigram",
        "unk_id": unknown,
        "vocab": vocabulary,
        "byte_fallback": _falls_back(model),
    }


def _falls_back(model: SentencePieceModel) -> bool:
    return sum(piece.kind == BYTE for piece in model.pieces) == 256


def _normalizer(model: SentencePieceModel) -> dict[str, Any]:
    """Replacements, then spaces, then the mark before the text and in place of spaces."""
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        steps.append(
            {
                "type": "Precompiled",
                "precompiled_charsmap": base64.b64encode(model.charsmap).decode(),
            }
        )
    if model.fewer_spaces:
        steps.append({"type": "Replace", "pattern": {"Regex": r"\A +| +\z| +(?= )"}, "content": ""})
    if model.dummy_prefix:
        steps.append({"type": "Prepend", "prepend": MARK})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": MARK})
    return {"type": "Sequence", "normalizers": steps}


def _split(model: SentencePieceModel) -> dict[str, Any] | None:
    """Cuts that the model alone would not make: around user-defined pieces and inside what only
    looks like a byte.

    Also between words, where no piece spans two of them: the library remembers words and so is
    faster.
    """
    splits = []
    user = sorted(
        (piece.text for piece in model.pieces if piece.kind == USER), key=len, reverse=True
    )
    if user:
        splits.append(({"Regex": "|".join(re.escape(text) for text in user)}, "Isolated"))
    if model.algorithm == UNIGRAM and _falls_back(model):
        splits.append(({"Regex": "<(?=0x[0-9A-F]{2}>)"}, "MergedWithPrevious"))
    if not any(MARK in piece.text[1:] for piece in model.pieces if piece.kind in (NORMAL, USER)):
        splits.append(({"String": MARK}, "MergedWithNext"))
    steps = [
        {"type": "Split", "pattern": text, "behavior": behavior, "invert": False}
        for text, behavior in splits
    ]
    return {"type": "Sequence", "pretokenizers": steps} if steps else None
