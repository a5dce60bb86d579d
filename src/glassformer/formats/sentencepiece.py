"""SentencePiece `.model` files, as a tokenizer.json holds them."""

from __future__ import annotations

import base64
import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.errors import UserError
from ..core.tokenizer.tokenizer_json import (
    Roles,
    Spec,
    added_token,
    around,
    bpe,
    make_spec,
    merges_by_rank,
)
from .byte_level import LONGEST

MARK = "▁"  # how SentencePiece writes a space
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
CERTAIN = 1000.0  # a score that no other way to write a user-defined piece reaches
# whose ids are fairseq's: four special tokens, then the pieces behind the first three
FAIRSEQ = "xlm-roberta"


@dataclass(frozen=True)
class VocabularyEntry:
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
    if trainer.model_type not in (UNIGRAM, BPE) or suffixed:
        raise UserError(
            f"{source} is a SentencePiece model of a rare kind; only Unigram and BPE can be read."
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
    """What is missing or wrong in a file that can be read."""
    texts = {piece.text for piece in pieces}
    if not pieces:
        return "it has no vocabulary"
    # they stand behind the pieces
    if not (model.HasField("trainer_spec") and model.HasField("normalizer_spec")):
        return "it ends before it says how it splits a text"
    if len(texts) != len(pieces):
        return "two entries have the same text"
    whole = all(type(text) is str and 0 < len(text) <= LONGEST for text in texts)
    if not whole or not all(math.isfinite(piece.score) for piece in pieces):
        return "an entry has no text, an endless text or no score"
    if [piece.kind for piece in pieces].count(UNKNOWN) != 1:
        return "it must have one entry for unknown characters"
    return None


# ------------------------------------------------------------------------- as a tokenizer.json


def read_tokenizer(
    data: bytes, source: str, sentinels: int = 0, fairseq: bool = False
) -> tuple[Spec, Roles]:
    """The tokenizer of a SentencePiece file, and who plays bos, eos, pad and unk.

    ``sentinels``: how many ``<extra_id_N>`` T5 adds behind the vocabulary; ``fairseq``: XLM-R's
    ids. Raises UserError for a broken file.
    """
    model = parse(data, source)
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
    spec["post_processor"] = around("Roberta", 0, 2, [piece.text for piece in pieces])
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
