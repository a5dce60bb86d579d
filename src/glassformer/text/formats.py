"""Open a published tokenizer: a file of any format, or a folder that holds one.

A folder's tokenizer_config.json says who plays bos, eos, mask and so on, and which tokens were added later.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError, nearest
from . import gguf, ranks, sentencepiece
from .specification import USUAL, Roles, Spec, added_token, ids_of
from .stream import byte_alphabet
from .tokenizer import Tokenizer

LARGEST = 1 << 30  # bytes of a tokenizer file; the largest published ones have some tens of millions
SENTENCEPIECE_T5 = "d60acb128cf7b7f2536e8f38a5b18a05535c9e14c7a355904270e15b0945ea86"
SENTINELS_T5 = 100
MERGES_OF = {"vocab.json": "merges.txt", "encoder.json": "vocab.bpe"}
CASES = ("bert-cased", "bert-uncased")
KINDS = (*ranks.KINDS, *CASES, "t5")
CLASSES = {"Qwen2Tokenizer": "qwen", "Qwen2TokenizerFast": "qwen", "T5Tokenizer": "t5", "T5TokenizerFast": "t5"}


def open(path: str | Path, *, kind: str | None = None) -> Tokenizer:
    """The tokenizer in a file or folder.

    Formats: tokenizer.json; vocab.json with merges.txt, encoder.json with vocab.bpe; tiktoken ranks (also as
    tokenizer.model); SentencePiece .model; WordPiece vocab.txt; GGUF with a byte-level vocabulary. ``kind`` (gpt2,
    cl100k, o200k, llama3, qwen, bert-cased, bert-uncased, t5) decides where the file does not say; a tokenizer.json
    says everything. Raises UserError.
    """
    path = Path(path).expanduser()
    if kind is not None and kind not in KINDS:
        raise UserError(f'There is no kind of tokenizer "{kind}".{nearest(kind, KINDS)}')
    if path.is_dir():
        path = _find(path)
    config = _settings(path.parent / "tokenizer_config.json")
    spec, roles = _read(path, kind, config)
    roles |= _roles(config)
    _extend(spec, path.parent, config)
    return Tokenizer(spec, roles, str(path))


def _find(folder: Path) -> Path:
    """The tokenizer's file in a folder, the most explicit format first."""
    names = ["tokenizer.json", *MERGES_OF, "tokenizer.model", "spiece.model", "vocab.txt"]
    for name in names:
        complete = name not in MERGES_OF or (folder / MERGES_OF[name]).is_file()
        if (folder / name).is_file() and complete:
            return folder / name
    others = sorted(path for end in ("tiktoken", "model", "gguf") for path in folder.glob(f"*.{end}"))
    if len(others) == 1:
        return others[0]
    if others:
        raise UserError(f"{folder} holds {len(others)} tokenizers; name the file, such as {others[0]}.")
    raise UserError(f"{folder} holds no tokenizer; it needs a tokenizer.json or another published format.")


def _read(path: Path, kind: str | None, config: dict[str, Any]) -> tuple[Spec, Roles]:
    """The specification in one file, by the look of its content rather than by its name."""
    data = _content(path)
    source = str(path)
    beside = {merges: vocab for vocab, merges in MERGES_OF.items()}
    if path.name in beside:
        return _vocab_and_merges(path.with_name(beside[path.name]), path, _kind(kind, ranks.KINDS, config, source))
    start = data[:4096]
    if start.startswith(gguf.MAGIC):
        return gguf.read(data, source)
    if start.lstrip()[:1] == b"{":
        raw = _json(data, source)
        if isinstance(raw.get("model"), dict):
            stored = raw.pop("glassformer", None)
            return raw, dict(stored) if isinstance(stored, dict) else {}
        if path.name in MERGES_OF:
            merges = path.with_name(MERGES_OF[path.name])
            return _vocab_and_merges(path, merges, _kind(kind, ranks.KINDS, config, source))
        raise UserError(f'{source} is JSON with no "model" and so is no tokenizer.json; choose another file.')
    if re.match(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n", start):
        return ranks.read_ranks(data, _kind(kind, ranks.KINDS, config, source), source), {}
    if path.suffix == ".model" or start[:1] == b"\n":
        known = _kind(kind, ("t5",), config, source) == "t5" or hashlib.sha256(data).hexdigest() == SENTENCEPIECE_T5
        sentinels = config.get("extra_ids", SENTINELS_T5) if known else 0
        if not isinstance(sentinels, int) or not 0 <= sentinels <= 10000:
            raise UserError(f'"extra_ids" in {path.parent / "tokenizer_config.json"} is no count; mend it.')
        return sentencepiece.read(data, source, sentinels)
    if path.suffix == ".txt":
        return _wordpiece(data, _kind(kind, CASES, config, source), config, source)
    raise UserError(f"{source} is no tokenizer of a known format; give a tokenizer.json or another published file.")


def _kind(kind: str | None, possible: Collection[str], config: dict[str, Any], source: str) -> str | None:
    """The kind asked for, else the one that the folder's config implies; UserError when it cannot be the file's."""
    if kind is None:
        kind = CLASSES.get(str(config.get("tokenizer_class")))
        return kind if kind in possible else None
    if kind not in possible:
        raise UserError(f'{source} cannot be of the kind "{kind}"; choose {", ".join(possible)} or leave it out.')
    return kind


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST:
            raise UserError(f"{path} is too large to be a tokenizer; choose another file.")
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path.") from None
    if not data.strip():
        raise UserError(f"{path} is empty; restore the file.")
    return data


def _json(data: bytes, source: str) -> dict[str, Any]:
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source} is not valid JSON ({error}); restore or mend it.") from None
    if not isinstance(raw, dict):
        raise UserError(f"{source} holds no table; restore or mend it.")
    return raw


def _text(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{source} is not UTF-8 text (byte {error.start}); restore the file.") from None


# --------------------------------------------------------------------- vocabulary and merges, WordPiece


def _vocab_and_merges(vocab: Path, merges: Path, kind: str | None) -> tuple[Spec, Roles]:
    """GPT-2's pair of files; what neither is a byte nor made by a merge is a special token."""
    ids = _json(_content(vocab), str(vocab))
    if not all(type(id) is int and 0 <= id < 1 << 24 for id in ids.values()) or len(set(ids.values())) != len(ids):
        raise UserError(f"{vocab} must give each token an id of its own; restore the file.")
    pairs: list[list[str]] = []
    for number, line in enumerate(_text(_content(merges), str(merges)).split("\n"), 1):
        line = line.removesuffix("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not {*pair, "".join(pair)} <= ids.keys():
            raise UserError(f"Line {number} of {merges} is no merge of two tokens in {vocab}; restore both files.")
        pairs.append(pair)
    letters = set(byte_alphabet().values())
    if not letters <= ids.keys():
        raise UserError(f"{vocab} lacks some of the 256 single bytes; only byte-level vocabularies have this format.")
    known = letters | {left + right for left, right in pairs}
    chosen = ranks.kind_of(kind or "gpt2")
    specials = {name: id for name, id in ids.items() if name not in known}
    plain = {name: id for name, id in ids.items() if name in known}
    if kind is not None:
        specials = chosen.specials | specials
    spec = ranks.byte_level(plain, pairs, ranks.Kind(chosen.pattern, specials, compose=chosen.compose))
    return spec, {}


def _wordpiece(data: bytes, kind: str | None, config: dict[str, Any], source: str) -> tuple[Spec, Roles]:
    """BERT's vocab.txt: a token per line. With no capitals in it, it is for lower-cased text."""
    names = [line.removesuffix("\r") for line in _text(data, source).split("\n")]
    while names and not names[-1]:
        names.pop()
    ids = {name: id for id, name in enumerate(names)}
    if not {"[UNK]", "[CLS]", "[SEP]"} <= ids.keys():
        raise UserError(f"{source} lacks [UNK], [CLS] or [SEP] and so is no WordPiece vocabulary; choose another file.")
    if len(ids) != len(names):
        twice = next(number for number, name in enumerate(names, 1) if ids[name] != number - 1)
        raise UserError(f"Line {twice} of {source} is repeated further down; restore the file.")
    capitals = any(name != name.lower() for name in names if not name.startswith("["))
    lower = {"bert-cased": False, "bert-uncased": True}.get(kind or "", bool(config.get("do_lower_case", not capitals)))
    special = [name for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if name in ids]
    spec = wordpiece(names, special, lower)
    spec["normalizer"]["handle_chinese_chars"] = bool(config.get("tokenize_chinese_chars", True))
    spec["normalizer"]["strip_accents"] = config.get("strip_accents")
    return spec, {}


def wordpiece(names: Sequence[str], special: Sequence[str], lower: bool = False) -> Spec:
    """A WordPiece vocabulary, [CLS] and [SEP] around a text, as a tokenizer.json holds it."""
    ids = {name: id for id, name in enumerate(names)}
    cls, sep = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]"))
    first, second = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
    last = {"SpecialToken": {"id": "[SEP]", "type_id": 1}}
    around = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(ids[name], name) for name in special],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": lower,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [cls, first, sep],
            "pair": [cls, first, sep, second, last],
            "special_tokens": around,
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
    }


# ------------------------------------------------------------------------ tokenizer_config.json


def _settings(path: Path) -> dict[str, Any]:
    return _json(_content(path), str(path)) if path.is_file() else {}


def _roles(config: dict[str, Any]) -> Roles:
    """Who plays each part by the config; BERT's name for bos is cls and for eos sep."""
    roles: Roles = {}
    for part in USUAL:
        other = {"bos": "cls", "eos": "sep"}.get(part, part)
        for key in (f"{part}_token", f"{other}_token"):
            token = config.get(key)
            token = token.get("content") if isinstance(token, dict) else token
            if key in config and (token is None or isinstance(token, str)) and roles.get(part) is None:
                roles[part] = token
    return roles


def _extend(spec: Spec, folder: Path, config: dict[str, Any]) -> None:
    """Add the tokens that a folder lists beside its vocabulary, at the ids it gives them."""
    listed: dict[int, dict[str, Any]] = {}
    for text, id in _settings(folder / "added_tokens.json").items():
        if isinstance(id, int):
            listed[id] = added_token(id, text, special=False)
    table = config.get("added_tokens_decoder", {})
    for key, token in table.items() if isinstance(table, dict) else ():
        if key.isdigit() and isinstance(token, dict) and isinstance(token.get("content"), str):
            rules = {name: bool(token.get(name, False)) for name in ("single_word", "lstrip", "rstrip", "normalized")}
            listed[int(key)] = {**added_token(int(key), token["content"], bool(token.get("special", False))), **rules}
    try:
        ids = ids_of(spec)
        size = max(ids.values(), default=-1) + 1
    except (TypeError, ValueError, AttributeError, KeyError):
        return  # the Tokenizer says what is wrong
    for id, token in sorted(listed.items()):
        if token["content"] in ids:
            continue
        if id != size:
            raise UserError(f'{folder} adds "{token["content"]}" at {id}, and the next free id is {size}; mend it.')
        spec["added_tokens"] = [*(spec.get("added_tokens") or []), token]
        size += 1
