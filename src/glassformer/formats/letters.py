"""ESM's vocab.txt: a token a line, most of them a letter that stands for an amino acid."""

from __future__ import annotations

import re

from ..core.errors import need
from ..core.tokenizer.tokenizer_json import Spec, make_spec
from .tokenizer_forms import added_token, around

SPECIAL = ("<cls>", "<pad>", "<eos>", "<unk>", "<mask>")


def read_tokenizer(text: str, source: str) -> Spec:
    """The tokenizer of the file: <cls> letters <eos>; what is no letter of it is one <unk>."""
    names = [line.strip() for line in text.rstrip().split("\n")]
    ids = {name: id for id, name in enumerate(names)}
    complete = ids.keys() >= set(SPECIAL)
    need(complete, f"{source} lacks one of {', '.join(SPECIAL)}; choose another file.")
    letters = sorted(ids.keys() - set(SPECIAL), key=len, reverse=True)
    split = {
        "type": "Split",
        "pattern": {"Regex": "|".join(map(re.escape, letters))},
        "behavior": "Isolated",
        "invert": False,
    }
    return make_spec(
        {"type": "WordLevel", "unk_token": "<unk>", "vocab": ids},
        added_tokens=[added_token(ids[name], name) for name in SPECIAL],
        pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, split]},
        post_processor=around(ids["<cls>"], ids["<eos>"], names.__getitem__),
    )
