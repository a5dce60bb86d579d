"""A tokenizer as the fields of a GGUF file, by which llama.cpp splits a text; read back and
compared."""

from __future__ import annotations

import base64
import re
from typing import Any

from ..core.errors import UserError, need
from ..core.tokenizer.tokenizer import Tokenizer
from ..core.tokenizer.tokenizer_json import Spec, steps
from .gguf_tokenizer import COMPOSED, PARTS, SPLITS, WHOLE_WORDS, from_fields
from .sentencepiece import BYTE, CONTROL, MARK, NORMAL, UNKNOWN, UNUSED, USER
from .tokenizer_forms import tokenizer_of

PREFIX = "tokenizer.ggml."
SAMPLE = (
    "Once upon a time,  there were 1234567 owls\n\n\tand they didn't WE'LL see: naïve café - 你好, "
    "мир! 🦉🦉 x_y=3.14; "
    "(a) [b] {c} <d> 'e' \"f\" #g @h %i ^j &k *l ~m `n |o    end  "
)
"""Texts that ways to split treat differently."""


def fields_of(tokenizer: Tokenizer, rows: int) -> dict[str, Any]:
    """The fields, of a vocabulary of ``rows``; UserError for a tokenizer that llama.cpp splits
    otherwise."""
    spec = tokenizer.spec
    model = spec["model"]
    refused = (
        "llama.cpp has no words for how this tokenizer splits a text; write the file without it"
    )
    scored = model.get("type") == "Unigram"
    pieces = scored or (isinstance(model.get("merges"), list) and model.get("byte_fallback"))
    need(scored or model.get("type") == "BPE", f"{refused} (a {model.get('type')} vocabulary).")
    model_fields = _pieces(spec) if pieces else _byte_level(spec)
    need(model_fields is not None, f"{refused}.")
    assert model_fields is not None
    texts = [
        tokenizer.token(id) if id < tokenizer.size else ""
        for id in range(max(rows, tokenizer.size))
    ]
    names = [text or f"[UNUSED{id}]" for id, text in enumerate(texts)]
    fields = {f"{PREFIX}{key}": value for key, value in model_fields.items()}
    fields[f"{PREFIX}tokens"] = names
    added = {token["content"] for token in spec["added_tokens"]}
    fields[f"{PREFIX}token_type"] = [
        _kind(tokenizer, id, text, text in added, bool(pieces)) for id, text in enumerate(texts)
    ]
    if pieces:
        fields[f"{PREFIX}scores"] = _scores(spec, names)
    for role, name in PARTS.items():
        token = tokenizer.roles.get(role)
        if token is not None and (id := tokenizer.id(token)) is not None:
            fields[f"{PREFIX}{name}_token_id"] = id
    fields[f"{PREFIX}add_bos_token"] = tokenizer.bos is not None and tokenizer.bos != tokenizer.eos
    if None not in (tokenizer.cls, tokenizer.sep):  # an encoder's texts are closed, too
        fields |= {f"{PREFIX}add_eos_token": True, f"{PREFIX}add_sep_token": True}
    back = tokenizer_of(*from_fields(fields, "The file"))
    equal = all(
        back.encode(text) == tokenizer.encode(text)
        for text in (SAMPLE, SAMPLE.strip(), "a", " a", "\n")
    )
    need(equal, f"{refused} (it encodes a sample text differently).")
    return fields


def _kind(tokenizer: Tokenizer, id: int, text: str | None, added: bool, pieces: bool) -> int:
    if not text:
        return UNUSED
    if pieces and text == tokenizer.roles.get("unk"):
        return UNKNOWN
    if tokenizer.hides(id):
        return CONTROL
    if pieces and re.fullmatch("<0x[0-9A-F]{2}>", text):
        return BYTE
    return USER if added else NORMAL


def _byte_level(spec: Spec) -> dict[str, Any] | None:
    """GPT-2's kind, with llama.cpp's name for the split; None where it has none."""
    merges = spec["model"].get("merges")
    words = bool(spec["model"].get("ignore_merges"))
    before = [_deciding(step) for step in steps(spec.get("pre_tokenizer"))]
    composes = any(step["type"] == "NFC" for step in steps(spec.get("normalizer")))
    splits = sorted(SPLITS.items(), key=lambda item: (item[0] in COMPOSED) != composes)
    for name, split in splits if isinstance(merges, list) else ():
        if (name in WHOLE_WORDS) == words and [_deciding(step) for step in split] == before:
            return {"model": "gpt2", "pre": name, "merges": [" ".join(pair) for pair in merges]}
    return None


def _deciding(step: Spec) -> dict[str, Any]:
    """Settings of a pre-tokenizer's step that decide ids."""
    usual = {"add_prefix_space": False, "use_regex": True} if step["type"] == "ByteLevel" else {}
    return {**usual, **{key: value for key, value in step.items() if key != "trim_offsets"}}


def _pieces(spec: Spec) -> dict[str, Any]:
    """SentencePiece's kinds."""
    before = [*steps(spec.get("normalizer")), *steps(spec.get("pre_tokenizer"))]
    trims = any(
        step["type"] == "WhitespaceSplit"
        or (step["type"] == "Replace" and "Regex" in step.get("pattern", {}))
        for step in before
    )
    prepends = any(
        step.get("prepend") == MARK
        or (step["type"] == "Metaspace" and step.get("prepend_scheme") != "never")
        for step in before
    )
    fields: dict[str, Any] = {
        "model": "t5" if spec["model"]["type"] == "Unigram" else "llama",
        "pre": "default",
        "add_space_prefix": prepends,
        "remove_extra_whitespaces": trims,
    }
    for step in before:
        if step["type"] == "Precompiled":
            fields["precompiled_charsmap"] = base64.b64decode(step["precompiled_charsmap"])
    return fields


def _scores(spec: Spec, names: list[str]) -> list[float]:
    """A score for each piece: that of a Unigram, of a BPE the higher the earlier it is merged."""
    if spec["model"]["type"] == "Unigram":
        scores = dict(spec["model"]["vocab"])
        return [float(scores.get(name, 0.0)) for name in names]
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(spec["model"]["merges"]):
        ranks.setdefault("".join(pair), rank)
    if not ranks:
        raise UserError("This tokenizer has no merges; write the file without it.")
    return [-float(ranks.get(name, len(ranks))) for name in names]
