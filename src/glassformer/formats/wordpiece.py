"""WordPiece, BERT's kind: its vocab.txt, and what a tokenizer.json holds of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.errors import UserError
from ..core.tokenizer.tokenizer_json import Spec, make_spec
from .tokenizer_forms import added_token, around

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def read_tokenizer(text: str, lower: bool | None, config: dict[str, Any], source: str) -> Spec:
    """The tokenizer of a vocab.txt, a token per line. ``lower`` None: as the config says, else as
    capitals show."""
    names = [line.removesuffix("\r") for line in text.split("\n")]
    while names and not names[-1]:
        names.pop()
    ids = {name: id for id, name in enumerate(names)}
    if not {"[UNK]", "[CLS]", "[SEP]"} <= ids.keys():
        raise UserError(
            f"{source} lacks [UNK], [CLS] or [SEP] and so is not a WordPiece vocabulary; choose "
            "another file."
        )
    if len(ids) != len(names):
        twice = next(number for number, name in enumerate(names, 1) if ids[name] != number - 1)
        raise UserError(f"Line {twice} of {source} is repeated further down; restore the file.")
    if lower is None:
        lower = flag(config, "do_lower_case", None)
    spec = wordpiece(names, [name for name in SPECIAL if name in ids], lower)
    spec["normalizer"]["handle_chinese_chars"] = flag(config, "tokenize_chinese_chars", True)
    spec["normalizer"]["strip_accents"] = flag(config, "strip_accents", None)
    return spec


def wordpiece(names: list[str], special: Sequence[str], lower: bool | None = False) -> Spec:
    """A WordPiece vocabulary, [CLS] and [SEP] around a text. ``lower`` None: where no name has a
    capital."""
    if lower is None:
        lower = all(name == name.lower() for name in names if not name.startswith("["))
    ids = {name: id for id, name in enumerate(names)}
    return make_spec(
        {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": ids,
        },
        added_tokens=[added_token(ids[name], name) for name in special],
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": lower,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor=around(ids["[CLS]"], ids["[SEP]"], names.__getitem__),
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
    )


def flag(settings: dict[str, Any], key: str, usual: bool | None) -> bool | None:
    """A setting that is true or false, or else the usual one; UserError for what is neither
    ("false" is a text)."""
    value: Any = settings.get(key)
    if value is not None and not isinstance(value, bool):
        raise UserError(f'"{key}" is {ascii(value)[:100]}; write true or false.')
    return usual if value is None else value
