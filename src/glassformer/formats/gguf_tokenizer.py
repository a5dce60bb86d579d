"""The vocabulary in a GGUF file (llama.cpp's format), as a tokenizer.json holds it; the weights are
not read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..core.tokenizer.tokenizer_json import USUAL, Roles, Spec
from . import sentencepiece
from .byte_level import (
    CASED_WORDS,
    LONGEST,
    LOWER,
    UPPER,
    RankEncoding,
    byte_level,
    letters_as_bytes,
)
from .byte_level import split as cut
from .gguf_file import MAGIC as MAGIC
from .gguf_file import read_gguf
from .sentencepiece import BPE, CONTROL, MARK, UNIGRAM, UNKNOWN, UNUSED, USER, VocabularyEntry
from .tiktoken_backend import WORDS
from .tokenizer_forms import added_token
from .wordpiece import wordpiece

PARTS = {
    "bos": "bos",
    "eos": "eos",
    "pad": "padding",
    "unk": "unknown",
    "cls": "cls",
    "sep": "seperator",
    "mask": "mask",
}
"""The roles by the format's own spelling."""

# ------------------------------------------------------------------- how a text is split into words


DIGITS: Spec = {"type": "Digits", "individual_digits": True}
GPT2, BYTES = letters_as_bytes(words=True), letters_as_bytes()
NUMBERS: Spec = {"type": "Digits", "individual_digits": False}
LINES = cut(r"[\r\n]")
IDEOGRAPHS = cut("[一-龥ࠀ-一가-퟿]+")
MARKS = cut(r"\s?[!-/:-~！-／：-～‘-‟　-。]+")
CASED_LETTERS = (  # escaped: what Unicode composes to another character
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-"
    "\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-"
    "ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
ASCII_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
WORDS_OF_DEEPSEEK_3 = (
    rf"{ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BEFORE = r"[^\r\n\p{L}\p{N}]?"
WORDS_OF_TEKKEN = (
    rf"{BEFORE}{UPPER}*{LOWER}+|{BEFORE}{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS_OF_QWEN_3_5 = (  # marks belong to their letters
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{BEFORE}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS_OF_BLOOM = cut(r" ?[^(\s|.,!?…。，、।۔،)]+")
SPLITS: dict[str, list[Spec]] = {
    name: steps
    for names, steps in (
        ("gpt-2 phi-2 roberta-bpe modern-bert mpt olmo exaone4 granite-docling", [GPT2]),
        ("starcoder refact command-r smollm", [DIGITS, GPT2]),
        (
            "llama-bpe llama3 llama-v3 dbrx smaug-bpe chatglm-bpe glm4 lfm2 pixtral",
            [cut(WORDS.format(digits="{1,3}")), BYTES],
        ),
        ("qwen2 deepseek-r1-qwen megrez stablelm2", [cut(WORDS.format(digits="")), BYTES]),
        ("qwen35", [cut(WORDS_OF_QWEN_3_5), BYTES]),
        ("gpt-4o llama4", [cut(CASED_WORDS), BYTES]),
        ("tekken", [cut(WORDS_OF_TEKKEN), BYTES]),
        (
            "falcon",
            [
                {"type": "Punctuation", "behavior": "Contiguous"},
                GPT2,
                NUMBERS,
                cut("[0-9][0-9][0-9]"),
            ],
        ),
        (
            "deepseek-llm",
            [LINES, cut(rf"\s?[{CASED_LETTERS}]+"), MARKS, cut(r"\s+$"), IDEOGRAPHS, DIGITS, BYTES],
        ),
        (
            "deepseek-coder",
            [LINES, cut(r"\s?\p{L}+"), cut(r"\s?\p{P}+"), IDEOGRAPHS, DIGITS, BYTES],
        ),
        (
            "deepseek-v3",
            [cut(r"\p{N}{1,3}"), cut("[一-龥぀-ゟ゠-ヿ]+"), cut(WORDS_OF_DEEPSEEK_3), BYTES],
        ),
        ("bloom gpt3-finnish poro-chat", [WORDS_OF_BLOOM, BYTES]),
        ("viking", [WORDS_OF_BLOOM, DIGITS, BYTES]),
    )
    for name in names.split()
}
"""How a byte-level BPE splits a text, by the file's name for it: as the models' own tokenizer.json
say it."""
# a word that is an entry needs no merges
WHOLE_WORDS = {"llama-bpe", "llama3", "llama-v3", "tekken", "lfm2", "pixtral"}
COMPOSED = {"modern-bert", "mpt", "olmo", "command-r", "qwen2", "qwen35", "deepseek-r1-qwen"}
COMPOSED |= {"megrez"}  # Unicode NFC first


# ------------------------------------------------------------------------------------ the
# vocabulary


def read_tokenizer(path: Path) -> tuple[Spec, Roles]:
    """The tokenizer of a GGUF file, and who plays each part; UserError where it is broken or of
    another kind."""
    return from_fields(read_gguf(path, tensors=False)[0], str(path))


def from_fields(raw: dict[str, Any], source: str) -> tuple[Spec, Roles]:
    """The tokenizer in a file's fields, and who plays each part; UserError as ``read`` says."""
    try:
        fields_by_key = {key.removeprefix("tokenizer.ggml."): value for key, value in raw.items()}
        if lacks := [key for key in ("tokens", "token_type", "model") if key not in fields_by_key]:
            raise ValueError(f"it lacks tokenizer.ggml.{lacks[0]}")
        names = list(map(str, fields_by_key["tokens"]))
        kinds = list(map(int, fields_by_key["token_type"]))
        scores = list(map(float, fields_by_key.get("scores") or [0.0] * len(names)))
        convert = {"gpt2": _byte_level, "llama": _pieces, "t5": _pieces, "bert": _words}.get(
            fields_by_key["model"]
        )
        role_ids = {role: fields_by_key.get(f"{name}_token_id") for role, name in PARTS.items()}
        if convert in (_byte_level, None):
            role_ids["unk"] = None  # every text is known
        roles: Roles = {role: names[id] for role, id in role_ids.items() if id is not None}
        if len(set(names)) != len(names) or not len(names) == len(kinds) == len(scores):
            raise ValueError("its lists do not fit each other, or it repeats a token")
        if not all(0 < len(name) <= LONGEST for name in names):
            raise ValueError("an entry has no text or an endless one")
        if convert is None:
            raise UserError(
                f'{source} has a vocabulary of the kind "{fields_by_key["model"]}"; give its '
                "tokenizer.json instead."
            )
        return convert(
            fields_by_key,
            [VocabularyEntry(*entry) for entry in zip(names, scores, kinds, strict=True)],
            source,
        ), roles
    except UserError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(
            f"{source} is not a whole GGUF file with a vocabulary ({error}); restore the file."
        ) from None


def _byte_level(fields_by_key: dict[str, Any], entries: list[VocabularyEntry], source: str) -> Spec:
    """GPT-2's kind: merges, and a name for how a text is split."""
    split = fields_by_key.get("pre")
    if split not in SPLITS:
        problem = (
            "does not say how it splits a text"
            if split is None
            else f'splits a text by the unknown rule "{split}"'
        )
        raise UserError(f"{source} {problem}; give its tokenizer.json instead.")
    if "merges" not in fields_by_key:
        raise ValueError("it has no merges")
    pairs = [line.split(" ") for line in fields_by_key["merges"]]
    ids = {entry.text: id for id, entry in enumerate(entries)}
    if not all(len(pair) == 2 and {*pair, "".join(pair)} <= ids.keys() for pair in pairs):
        raise ValueError("it has a merge of tokens that are not there")
    spec = byte_level(
        ids, pairs, RankEncoding(None, {}, compose=split in COMPOSED), split in WHOLE_WORDS
    )
    steps = SPLITS[split]
    spec["pre_tokenizer"] = (
        steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}
    )
    # found whole in a text
    isolated = [(id, entry) for id, entry in enumerate(entries) if entry.kind in (CONTROL, USER)]
    spec["added_tokens"] = [
        added_token(id, entry.text, entry.kind == CONTROL or _plays(entry.text))
        for id, entry in isolated
    ]
    return spec


def _pieces(fields_by_key: dict[str, Any], entries: list[VocabularyEntry], source: str) -> Spec:
    """SentencePiece's kinds: a score for each piece, as BPE ("llama") or Unigram ("t5")."""
    unknown = fields_by_key.get("unknown_token_id")
    if unknown is None:
        unknown = [entry.kind for entry in entries].index(UNKNOWN)
    unigram = fields_by_key["model"] == "t5"
    # rows behind the vocabulary, whose names no text may write
    while unigram and entries and entries[-1].kind == UNUSED:
        entries = entries[:-1]
    pieces = []
    for id, (text, score, kind) in enumerate(entries):
        kind = UNKNOWN if id == unknown else UNUSED if kind == UNKNOWN else kind
        if kind == USER:
            kind = CONTROL if _plays(text) else USER
            text = text.replace(" ", MARK)
        pieces.append(VocabularyEntry(text, score, kind))
    if "scores" not in fields_by_key or len({piece.text for piece in pieces}) != len(pieces):
        raise ValueError("its pieces have no scores, or two are the same")
    charsmap = bytes(value % 256 for value in fields_by_key.get("precompiled_charsmap", []))
    if not sentencepiece.is_charsmap(charsmap):
        raise ValueError("its table of character replacements is damaged")
    model = sentencepiece.SentencePieceModel(
        pieces=pieces,
        algorithm=UNIGRAM if unigram else BPE,
        charsmap=charsmap,
        dummy_prefix=bool(fields_by_key.get("add_space_prefix", True)),
        fewer_spaces=bool(fields_by_key.get("remove_extra_whitespaces", False)),
    )
    return sentencepiece.to_tokenizer_json(model)


def _words(fields_by_key: dict[str, Any], entries: list[VocabularyEntry], source: str) -> Spec:
    """BERT's kind: ``▁`` begins what begins a word, and what goes on one is bare."""
    names = [
        text
        if kind == CONTROL or re.fullmatch(r"\[.*\]", text)
        else text[1:]
        if text.startswith(MARK)
        else f"##{text}"
        for text, _, kind in entries
    ]
    if len(set(names)) != len(names) or not {"[UNK]", "[CLS]", "[SEP]"} <= {*names}:
        raise ValueError("it repeats a token, or lacks [UNK], [CLS] or [SEP]")
    special = [entry.text for entry in entries if entry.kind in (CONTROL, UNKNOWN)]
    return wordpiece(names, special, lower=None)


def _plays(name: str) -> bool:
    """True for a usual name of an end of a text, whatever the file calls it: no text may write
    it."""
    return name in (*USUAL["bos"], *USUAL["eos"])
